"""Clocks that gateways ask for: which of them counts, for how long, and beside which rule."""

from __future__ import annotations

import math

import pytest

from core.ports import RetryableError
from pools.agent.clocks.clock_requests import ClockRequests
from pools.agent.clocks.clock_rules import BY_REQUEST
from pools.wire import LONGEST_CLOCK_LEASE_S, ClockPolicy
from tests.fakes.node import engine_reading
from tests.unit.pools.agent.clocks.clock_bench import BOTTOM_MHZ, TOP_MHZ, ClockBench, request, view

THROTTLE = ClockPolicy(policy="throttle", lease_s=10.0)


# -- what is kept ----------------------------------------------------------------------------------


def test_highest_living_request_counts_when_several_gateways_ask() -> None:
    requests = ClockRequests()
    requests.put(request(900.0, "g1", lease_s=10.0), 100.0)
    requests.put(request(1200.0, "g2", lease_s=5.0), 100.0)
    requests.put(request(1400.0, "g2", uid="another"), 100.0)

    def highest(now_s: float) -> float | None:
        found = requests.highest("u1", now_s)
        return None if found is None else found.mhz

    assert [highest(now_s) for now_s in (100.0, 104.9, 105.0, 109.9, 110.0)] == [1200.0, 1200.0, 900.0, 900.0, None]


def test_gateway_has_one_request_at_a_time_when_it_asks_again() -> None:
    requests = ClockRequests()
    requests.put(request(1200.0, at_s=7.0), 100.0)
    requests.put(request(900.0, at_s=8.0), 101.0)
    requests.put(request(1300.0, at_s=7.5), 102.0)  # it was on its way for longer
    found = requests.highest("u1", 103.0)
    assert found is not None
    assert (found.mhz, found.until_s) == (900.0, 111.0)
    requests.put(request(900.0, at_s=9.0, lease_s=0.0), 104.0)
    assert requests.highest("u1", 104.0) is None


def test_gateway_is_heard_when_its_clock_went_back_and_its_lease_is_over() -> None:
    requests = ClockRequests()
    requests.put(request(1200.0, at_s=500.0, lease_s=2.0), 100.0)
    requests.put(request(900.0, at_s=3.0), 103.0)
    found = requests.highest("u1", 103.0)
    assert found is not None
    assert found.mhz == 900.0


def test_lease_is_cut_and_forgotten_when_it_is_too_long_or_over() -> None:
    requests = ClockRequests()
    requests.put(request(900.0, lease_s=1e9), 100.0)
    assert requests.next_lapse_s() == 100.0 + LONGEST_CLOCK_LEASE_S
    requests.forget_lapsed(100.0 + LONGEST_CLOCK_LEASE_S)
    assert requests.next_lapse_s() is None


@pytest.mark.parametrize(
    ("mhz", "lease_s"), [(0.0, 1.0), (-5.0, 1.0), (math.inf, 1.0), (900.0, -1.0), (900.0, math.nan)]
)
def test_request_is_refused_when_it_makes_no_sense(mhz: float, lease_s: float) -> None:
    requests = ClockRequests()
    with pytest.raises(ValueError, match="must be"):
        requests.put(request(mhz, lease_s=lease_s), 100.0)
    assert requests.next_lapse_s() is None


# -- as the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BY_REQUEST)
def test_clock_is_what_gateways_ask_for_when_the_rule_is_theirs(rule: str) -> None:
    bench = ClockBench(ClockPolicy(policy=rule, lease_s=10.0))
    bench.tick()
    assert (bench.mhz, bench.rows) == (TOP_MHZ, [])
    bench.ask(700.0)
    rows = bench.glance(0.2)
    assert bench.actuator.calls[-1] == ("lock", ("G0", "G1", "G2", "G3"), 700.0, 10.0)
    assert [(row.reason, row.from_mhz, row.to_mhz, row.summary) for row in rows] == [
        ("within_limits", TOP_MHZ, 700.0, "g1 asks for 700 MHz.")
    ]
    assert rows[0].inputs == {"rule": rule, "gateway": "g1", "asked_mhz": 700.0}
    bench.ask(1100.0, "g2")
    bench.glance(0.1)
    assert bench.mhz == 1100.0
    bench.ask(500.0)  # lower than the other's: it changes nothing
    calls = bench.calls
    assert bench.glance(0.1) == []
    assert (bench.mhz, bench.calls) == (1100.0, calls)


@pytest.mark.parametrize(("asked", "mhz"), [(50.0, BOTTOM_MHZ), (5000.0, TOP_MHZ)])
def test_clock_stays_in_the_range_of_the_gpu_when_more_or_less_is_asked_for(asked: float, mhz: float) -> None:
    bench = ClockBench(THROTTLE)
    bench.tick()
    bench.ask(asked)
    bench.glance(0.1)
    assert bench.mhz == mhz


