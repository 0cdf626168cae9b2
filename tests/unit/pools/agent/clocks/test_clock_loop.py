"""The node's clock loop: leases, policy, and run-length encoding of its decisions."""

from __future__ import annotations

from typing import Any

import pytest

from core.ports import RetryableError
from core.types import Limits
from pools.agent.clocks.clock_log import REPORT_EVERY_S, Decided, DecisionLog
from pools.agent.clocks.clock_loop import ClockLoop
from pools.agent.clocks.engine_view import EngineView
from pools.wire import ClockDecision, ClockPolicy
from tests.fakes.node import FakeFrequencyActuator, engine_reading

TOP_MHZ, BOTTOM_MHZ = 1410.0, 210.0
MIAD = ClockPolicy(lease_s=10.0)


def view(reading: Any = "idle", **changes: Any) -> EngineView:
    values: dict[str, Any] = {
        "uid": "u1",
        "gpu_uuids": ("G0", "G1"),
        "sm_clock_mhz": TOP_MHZ,
        "min_mhz": BOTTOM_MHZ,
        "max_mhz": TOP_MHZ,
        "limits": Limits(ttft_s=0.6, tpot_s=0.15, e2e_s=30.0),
        "reading": engine_reading() if reading == "idle" else reading,
    }
    return EngineView(**{**values, **changes})


class Bench:
    def __init__(self) -> None:
        self.actuator = FakeFrequencyActuator()
        self.loop = ClockLoop(self.actuator)
        self.now_s = 1000.0
        self.rows: list[ClockDecision] = []

    def tick(self, engine: EngineView | None, policy: ClockPolicy = MIAD, after_s: float = 1.0) -> list[ClockDecision]:
        self.now_s += after_s
        rows = self.loop.tick(self.now_s, policy, [engine] if engine else [])
        self.rows += rows
        return rows

    def locks(self) -> list[float]:
        return [float(call[2]) for call in self.actuator.calls if call[0] == "lock"]  # type: ignore[arg-type]


def test_clock_steps_down_and_is_held_under_a_lease_when_there_is_slack() -> None:
    bench = Bench()
    for _ in range(3):
        bench.tick(view())
    assert bench.actuator.calls == [("lock", ("G0", "G1"), mhz, 10.0) for mhz in (1310.0, 1210.0, 1110.0)]


def test_lease_is_renewed_each_tick_when_the_period_is_longer() -> None:
    bench = Bench()
    policy = ClockPolicy(period_s=5.0)
    for _ in range(7):
        bench.tick(view(), policy)
    assert bench.locks() == [1310.0] * 5 + [1210.0] * 2


def test_clock_doubles_and_the_lock_is_dropped_when_requests_wait() -> None:
    bench = Bench()
    for _ in range(8):
        bench.tick(view())
    assert bench.locks()[-1] == 610.0
    rows = bench.tick(view(engine_reading(waiting=2)))
    assert bench.locks()[-1] == 1220.0
    assert (rows[-1].reason, rows[-1].from_mhz, rows[-1].to_mhz) == ("congested", 610.0, 1220.0)
    bench.tick(view(engine_reading(waiting=2)))
    bench.tick(view(engine_reading(waiting=2)))
    assert bench.actuator.calls[-1] == ("reset", ("G0", "G1"))
    assert [call[0] for call in bench.actuator.calls].count("reset") == 1  # at the top nothing is renewed


def test_worst_latency_of_the_period_counts_when_it_has_several_ticks() -> None:
    bench = Bench()
    policy = ClockPolicy(period_s=3.0)
    bench.tick(view(), policy)
    for tpot_s in (0.2, 0.01, None):  # over the limit in the first second only
        rows = bench.tick(view(engine_reading(running=1, tpot_s=tpot_s)), policy)
    assert rows[-1].reason == "congested"
    assert rows[-1].inputs["tpot_s"] == 0.2
    bench.tick(view(), policy)
    bench.tick(view(), policy)
    assert bench.tick(view(), policy)[-1].reason == "slack"


def test_equal_decisions_become_one_row_when_they_are_held() -> None:
    bench = Bench()
    for _ in range(13):  # twelve steps to the bottom, then held
        bench.tick(view())
    assert [(row.reason, row.held, row.from_mhz, row.to_mhz) for row in bench.rows] == [
        ("slack", 0, 1410.0, 1310.0),
        ("slack", 11, 1310.0, 210.0),
        ("at_limit", 0, 210.0, 210.0),
    ]
    bench.rows.clear()
    for _ in range(int(2 * REPORT_EVERY_S)):
        bench.tick(view())
    assert [(row.reason, row.held) for row in bench.rows] == [("at_limit", 30), ("at_limit", 30)]


