"""Each clock rule moves the clock as its paper says, by what engines tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.controllers.clock.muserve_clock import EARLY_S
from core.engine import measured
from core.engine.engine_model import GPUS
from core.engine.profiles import Point, Profile
from core.observations.clock_given import curves
from core.observations.mode_profile import Lengths
from core.ports import EngineReading
from core.types import Source
from pools.agent.clocks.clock_rules import look_period_s, rule_of
from pools.agent.clocks.engine_figures import EngineKind, Figures, ProfileShape
from pools.agent.clocks.engine_view import Seen
from pools.wire import ClockPolicy
from tests.fakes.node import engine_reading
from tests.unit.pools.agent.clocks.clock_bench import BOTTOM_MHZ, LIMITS, TOP_MHZ, ClockBench, view

KIND = EngineKind("Llama3-70B", "A100-80GB", 4, "vllm-v1")


class Traffic:
    """An engine's counters under a steady load."""

    def __init__(self, prompt_tokens: float = 512.0, output_tokens: float = 256.0) -> None:
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.requests = 0.0

    def after(self, requests: float, **changes: Any) -> EngineReading:
        self.requests += requests
        totals = {
            "requests_total": self.requests,
            "request_prompt_tokens_total": self.requests * self.prompt_tokens,
            "request_output_tokens_total": self.requests * self.output_tokens,
        }
        return engine_reading(**{**totals, **changes})


# -- primal-dual -----------------------------------------------------------------------------------


BY_CONSTANTS = ClockPolicy(policy="primal_dual", by_profile=False)


def settled(policy: ClockPolicy, running: int, periods: int = 60) -> float:
    bench = ClockBench(policy)
    for _ in range(periods):
        bench.tick(view(engine_reading(running=running)))
    return bench.mhz


def test_clock_is_higher_the_more_requests_run_when_the_rule_is_primal_dual() -> None:
    clocks = [settled(BY_CONSTANTS, running) for running in (0, 2, 6, 30)]
    assert clocks == sorted(clocks)
    assert clocks[0] == BOTTOM_MHZ
    assert clocks[-1] == TOP_MHZ
    assert clocks[1] < clocks[2]


def test_knobs_are_heeded_by_name_when_the_rule_is_primal_dual() -> None:
    cautious = settled(ClockPolicy(policy="primal_dual", full_at=64.0), 6)
    assert cautious < settled(ClockPolicy(policy="primal_dual"), 6)
    assert settled(ClockPolicy(policy="primal_dual", beta=3.0), 6) < settled(ClockPolicy(policy="primal_dual"), 6)


def test_clock_takes_least_energy_a_token_by_the_engines_profile_when_the_rule_is_primal_dual() -> None:
    policy = ClockPolicy(policy="primal_dual")
    bench, blind = ClockBench(policy), ClockBench(policy)
    traffic = Traffic()
    for _ in range(40):
        reading = traffic.after(1.0, running=8)
        bench.tick(view(reading))
        blind.tick(view(reading, model="a model of nobody's"))
    profile = Figures().profile(KIND, Lengths(512.0, 256.0).rounded, ProfileShape())
    assert profile is not None
    at = curves(profile, Lengths(512.0, 256.0).rounded.output_tokens, 8.0)
    grid = np.arange(at.least_mhz(LIMITS), TOP_MHZ, 5.0)
    best = float(min(at.power_w(mhz) / at.rate(mhz) for mhz in grid))
    assert at.power_w(bench.mhz) / at.rate(bench.mhz) <= 1.02 * best
    assert bench.mhz < TOP_MHZ
    assert "By constants" not in bench.rows[-1].summary
    assert "By constants: nobody has a profile" in blind.rows[-1].summary
    bench.tick(view(traffic.after(1.0, running=8, tpot_s=0.3)))
    bench.tick(view(traffic.after(1.0, running=8, tpot_s=0.3)))
    assert bench.mhz >= 0.99 * TOP_MHZ  # while a limit is missed


