"""One of several control planes leads: the session that has the lock, for as long as it is heard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from greenserve.leadership import Leadership
from pools.database_locks import Lock, held, keep, take, try_to_take
from pools.leader import leader

pytestmark = pytest.mark.django_db
LEASE_S = 0.4


@pytest.fixture
def make() -> Iterator[Callable[..., Leadership]]:
    made = []

    def one(name: str, lease_s: float = 60.0, **options: object) -> Leadership:
        made.append(Leadership(connection.copy(), name, lease_s, look_s=0.0, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for leading in made:
        leading.close()


def until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_leads_and_the_other_takes_over_when_its_session_ends(make):
    first, second = make("a"), make("b")
    assert [first.leads(), second.leads(), first.leads(), second.leads()] == [True, False, True, False]
    assert leader().name == "a"
    first.close()
    until(second.leads)
    assert leader().name == "b"
    assert not first.leads(), "who comes back stands by"


def test_standby_takes_over_when_nothing_is_heard_of_the_leader_whose_connection_stays(make):
    now_s = 0.0
    first, second = make("a", LEASE_S, clock=lambda: now_s), make("b")
    assert first.leads()
    assert not second.leads()
    until(second.leads)
    now_s = LEASE_S
    assert not first.leads(), "its session was ended"
    assert first.fault
    assert leader().name == "b"


def test_leader_trusts_an_answer_for_less_than_its_lease(make):
    now_s = 0.0
    leading = Leadership(connection.copy(), "a", lease_s=8.0, look_s=60.0, clock=lambda: now_s)
    try:
        assert leading.leads()
        now_s = 6.9
        assert leading.leads()
        now_s = 7.1
        assert not leading.leads(), "though it has not been able to ask since"
    finally:
        leading.close()


def test_nobody_leads_while_postgresql_does_not_answer_and_one_does_afterwards(make, monkeypatch):
    leading = make("a")
    port = leading._connection.settings_dict["PORT"], leading._connection.settings_dict["HOST"]
    leading._connection.settings_dict |= {"HOST": "127.0.0.1", "PORT": "1"}
    assert not leading.leads()
    assert "refused" in leading.fault
    leading._connection.settings_dict |= {"PORT": port[0], "HOST": port[1]}
    assert leading.leads()
    assert not leading.fault


def test_every_lock_excludes_others_and_no_lock_another_lock():
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            for lock in Lock:
                cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [lock])
                assert cursor.fetchone() == (True,), f"{lock} has the number of another"
        assert not any(keep(lock) or try_to_take(lock) for lock in Lock)
        with held(Lock.NOTICES) as mine:
            assert not mine
    finally:
        other.close()
    with held(Lock.NOTICES, patience_s=5.0) as mine:
        assert mine
    take(Lock.CALIBRATION)


def test_lock_is_free_for_others_after_its_block():
    other = connection.copy()
    try:
        with held(Lock.FEEDS) as mine, other.cursor() as cursor:
            assert mine
            cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [Lock.FEEDS])
            assert cursor.fetchone() == (False,)
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [Lock.FEEDS])
            assert cursor.fetchone() == (True,)
    finally:
        other.close()