def test_clocks_that_gateways_ask_for_become_a_row_each_few_seconds() -> None:
    log = DecisionLog("a")
    rows = []
    for tenth in range(201):
        mhz = 210.0 if tenth % 2 else 1410.0 - tenth
        reason = "within_limits" if tenth % 3 else "at_limit"
        rows += log.add(Decided(0.1 * tenth, reason, "The lowest.", 705.0, mhz, {"asked_mhz": mhz}, asked=True))
    assert [row.held for row in rows] == [0, 100, 100]
    assert rows[1].summary == "The lowest. It is the last of 100, from 210 to 1408 MHz."
    assert (rows[2].inputs["least_mhz"], rows[2].inputs["most_mhz"]) == (210.0, 1308.0)
    assert (rows[2].at_s, rows[2].to_mhz) == (20.0, 1210.0)


def test_no_decision_is_lost_when_rows_are_added_up() -> None:
    bench = Bench()
    waiting = [0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1] * 9
    for number in waiting:
        bench.tick(view(engine_reading(waiting=number)))
    bench.tick(None)  # the engine ends
    assert sum(row.held or 1 for row in bench.rows) == len(waiting)


@pytest.mark.parametrize(
    "broken",
    [
        view(None),
        view(engine_reading(running=None)),
        view(engine_reading(waiting=None)),
        view(sm_clock_mhz=None),
    ],
)
def test_lease_is_left_to_lapse_when_the_engine_cannot_be_measured(broken: EngineView) -> None:
    bench = Bench()
    bench.tick(view())
    bench.tick(view())
    calls = len(bench.actuator.calls)
    rows = bench.tick(broken)
    assert (rows[-1].reason, rows[-1].from_mhz, rows[-1].to_mhz) == ("no_data", 1210.0, TOP_MHZ)
    assert len(bench.actuator.calls) == calls
    bench.tick(view())  # measured again: from the top
    assert bench.locks()[-1] == 1310.0


@pytest.mark.parametrize("policy", [ClockPolicy(policy="fixed"), ClockPolicy(paused=True)])
def test_clock_goes_to_the_top_and_stays_when_the_policy_says_so(policy: ClockPolicy) -> None:
    bench = Bench()
    bench.tick(view())
    rows = bench.tick(view(), policy)
    assert [(row.reason, row.from_mhz, row.to_mhz) for row in rows] == [("policy", 1310.0, TOP_MHZ)]
    assert bench.actuator.calls[-1] == ("reset", ("G0", "G1"))
    calls = len(bench.actuator.calls)
    assert bench.tick(view(), policy) == []
    assert len(bench.actuator.calls) == calls


def test_clock_of_an_earlier_agent_is_reset_once_when_the_policy_is_fixed() -> None:
    bench = Bench()
    bench.tick(view(sm_clock_mhz=510.0), ClockPolicy(policy="fixed"))
    assert bench.actuator.calls == [("reset", ("G0", "G1"))]


@pytest.mark.parametrize(
    "policy", [ClockPolicy(policy="guess"), ClockPolicy(increase=1.0), ClockPolicy(lease_s=0.0, period_s=1.0)]
)
def test_clocks_stay_at_the_top_and_it_is_said_when_the_policy_makes_no_sense(policy: ClockPolicy) -> None:
    bench = Bench()
    bench.tick(view(), policy)
    assert "clock policy" in bench.loop.errors[0]
    assert bench.locks() == []


def test_lock_is_tried_again_when_it_failed() -> None:
    bench = Bench()
    bench.actuator.error = RetryableError("busy")
    bench.tick(view())
    assert bench.loop.errors == ["clock of instance u1: busy"]
    bench.actuator.error = None
    bench.tick(view())
    assert bench.locks() == [1210.0]


def test_clocks_of_one_engine_do_not_depend_on_another_when_both_run() -> None:
    bench = Bench()
    engines = [view(), view(engine_reading(waiting=1), uid="u2", gpu_uuids=("G2",))]
    for second in range(5):
        bench.loop.tick(2000.0 + second, MIAD, engines)
    assert bench.locks() == [1310.0, 1210.0, 1110.0, 1010.0, 910.0]
    assert bench.actuator.calls.count(("reset", ("G2",))) == 1