# -- profile ---------------------------------------------------------------------------------------


def profiled(bench: ClockBench, rps: float, seconds: int = 12, **changes: Any) -> float:
    traffic = Traffic()
    for _ in range(seconds):
        bench.tick(view(traffic.after(rps, **changes)))
    return bench.mhz


def best_mhz(rps: float, shape: ProfileShape = ProfileShape()) -> float:  # noqa: B008  it is a value
    """The feasible clock of least power, by looking at all of them."""
    profile = Figures().profile(KIND, Lengths(512.0, 256.0).rounded, shape)
    assert profile is not None
    assert LIMITS.ttft_s is not None
    assert LIMITS.tpot_s is not None
    ttft_s, tpot_s, watts = (values[:, 0] for values in profile.at(np.array([rps])))
    keeps = (ttft_s <= LIMITS.ttft_s) & (tpot_s <= LIMITS.tpot_s)
    return float(profile.mhz[np.argmin(np.where(keeps, watts, np.inf))]) if keeps.any() else TOP_MHZ


def test_clock_is_the_feasible_one_of_least_power_when_the_rule_is_profile() -> None:
    policy = ClockPolicy(policy="profile", period_s=5.0)
    found = {rps: profiled(ClockBench(policy), rps) for rps in (0.2, 1.0, 2.0, 50.0)}
    assert found == {rps: best_mhz(rps) for rps in found}
    assert found[0.2] < TOP_MHZ
    assert found[50.0] == TOP_MHZ  # more than it carries at any clock


def test_decisions_come_each_five_seconds_with_what_they_rest_on_when_the_rule_is_profile() -> None:
    bench = ClockBench(ClockPolicy(policy="profile", period_s=5.0))
    profiled(bench, 1.0, seconds=11)
    assert [row.at_s - 1000.0 for row in bench.rows] == [1.0, 6.0, 11.0]
    assert [row.reason for row in bench.rows] == ["no_data", "slack", "no_change"]
    inputs = bench.rows[1].inputs
    assert inputs["load_rps"] == pytest.approx(1.0)
    assert inputs["prompt_tokens"] == pytest.approx(512.0, rel=0.05)
    assert inputs["output_tokens"] == pytest.approx(256.0, rel=0.05)
    assert (inputs["rule"], inputs["source"], inputs["from_mhz"]) == ("profile", "modelled", TOP_MHZ)


def test_present_clock_is_ruled_out_when_latencies_are_over_their_limits() -> None:
    policy = ClockPolicy(policy="profile", period_s=5.0)
    calm, late = ClockBench(policy), ClockBench(policy)
    traffic = Traffic()
    for _ in range(6):
        reading = traffic.after(1.0)
        calm.tick(view(reading))
        late.tick(view(reading))
    low_mhz = late.mhz
    for second in range(5):
        reading = traffic.after(1.0)
        calm.tick(view(reading))
        late.tick(view(replace(reading, tpot_s=0.2 if second == 1 else 0.05)))  # once is enough
    assert calm.mhz == low_mhz
    assert late.mhz > low_mhz


def test_clock_stays_at_the_top_when_nothing_is_known_of_the_engine_or_its_requests() -> None:
    policy = ClockPolicy(policy="profile", period_s=1.0)
    unheard, idle = ClockBench(policy), ClockBench(policy)
    traffic = Traffic()
    for _ in range(4):
        unheard.tick(view(traffic.after(1.0), model="a model of nobody's"))
        idle.tick(view(Traffic().after(0.0)))
    assert [unheard.mhz, idle.mhz] == [TOP_MHZ, TOP_MHZ]
    assert {row.reason for row in unheard.rows + idle.rows} == {"no_data"}


