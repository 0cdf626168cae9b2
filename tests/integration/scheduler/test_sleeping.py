"""A service without requests sleeps and wakes when one waits, whatever its plan is; its plan stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
import redis

from core.types import Loop
from pools import wire
from pools.models import Instance, InstanceGpu, Pool, Service
from scheduler.control import epochs, service_policy, sleep_states, sleeping
from scheduler.models import ControllerState, ControlMode, Decision, ServiceMode
from tests.fakes.house import refresh_feeds, report_all

pytestmark = pytest.mark.django_db
IDLE_S = 60.0
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
Says = Callable[..., None]


@pytest.fixture
def gateway(redis_client: redis.Redis) -> Iterator[Says]:
    """A gateway that says which requests of the service are open, by when they came."""

    def says(*started_at: datetime) -> None:
        message = wire.OpenRequests(
            ["llama3-70b"],
            [0] * len(started_at),
            [f"open-{n}" for n in range(len(started_at))],
            [at.timestamp() for at in started_at],
            [300] * len(started_at),
            [100] * len(started_at),
        )
        redis_client.zadd(wire.GATEWAYS_KEY, {"gateway": 1})
        redis_client.set(wire.open_requests_key("gateway"), wire.encode(message))

    yield says
    redis_client.delete(wire.GATEWAYS_KEY, wire.open_requests_key("gateway"))


def begin(service: Service, client: redis.Redis, now: datetime, kind: str) -> None:
    """All that the service wants is ready, and it may sleep from now on."""
    for knobs in ({}, {"sleep": kind, "tuning": {"sleep": {"idle_s": IDLE_S}}}):
        service_policy.change(service, "greenserve", knobs)
        service.refresh_from_db()
        for loop in LOOPS:
            epochs.run(service, loop, now)
        agents_act(client, now)


def agents_act(client: redis.Redis, at: datetime) -> None:
    """Agents do what they are to, and what placements wait for goes on."""
    Instance.objects.filter(desired="running").update(state="ready")
    Instance.objects.filter(desired="sleeping").update(state="sleeping")
    gone = Instance.objects.filter(desired="draining")
    InstanceGpu.objects.filter(instance__in=gone).update(released_at=at)
    gone.update(state="stopped", desired="stopped")
    report_all(client, at=at)
    refresh_feeds(at)
    epochs.settle(client, at)


def wishes() -> list[str]:
    return sorted(Instance.objects.exclude(state="stopped").values_list("desired", flat=True))


def workers() -> list[dict[str, int]]:
    return [pool.workers for pool in Pool.objects.order_by("pk") if pool.workers]


def test_stopped_service_wakes_when_a_request_waits_for_it(
    new_service: Service, redis_client: redis.Redis, now: datetime, gateway: Says
) -> None:
    begin(new_service, redis_client, now, "stop")
    gateway()
    sleeping.look(now)
    assert set(wishes()) == {"running"}, "it has only just come up"
    planned, later = workers(), now + timedelta(seconds=IDLE_S + 1)
    agents_act(redis_client, later)
    sleeping.look(later)
    assert set(wishes()) == {"draining"}
    assert sleep_states.of(new_service).asleep
    put_to_sleep = Decision.objects.order_by("pk").last()
    assert put_to_sleep is not None
    assert "no request for" in put_to_sleep.summary
    assert [command["service"] for command in put_to_sleep.commands] == ["llama3-70b"]

    agents_act(redis_client, later)
    for loop in LOOPS:
        epochs.run(new_service, loop, later + timedelta(seconds=30))
    assert wishes() == [], "its loops go on, and start nothing while it sleeps"
    assert workers() == planned

    asked = later + timedelta(seconds=40)
    report_all(redis_client, at=asked)
    gateway(asked)
    sleeping.look(asked + timedelta(seconds=1))
    assert set(wishes()) == {"running"}
    assert not sleep_states.of(new_service).asleep
    woken = Decision.objects.order_by("pk").last()
    assert woken is not None
    assert "1 requests wait" in woken.summary


def test_engines_sleep_on_their_gpus_and_are_woken_when_the_policy_says_level(
    new_service: Service, redis_client: redis.Redis, now: datetime, gateway: Says
) -> None:
    begin(new_service, redis_client, now, "level")
    gateway()
    later = now + timedelta(seconds=IDLE_S + 1)
    sleeping.look(now)
    agents_act(redis_client, later)
    sleeping.look(later)
    before = set(Instance.objects.exclude(state="stopped").values_list("uid", flat=True))
    assert set(wishes()) == {"sleeping"}
    agents_act(redis_client, later)
    assert set(wishes()) == {"sleeping"}, "they stay asleep when placements are looked at again"
    gateway(later)
    sleeping.look(later + timedelta(seconds=1))
    assert set(wishes()) == {"running"}
    assert set(Instance.objects.exclude(state="stopped").values_list("uid", flat=True)) == before


def test_service_stays_awake_while_a_request_is_open_or_no_gateway_is_heard(
    new_service: Service, redis_client: redis.Redis, now: datetime, gateway: Says
) -> None:
    begin(new_service, redis_client, now, "stop")
    sleeping.look(now)
    later = now + timedelta(seconds=IDLE_S + 1)
    agents_act(redis_client, later)
    sleeping.look(later)
    assert set(wishes()) == {"running"}, "nobody says that nothing is open"
    gateway(now)
    sleeping.look(later)
    gateway()
    sleeping.look(later + timedelta(seconds=IDLE_S - 1))
    assert set(wishes()) == {"running"}, "it was used until a moment ago"


@pytest.mark.parametrize("mode", [ControlMode.ADVISE, ControlMode.APPROVE])
def test_nobody_sleeps_where_decisions_do_not_act(
    new_service: Service, redis_client: redis.Redis, now: datetime, gateway: Says, mode: str
) -> None:
    begin(new_service, redis_client, now, "stop")
    ServiceMode.objects.update_or_create(service=new_service, defaults={"mode": mode})
    gateway()
    sleeping.look(now)
    sleeping.look(now + timedelta(seconds=IDLE_S + 1))
    assert set(wishes()) == {"running"}


def test_service_is_awake_again_when_its_policy_has_nobody_sleep(
    new_service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    begin(new_service, redis_client, now, "stop")
    ControllerState.objects.create(
        kind=sleep_states.KIND, service=new_service, value=sleep_states.SleepState(asleep=True).as_json()
    )
    epochs.settle(redis_client, now)
    assert set(wishes()) == {"draining"}
    agents_act(redis_client, now)
    service_policy.change(new_service, "greenserve", {})
    epochs.settle(redis_client, now)
    assert set(wishes()) == {"running"}
