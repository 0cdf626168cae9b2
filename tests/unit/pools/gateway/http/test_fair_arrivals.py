"""How many may come without a key: an address has a part, a crowd leaves room for others, and time brings it back."""

from __future__ import annotations

import pytest

from pools.gateway.http.fair_arrivals import FairArrivals


def taken(arrivals: FairArrivals, address: bytes, tries: int, now_s: float = 0.0) -> int:
    return sum(arrivals.take(address, now_s) for _ in range(tries))


def address_of(number: int) -> bytes:
    return b"%d" % number


def test_address_that_pushes_alone_gets_a_quarter_of_all() -> None:
    assert taken(FairArrivals(400, 100), b"a", 1000) == 100


@pytest.mark.parametrize("crowd", [1, 3, 64, 256])
def test_new_address_gets_in_however_hard_a_crowd_pushes(crowd: int) -> None:
    arrivals = FairArrivals(1000, 125)
    passed = refused = 0
    for tick in range(8_000):
        got = arrivals.take(address_of(tick % crowd), tick * 0.0025)
        passed, refused = passed + got, refused + (not got)
        if tick % 500 == 499:
            assert arrivals.take(b"new at %d" % tick, tick * 0.0025)
    assert refused > 4_000, "the crowd came three times as often as it may"
    assert passed <= 1000 + 20 * 125


def test_crowd_of_any_size_gets_no_more_than_all_tokens() -> None:
    arrivals = FairArrivals(400, 100)
    assert sum(taken(arrivals, address_of(number), 2) for number in range(1500)) <= 400


@pytest.mark.parametrize("crowd", [1, 8, 1000])
def test_rate_in_the_long_run_is_bounded_whatever_the_crowd(crowd: int) -> None:
    arrivals = FairArrivals(40, 10)
    passed = sum(
        arrivals.take(address_of((step * 37 + tick) % crowd), tick * 0.1) for tick in range(300) for step in range(30)
    )
    assert passed <= 40 + 10 * 30
    assert passed >= 10 * 30 / 4, "and it is not shut either"


def test_token_given_back_is_there_for_the_next() -> None:
    arrivals = FairArrivals(4, 1)
    for now_s in range(100):
        assert arrivals.take(b"a", now_s * 0.001), "who comes with a key each time is never refused"
        arrivals.give_back(b"a")
    arrivals.give_back(b"nobody")
    assert taken(arrivals, b"a", 5, 0.1) == 1


def test_shares_agree_with_their_sum_and_quiet_addresses_are_forgotten() -> None:
    arrivals = FairArrivals(400, 100)
    for tick in range(2000):
        arrivals.take(address_of(tick), tick * 0.05)
        if tick % 3 == 0:
            arrivals.give_back(address_of(tick - 1))
    now_s = 2000 * 0.05
    arrivals.take(b"last", now_s)
    held = sum(arrivals._tokens(address, now_s) for address in arrivals._by_address)
    assert arrivals._held == pytest.approx(held)
    assert len(arrivals) < 300