def test_latencies_seen_are_held_against_whole_limits_when_clocks_keep_shares_of_them() -> None:
    """Limits are shares already. A TPOT of 0.2 s is over 0.15 s, not over the whole limit, 0.3 s."""
    late: dict[float, set[str]] = {}
    for share in (0.5, 1.0):
        bench = ClockBench(ClockPolicy(policy="profile", period_s=5.0, tpot_share=share))
        profiled(bench, 1.0, seconds=7)
        low_mhz = bench.mhz
        profiled(bench, 1.0, seconds=5, tpot_s=0.2)
        late[share] = {"higher"} if bench.mhz > low_mhz else set()
    assert late == {0.5: set(), 1.0: {"higher"}}


@pytest.mark.parametrize(
    ("changes", "lowest_mhz"),
    [
        ({"clock_floor": "voltage"}, GPUS["A100-80GB"].f_v),
        ({"clock_floor_mhz": 1200.0}, 1200.0),
        ({"clock_floor": "voltage", "clock_floor_mhz": 900.0}, 900.0),
        ({"clock_floor_mhz": 5000.0}, TOP_MHZ),
    ],
)
def test_no_rule_goes_below_the_floor_of_the_policy(changes: dict[str, Any], lowest_mhz: float) -> None:
    bench = ClockBench(ClockPolicy(**changes))
    for _ in range(15):
        bench.tick()
    assert bench.mhz == lowest_mhz
    by_profile = ClockBench(ClockPolicy(policy="profile", period_s=5.0, **changes))
    shape = ProfileShape(200.0, changes.get("clock_floor", "gpu"), changes.get("clock_floor_mhz"))
    assert profiled(by_profile, 0.2) == best_mhz(0.2, shape)
    bench.policy = ClockPolicy(fixed_mhz=500.0, **changes)
    bench.tick()
    assert bench.mhz == 500.0  # by hand


def test_floor_is_the_gpus_when_nobody_knows_where_its_voltage_stops_falling() -> None:
    bench = ClockBench(ClockPolicy(clock_floor="voltage"))
    for _ in range(15):
        bench.tick(view(gpu_type="one of nobody's"))
    assert bench.mhz == BOTTOM_MHZ


@pytest.fixture
def publish() -> Iterator[Callable[[Profile], object]]:
    """Makes a profile this process's, until the test is over."""
    yield lambda profile: measured.publish((profile,))
    measured.publish(())


def test_measured_profile_goes_before_the_engine_model_when_there_is_one(publish: Callable[[Profile], object]) -> None:
    """A made-up engine, alike fast at all clocks, that draws least at 1200 MHz."""
    watts = {800.0: 900.0, 1000.0: 800.0, 1200.0: 500.0, 1410.0: 1000.0}
    points = tuple(
        Point(prefill, mhz, batch, 512 * batch, 0.02 + prefill * 1e-5 + batch * 1e-4, power)
        for mhz, power in watts.items()
        for prefill in (0, 512, 2048)
        for batch in (0, 1, 64)
        if prefill or batch
    )
    publish(Profile(KIND.model, KIND.gpu, KIND.tp, KIND.engine, points, Source.MEASURED, "a test"))
    bench = ClockBench(ClockPolicy(policy="profile", period_s=5.0))
    profiled(bench, 4.0)
    assert bench.mhz == 1200.0
    assert bench.rows[-1].inputs["source"] == "measured"


@pytest.mark.parametrize(
    ("own", "chunk_tokens", "waiting"),
    [({}, 0, 5), ({"full_iteration": True}, 0, 1), ({"full_iteration": True}, 512, 3)],
)
def test_requests_that_the_planned_iteration_takes_in_are_no_queue(
    own: dict[str, Any], chunk_tokens: int, waiting: int
) -> None:
    """Prompts of 512 tokens: four are in an iteration of 2,048 tokens, two in one with two chunks of 512."""
    rule, seen, traffic = rule_of(ClockPolicy(policy="profile", **own), Figures()), Seen(), Traffic()
    assert rule is not None
    for second in range(3):
        seen.add(float(second), traffic.after(1.0))
    engine = view(traffic.after(1.0, waiting=5), chunk_tokens=chunk_tokens)
    _, why = rule.step(None, 3.0, engine, seen)
    assert why is not None
    assert why.inputs["waiting"] == waiting