def test_nothing_is_set_and_what_would_be_is_reported_when_decisions_only_advise() -> None:
    bench = Bench()
    advise = ClockPolicy(advise=True)
    (row,) = bench.tick(view(), advise)
    assert (row.from_mhz, row.to_mhz, row.inputs["advised_mhz"]) == (TOP_MHZ, TOP_MHZ, 1310.0)
    assert row.summary.startswith("Advice, not carried out: 1310 MHz; it stays at 1410 MHz.")
    assert bench.tick(view(), advise) == []  # the same again: held
    assert bench.locks() == []
    bench.tick(view())
    assert bench.locks() == [1310.0]  # it acts again, from where it stands


def test_clock_goes_down_to_the_floor_and_no_further_when_a_person_has_approved_one() -> None:
    bench = Bench()
    approved = ClockPolicy(floor_mhz=1200.0, lease_s=10.0)
    for _ in range(4):
        bench.tick(view(), approved)
    assert bench.locks() == [1310.0, 1210.0, 1200.0, 1200.0]
    assert "Advice, not carried out: 1100 MHz; it stays at 1200 MHz." in bench.rows[-1].summary
    (row,) = bench.tick(view(), ClockPolicy(advise=True, lease_s=10.0))[-1:]  # it has ended: at once at the top
    assert (row.from_mhz, row.to_mhz) == (1200.0, TOP_MHZ)
    assert bench.actuator.calls[-1] == ("reset", ("G0", "G1"))


def test_clock_stays_where_a_person_holds_it_when_decisions_only_advise() -> None:
    bench = Bench()
    bench.tick(view(), ClockPolicy(fixed_mhz=900.0, advise=True))
    assert bench.locks() == [900.0]


def test_clock_stays_where_a_person_holds_it_when_it_is_fixed() -> None:
    bench = Bench()
    bench.tick(view())
    (row,) = bench.tick(view(), ClockPolicy(fixed_mhz=900.0))
    assert (row.to_mhz, row.summary) == (900.0, "Fixed at 900 MHz by hand.")
    assert bench.tick(view(engine_reading(waiting=9)), ClockPolicy(fixed_mhz=900.0)) == []
    assert bench.locks()[-2:] == [900.0, 900.0]  # renewed, whatever the load
    row, *_ = bench.tick(view(), MIAD)
    assert row.to_mhz == TOP_MHZ  # the rule starts from there again
    fresh = Bench()
    (row,) = fresh.tick(view(), ClockPolicy(policy="throttle", fixed_mhz=100.0))
    assert row.to_mhz == BOTTOM_MHZ


def test_rule_decides_on_when_the_clock_is_set_back_by_two_hours() -> None:
    bench = Bench()
    bench.now_s = 10_000.0
    for _ in range(3):
        bench.tick(view())
    bench.now_s -= 7_200.0
    bench.loop.begin_anew()
    for _ in range(3):
        bench.tick(view())
    assert bench.locks()[3:] == [1310.0, 1210.0, 1110.0]


# -- engines on slices of one GPU --------------------------------------------------------------------


def test_gpu_has_the_highest_clock_that_an_engine_on_it_is_to_have() -> None:
    bench, fixed = Bench(), ClockPolicy(fixed_mhz=1200.0)
    rows: list[ClockDecision] = []
    for _ in range(40):
        bench.now_s += 1.0
        low, high = view(uid="low", gpu_uuids=("G0",)), view(uid="high", gpu_uuids=("G0",), clock=fixed)
        rows += bench.loop.tick(bench.now_s, MIAD, [low, high])
    assert bench.locks()[0] == 1310.0
    assert set(bench.locks()[-4:]) == {1200.0}
    shared = [row for row in rows if row.instance_uid == "low" and row.inputs.get("gpu_clock_of") == "high"]
    assert "Its GPU has 1200 MHz, for instance high that shares it." in str(shared[0].summary)
    bench.tick(view(uid="low", gpu_uuids=("G0",)))  # the other one has gone
    assert bench.locks()[-1] == BOTTOM_MHZ


def test_gpu_is_left_to_lapse_while_one_on_it_cannot_be_measured() -> None:
    bench = Bench()
    engines = [view(uid="a", gpu_uuids=("G0",)), view(None, uid="b", gpu_uuids=("G0",))]
    for _ in range(3):
        bench.now_s += 1.0
        bench.loop.tick(bench.now_s, MIAD, engines)
    assert bench.actuator.calls == []