def test_clock_is_renewed_each_tick_and_at_the_top_when_all_leases_are_over() -> None:
    bench = ClockBench(THROTTLE)
    bench.tick()
    bench.ask(700.0, lease_s=2.5)
    bench.glance(0.1)
    calls = bench.calls
    bench.glance(0.1)
    assert bench.calls == calls  # a glance renews nothing
    bench.tick()
    bench.tick()
    assert [call[0] for call in bench.actuator.calls[calls:]] == ["lock", "lock"]
    assert bench.loop.next_s() == pytest.approx(1001.0 + 2.5)
    bench.glance(0.4)
    assert bench.mhz == TOP_MHZ
    assert (bench.rows[-1].reason, bench.rows[-1].from_mhz, bench.rows[-1].to_mhz) == ("no_data", 700.0, TOP_MHZ)
    assert bench.tick() == []


def test_renewals_are_one_row_when_the_clock_stays() -> None:
    bench = ClockBench(THROTTLE)
    for second in range(60):
        if second % 3 == 0:
            bench.ask(700.0)
        bench.tick()
    bench.rows += bench.loop.tick(bench.now_s, THROTTLE, [])
    assert {row.reason for row in bench.rows} == {"within_limits"}
    assert [row.held for row in bench.rows] == [0, 10, 9]  # the first goes down, the others hold


def test_request_holds_all_the_same_when_the_engine_cannot_be_measured_and_the_rule_is_throttle() -> None:
    bench = ClockBench(THROTTLE)
    bench.ask(700.0)
    bench.tick(view(None))
    assert bench.mhz == 700.0


def test_clock_is_tried_again_at_the_next_tick_when_it_could_not_be_set() -> None:
    bench = ClockBench(THROTTLE)
    bench.tick()
    bench.ask(700.0)
    bench.actuator.error = RetryableError("busy")
    bench.glance(0.1)
    assert bench.loop.errors == ["clock of instance u1: busy"]
    bench.actuator.error = None
    bench.tick()
    assert bench.mhz == 700.0


# -- beside another rule ---------------------------------------------------------------------------


def test_higher_clock_wins_over_the_rule_at_once_and_while_it_is_asked_for() -> None:
    bench = ClockBench(ClockPolicy())
    for _ in range(6):
        bench.tick()
    assert bench.mhz == 810.0
    bench.ask(TOP_MHZ, lease_s=2.5)
    rows = bench.glance(0.2)
    assert bench.mhz == TOP_MHZ
    assert (rows[-1].reason, rows[-1].from_mhz, rows[-1].to_mhz) == ("within_limits", 810.0, TOP_MHZ)
    assert "The rule by itself would set 810 MHz." in rows[-1].summary
    bench.tick(after_s=0.8)
    bench.tick()
    assert bench.mhz == TOP_MHZ
    bench.tick()  # the lease is over: from where the clock is, the rule's own steps
    assert bench.mhz == 1310.0
    assert bench.rows[-1].reason == "slack"


def test_rule_keeps_its_own_choice_when_less_is_asked_for() -> None:
    bench = ClockBench(ClockPolicy())
    bench.tick()
    bench.ask(300.0)
    calls = bench.calls
    bench.glance(0.2)
    assert bench.calls == calls
    bench.tick()
    assert bench.mhz == 1210.0
    assert {row.reason for row in bench.rows} == {"slack"}


def test_ramp_is_one_run_of_decisions_when_the_rule_would_go_down_meanwhile() -> None:
    bench = ClockBench(ClockPolicy())
    for _ in range(3):
        bench.tick()
    bench.ask(TOP_MHZ, lease_s=20.0)
    for _ in range(15):
        bench.tick()
    assert bench.mhz == TOP_MHZ
    assert len(bench.rows) <= 5


@pytest.mark.parametrize("rule", ["profile", "slack", "primal_dual"])
def test_ramp_is_obeyed_when_the_rule_is_another(rule: str) -> None:
    bench = ClockBench(ClockPolicy(policy=rule))
    for _ in range(8):
        bench.tick()
    bench.ask(TOP_MHZ)
    bench.glance(0.1)
    assert bench.mhz == TOP_MHZ
    bench.tick()
    assert bench.mhz == TOP_MHZ


@pytest.mark.parametrize("policy", [ClockPolicy(policy="fixed"), ClockPolicy(policy="throttle", paused=True)])
def test_request_changes_nothing_when_clocks_are_fixed_or_paused(policy: ClockPolicy) -> None:
    bench = ClockBench(policy)
    bench.tick()
    bench.ask(500.0)
    assert bench.glance(0.1) == []
    assert bench.tick() == []
    assert bench.mhz == TOP_MHZ


def test_clock_is_at_the_top_at_once_when_more_is_asked_for_an_engine_that_cannot_be_measured() -> None:
    bench = ClockBench(ClockPolicy())
    bench.tick()
    bench.tick()
    calls = bench.calls
    bench.tick(view(None))
    assert bench.calls == calls  # left to lapse
    bench.ask(1300.0)
    bench.tick(view(None))
    assert bench.mhz == TOP_MHZ
    bench.tick(view(engine_reading()))
    assert bench.mhz == 1310.0


def test_requests_are_heard_on_when_the_clocks_are_set_back_by_two_hours() -> None:
    bench = ClockBench(THROTTLE)
    bench.now_s = 10_000.0
    bench.tick()
    bench.ask(900.0, lease_s=60.0)
    bench.tick()
    bench.now_s -= 7_200.0
    bench.loop.begin_anew()
    bench.tick()
    assert bench.mhz == TOP_MHZ
    bench.ask(600.0)
    bench.tick()
    assert bench.mhz == 600.0