def test_late_first_token_moves_no_clock_when_the_policy_does_not_count_it() -> None:
    higher = {}
    for counts in (True, False):
        bench = ClockBench(ClockPolicy(policy="profile", period_s=5.0, counts_ttft=counts))
        profiled(bench, 0.2, seconds=12)
        calm_mhz = bench.mhz
        profiled(bench, 0.2, seconds=5, ttft_s=1.0)
        higher[counts] = bench.mhz > calm_mhz
    assert higher == {True: True, False: False}


# -- slack -----------------------------------------------------------------------------------------


def run_slack(bench: ClockBench, reading: EngineReading, seconds: int) -> None:
    for _ in range(seconds):
        bench.tick(view(reading), after_s=0.5)
        bench.glance(0.5, reading)


def test_latencies_are_sampled_each_half_second_and_acted_on_each_second_when_the_rule_is_slack() -> None:
    bench = ClockBench(ClockPolicy(policy="slack"))
    assert look_period_s(bench.policy) == 0.5
    bench.tick()
    assert bench.mhz == TOP_MHZ
    assert [row.reason for row in bench.rows] == ["policy"]  # it starts from the default
    clocks = []
    for _ in range(3):
        assert bench.loop.next_s() == bench.now_s + 0.5
        assert bench.loop.wanting(bench.now_s + 0.5) == ["u1"]
        bench.glance(0.5, engine_reading())
        clocks.append(bench.mhz)
        bench.tick(after_s=0.5)
        clocks.append(bench.mhz)
    assert clocks == [1410.0, 1310.0, 1310.0, 1210.0, 1210.0, 1110.0]
    assert [(row.reason, row.to_mhz) for row in bench.rows] == [("policy", TOP_MHZ), ("slack", 1310.0)]


def test_clock_doubles_when_the_worse_of_two_samples_has_too_little_slack() -> None:
    bench = ClockBench(ClockPolicy(policy="slack"))
    run_slack(bench, engine_reading(), 10)
    assert bench.mhz == 510.0
    bench.tick(after_s=0.5)
    bench.glance(0.5, engine_reading(running=1, tpot_s=0.149))  # a slack of 0.7 %
    assert bench.mhz == 410.0
    bench.tick(view(engine_reading(running=1, tpot_s=0.01)), after_s=0.5)
    assert (bench.rows[-1].reason, bench.mhz) == ("congested", 820.0)
    assert bench.rows[-1].inputs["tpot_latency_s"] == 0.149


def test_clock_goes_lower_the_less_latencies_depend_on_it_when_the_rule_is_slack() -> None:
    """One decode at a time is bound by memory. Where it is not known, all latency counts as bound by the clock."""
    latencies = {"running": 1, "ttft_s": 0.05, "tpot_s": 0.12, "e2e_s": 5.0}

    def lowest(traffic: Traffic | None) -> float:
        bench = ClockBench(ClockPolicy(policy="slack"))
        for _ in range(20):
            bench.tick(view(traffic.after(1.0, **latencies) if traffic else engine_reading(**latencies)))
        return bench.mhz

    known_mhz, unknown_mhz = lowest(Traffic(prompt_tokens=64.0)), lowest(None)
    assert known_mhz < 400.0
    # w A STEP / f / T < slack - 0.05 at w = 1: down to 0.12 x 100 / (0.15 x 0.15) = 533 MHz, and one step more
    assert 433.0 <= unknown_mhz < 533.0


def test_actions_are_not_a_sample_late_when_looks_jitter() -> None:
    bench = ClockBench(ClockPolicy(policy="slack"))
    bench.tick()
    for number in range(40):
        early_s = 0.02 * (-1) ** number
        if number % 2:
            bench.tick(after_s=0.5 + early_s)
        else:
            bench.glance(0.5 + early_s, engine_reading())
    assert sum(row.held or 1 for row in bench.rows[1:]) + bench_held(bench) >= 19


