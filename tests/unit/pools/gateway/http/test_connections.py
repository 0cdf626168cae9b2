"""Who has a place among a process's connections, and how many bytes they may hold together."""

from __future__ import annotations

import pytest

from pools.gateway.errors import ApiError
from pools.gateway.http.connections import ConnectionLimits, Connections, networks


class FakeConnection:
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def check(self, now_s: float) -> None: ...

    def close_if_idle(self) -> None: ...


def opened(connections: Connections, count: int, host: str = "10.0.0.1") -> list[FakeConnection]:
    made = [FakeConnection() for _ in range(count)]
    assert all(connections.opened(one, host) for one in made)
    return made


def test_oldest_without_a_key_makes_room_when_there_are_too_many() -> None:
    connections = Connections(ConnectionLimits(unkeyed=3))
    made = opened(connections, 5)
    assert [one.aborted for one in made] == [True, True, False, False, False]
    assert (len(connections), connections.unkeyed, connections.dropped) == (3, 3, 2)


@pytest.mark.parametrize(
    ("same", "other"),
    [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8:0:1::1"), ("::ffff:10.0.0.1", "::ffff:10.0.0.2")],
)
def test_crowd_of_one_address_only_pushes_out_its_own(same: str, other: str) -> None:
    connections = Connections(ConnectionLimits(unkeyed_of_address=2))
    (neighbour,) = opened(connections, 1, other)
    made = opened(connections, 3, same)
    assert [one.aborted for one in made] == [True, False, False]
    assert not neighbour.aborted


def test_addresses_of_a_64_of_ipv6_count_as_one() -> None:
    connections = Connections(ConnectionLimits(unkeyed_of_address=1))
    first, second = (opened(connections, 1, host)[0] for host in ("2001:db8::1", "2001:db8::2%eth0"))
    assert (first.aborted, second.aborted) == (True, False)


def test_address_of_a_proxy_has_no_limit_of_its_own() -> None:
    proxies = networks("10.0.0.0/24, 2001:db8::/32")
    connections = Connections(
        ConnectionLimits(unkeyed=8, unkeyed_of_address=2, unkeyed_per_s=8, proxies=proxies), lambda: 0.0
    )
    for proxy in ("10.0.0.1", "2001:db8::1", "::ffff:10.0.0.2"):
        assert not any(one.aborted for one in opened(connections, 2, proxy))
        assert all(connections.lets_in(proxy) for _ in range(20))
    assert not any(one.aborted for one in opened(connections, 2, "10.0.0.1"))
    assert connections.dropped == 0, "and one of them has 4 of the 8 places"
    assert opened(connections, 3, "10.0.1.1")[0].aborted
    assert not all(connections.lets_in("10.0.1.1") for _ in range(20)), "its neighbour's network is none of these"


def test_address_that_comes_with_keys_may_come_as_often_as_it_likes() -> None:
    connections = Connections(ConnectionLimits(unkeyed=8, unkeyed_per_s=1), lambda: 0.0)
    for _ in range(50):
        assert connections.lets_in("10.0.0.1")
        (one,) = opened(connections, 1)
        connections.keyed(one, 7)
    assert connections.lets_in("10.0.0.1")
    assert not all(connections.lets_in("10.0.0.1") for _ in range(3))
    assert connections.too_many > 0


def test_request_that_needs_no_key_counts_as_a_connection_does() -> None:
    now_s = 0.0
    connections = Connections(ConnectionLimits(unkeyed=8, unkeyed_per_s=1), lambda: now_s)
    stranger, known = opened(connections, 2)
    connections.keyed(known, 7)
    for _ in range(2):
        connections.asked_without_key(stranger, "10.0.0.1")
    with pytest.raises(ApiError) as refused:
        connections.asked_without_key(stranger, "10.0.0.1")
    assert (refused.value.status, refused.value.code) == (429, "too_many_without_key")
    assert not connections.lets_in("10.0.0.1")
    connections.asked_without_key(known, "10.0.0.1")
    now_s += 60.0
    connections.asked_without_key(stranger, "10.0.0.1")


def test_connection_with_a_key_keeps_its_place_whatever_crowd_comes() -> None:
    connections = Connections(ConnectionLimits(most=4, unkeyed=3))
    keyed = opened(connections, 2)
    for one in keyed:
        connections.keyed(one, 7)
    crowd = opened(connections, 50)
    assert not any(one.aborted for one in keyed)
    assert sum(not one.aborted for one in crowd) == 2
    for one in crowd[-2:]:
        connections.keyed(one, 8)
    assert not connections.opened(FakeConnection(), "10.0.0.9"), "all places are taken by keys"
    assert connections.refused == 1
    connections.closed(keyed[0])
    assert connections.opened(FakeConnection(), "10.0.0.9")


def test_key_is_refused_beyond_its_connections_and_another_is_not() -> None:
    connections = Connections(ConnectionLimits(of_key=2))
    first, second, third = opened(connections, 3)
    connections.keyed(first, 7)
    connections.keyed(first, 7)
    connections.keyed(second, 7)
    with pytest.raises(ApiError) as refused:
        connections.keyed(third, 7)
    assert (refused.value.status, refused.value.code) == (429, "too_many_connections")
    assert connections.keyed(third, 8) is not None
    connections.closed(first)
    assert connections.keyed(third, 7) is not None, "a connection may change its key"


def test_heads_that_never_end_push_out_the_one_that_waits_longest() -> None:
    connections = Connections(ConnectionLimits(head_bytes=100))
    slow, slower, idle = opened(connections, 3)
    connections.head_grew(slow, 60)
    connections.head_grew(slower, 40)
    connections.head_grew(slower, 20)
    assert (slow.aborted, slower.aborted, idle.aborted) == (True, False, False)
    assert connections.head_bytes == 60
    connections.head_here(slower)
    assert connections.head_bytes == 0


def test_bodies_have_a_bound_together_and_one_key_half_of_it() -> None:
    connections = Connections(ConnectionLimits(body_bytes=100))
    first, second = opened(connections, 2)
    of_first, of_second = connections.keyed(first, 1), connections.keyed(second, 2)
    assert of_first is not None
    assert of_second is not None
    assert connections.hold(of_first, 50)
    assert not connections.hold(of_first, 1)
    assert connections.hold(of_second, 50)
    connections.release(of_first, 50)
    assert connections.hold(of_first, 30)
    assert connections.body_bytes == 80


def test_nothing_is_left_when_all_have_closed() -> None:
    connections = Connections()
    made = [*opened(connections, 3), *opened(connections, 2, "::1")]
    connections.keyed(made[0], 1)
    connections.head_grew(made[1], 9)
    for one in made:
        connections.closed(one)
    assert (len(connections), connections.head_bytes, connections._by_address, connections._shares) == (0, 0, {}, {})