def bench_held(bench: ClockBench) -> int:
    """Decisions that no row tells of yet."""
    return sum(row.held for row in bench.loop.tick(bench.now_s, bench.policy, []))


# -- all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["primal_dual", "profile", "slack", "throttle", "retail", "deadline", "fixed"])
def test_clock_is_given_back_and_taken_anew_when_the_rule_changes(policy: str) -> None:
    bench = ClockBench(ClockPolicy())
    for _ in range(6):
        bench.tick()
    assert bench.mhz == 810.0
    bench.policy = ClockPolicy(policy=policy)
    rows = bench.tick()
    given_back = rows[1] if rows[0].held else rows[0]
    assert (given_back.reason, given_back.from_mhz, given_back.to_mhz) == ("policy", 810.0, TOP_MHZ)
    assert policy in given_back.summary
    assert all(row.from_mhz == TOP_MHZ for row in rows[rows.index(given_back) + 1 :])
    bench.policy = ClockPolicy()
    bench.tick()
    bench.tick()
    assert bench.mhz == 1210.0  # two steps from the top


def test_clock_goes_on_from_where_it_is_when_only_a_knob_changes() -> None:
    bench = ClockBench(ClockPolicy())
    bench.tick()
    bench.policy = ClockPolicy(decrease_mhz=300.0)
    bench.tick()
    assert bench.mhz == 1010.0
    assert [row.reason for row in bench.rows] == ["slack"]


def test_each_engine_has_its_own_rule_when_services_differ() -> None:
    bench = ClockBench(ClockPolicy(policy="fixed"))
    engines = [view(), view(uid="u2", gpu_uuids=("G4",), clock=ClockPolicy(decrease_mhz=200.0, lease_s=7.0))]
    bench.loop.tick(1001.0, bench.policy, engines)
    assert bench.actuator.calls == [("reset", ("G0", "G1", "G2", "G3")), ("lock", ("G4",), 1210.0, 7.0)]


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "primal_dual", "full_at": -1.0},
        {"policy": "profile", "min_saving": 2.0},
        {"policy": "slack", "reserve": 1.0},
        {"policy": "slack", "sample_s": 0.0},
        {"policy": "throttle", "lease_s": 0.0},
    ],
)
def test_clock_stays_at_the_top_and_it_is_said_when_knobs_make_no_sense(changes: dict[str, Any]) -> None:
    bench = ClockBench(ClockPolicy(**changes))
    bench.ask(500.0)
    bench.tick()
    bench.glance(0.1)
    bench.tick()
    assert bench.mhz == TOP_MHZ
    assert len(bench.loop.errors) == 1
    assert bench.loop.errors[0].startswith("clock policy: ")


def test_rule_looks_no_earlier_than_half_a_period_when_the_period_is_short() -> None:
    rule = rule_of(ClockPolicy(policy="slack", period_s=0.2, sample_s=0.2), Figures())
    assert rule is not None
    assert rule.period_s >= EARLY_S


# -- thresholds ------------------------------------------------------------------------------------


def test_clock_goes_by_the_busier_of_cache_and_batch_when_the_rule_is_threshold() -> None:
    bench = ClockBench(ClockPolicy(policy="threshold", period_s=1.0, clock_step_mhz=50.0))
    bench.tick(view(engine_reading(kv_usage=0.1, running=2), max_num_seqs=10))
    bench.tick(view(engine_reading(kv_usage=0.1, running=2), max_num_seqs=10))
    assert bench.mhz == TOP_MHZ - 100.0
    bench.tick(view(engine_reading(kv_usage=0.1, running=6), max_num_seqs=10))
    assert bench.mhz == TOP_MHZ - 100.0, "in between"
    bench.tick(view(engine_reading(kv_usage=0.1, running=2)))
    assert bench.mhz == TOP_MHZ - 100.0, "not known"
    bench.tick(view(engine_reading(kv_usage=0.8, running=2), max_num_seqs=10))
    assert bench.mhz == TOP_MHZ
