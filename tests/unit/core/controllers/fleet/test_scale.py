import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet.fleet_milp import FleetPlan, FleetProblem, solve_fleet
from core.controllers.fleet import scale
from core.controllers.fleet.explain import capacity_rps, gpus_of, workers_text
from core.controllers.fleet.pool_loop import PoolLoopConfig
from core.controllers.fleet.scale import most_capacity, step, step_pool
from core.types import Limits, Mode, PoolKey, Reason, ScaleObservation, ScaleTo
from tests.unit.core.fleets import A2, A4, A8, H4, MODES, PROFILES, pool, profile

CONFIG = PoolLoopConfig()
A100S = {"A100-80GB": 8}


def test_least_power_is_chosen_when_the_budget_allows() -> None:
    decision = step_pool(pool(4.0, A100S), CONFIG)
    assert dict(decision.workers) == {A4: 1}
    assert decision.changed
    assert decision.rationale.reason is Reason.OPTIMAL
    assert "LS at north: nothing -> 1 x A100-80GB/TP4, for 4.40 requests/s" in decision.rationale.summary


def test_best_type_is_chosen_when_the_budget_has_two() -> None:
    decision = step_pool(pool(8.0, {"A100-80GB": 8, "H100-SXM-80GB": 4}), CONFIG)
    assert dict(decision.workers) == {H4: 1}


def test_workers_stay_when_another_mix_on_as_many_gpus_is_planned() -> None:
    """The mix is the shard epoch's: two TP2 carry what one TP4 does, on the same GPUs."""
    decision = step_pool(pool(3.0, A100S, {A2: 2}), CONFIG)
    assert not decision.changed
    assert dict(decision.workers) == {A2: 2}
    assert decision.rationale.reason is Reason.NO_CHANGE


def test_workers_shrink_when_demand_falls() -> None:
    decision = step_pool(pool(1.0, A100S, {A8: 1}), CONFIG)
    assert dict(decision.workers) == {A2: 1}
    assert "1 x A100-80GB/TP8 -> 1 x A100-80GB/TP2" in decision.rationale.summary


def test_whole_budget_is_used_when_it_cannot_carry_the_need() -> None:
    decision = step_pool(pool(40.0, A100S, {A2: 1}), CONFIG)
    assert dict(decision.workers) == {A8: 1}
    assert decision.rationale.reason is Reason.INFEASIBLE
    assert "its budget of 8 A100-80GB cannot carry the need" in decision.rationale.summary
    assert decision.rationale.alternatives[0].failed == "carries 12.00 of 44.00 requests/s"


def test_workers_stay_when_the_whole_budget_is_used_already() -> None:
    decision = step_pool(pool(40.0, A100S, {A8: 1}), CONFIG)
    assert not decision.changed
    assert decision.rationale.reason is Reason.INFEASIBLE


def test_workers_stay_when_no_mode_can_serve_the_class() -> None:
    slow = {mode: profile(5.0, 700.0, e2e_s=99.0) for mode in MODES}
    decision = step_pool(pool(1.0, A100S, {A2: 1}, profiles=slow, limits=Limits(e2e_s=10.0)), CONFIG)
    assert dict(decision.workers) == {A2: 1}
    assert decision.rationale.reason is Reason.INFEASIBLE


def test_pool_is_emptied_when_it_has_no_budget() -> None:
    decision = step_pool(pool(3.0, {}, {A4: 1}), CONFIG)
    assert (dict(decision.workers), decision.changed) == ({}, True)
    assert not step_pool(pool(3.0, {"A100-80GB": 0}), CONFIG).changed


def test_workers_are_cut_when_the_budget_shrank() -> None:
    decision = step_pool(pool(1.0, {"A100-80GB": 4}, {A8: 1}), CONFIG)
    assert gpus_of(decision.workers) == {"A100-80GB": 2}


def test_one_worker_is_kept_when_there_is_no_traffic() -> None:
    assert dict(step_pool(pool(0.0, A100S), CONFIG).workers) == {A2: 1}


def test_command_is_given_only_for_pools_that_change() -> None:
    calm = replace(pool(1.0, A100S, {A2: 1}), key=PoolKey("south", "LS"))
    state, effects = step(None, ScaleObservation(10.0, 300.0, (pool(4.0, A100S), calm)), CONFIG)
    assert effects.commands == (ScaleTo(PoolKey("north", "LS"), {A4: 1}),)
    assert dict(state.workers) == {PoolKey("north", "LS"): {A4: 1}, PoolKey("south", "LS"): {A2: 1}}
    assert effects.rationale.reason is Reason.OPTIMAL
    assert [(own.pool.site, own.changed) for own in effects.decisions] == [("north", True), ("south", False)]
    assert effects.next_tick_s == 610.0
    json.dumps(effects.rationale.inputs, allow_nan=False)


def test_each_pool_is_decided_once_when_the_solver_answers_otherwise_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its time limit it may: what a pool is to have and why must come from the same answer."""
    headroom = itertools.count(1.0)

    def another(problem: FleetProblem, *limits: float) -> FleetPlan:
        return solve_fleet(replace(problem, alpha=next(headroom)), *limits)

    monkeypatch.setattr(scale, "solve_fleet", another)
    pools = tuple(replace(pool(4.0, A100S), key=PoolKey(site, "LS")) for site in ("north", "south"))
    _, effects = step(None, ScaleObservation(10.0, 300.0, pools), CONFIG)
    assert next(headroom) == 3.0
    assert [own.pool for own in effects.decisions] == [own.key for own in pools]
    assert effects.commands == tuple(ScaleTo(own.pool, own.workers) for own in effects.decisions)
    for own in effects.decisions:
        (chosen,) = [row for row in own.rationale.alternatives if row.chosen]
        assert chosen.label == f"LS at {own.pool.site}: {workers_text(own.workers)}"


def test_hold_is_reported_when_no_pool_changes() -> None:
    _, effects = step(None, ScaleObservation(10.0, 300.0, (pool(1.0, A100S, {A2: 1}),)), CONFIG)
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_CHANGE
    assert "none changes" in effects.rationale.summary


def test_nothing_is_done_when_there_are_no_pools() -> None:
    _, effects = step(None, ScaleObservation(10.0, 300.0, ()), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NO_CHANGE)


def test_configuration_is_refused_when_there_is_no_head_room() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PoolLoopConfig(alpha=0.5)


@given(st.integers(0, 14), st.integers(0, 9))
def test_capacity_is_the_most_there_is_when_counted_out(a100: int, h100: int) -> None:
    best = most_capacity({"A100-80GB": a100, "H100-SXM-80GB": h100}, PROFILES)
    assert all(count <= {"A100-80GB": a100, "H100-SXM-80GB": h100}[gpu] for gpu, count in gpus_of(best).items())
    most = 0.0
    for counts in itertools.product(range(8), range(4), range(2), range(3)):
        mix = dict(zip(MODES, counts, strict=True))
        held = gpus_of(mix)
        if held.get("A100-80GB", 0) <= a100 and held.get("H100-SXM-80GB", 0) <= h100:
            most = max(most, capacity_rps(mix, PROFILES))
    assert capacity_rps(best, PROFILES) == pytest.approx(most)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.0, 30.0),
    st.sampled_from([0, 2, 4, 8, 16]),
    st.sampled_from([0, 4, 8]),
    st.dictionaries(st.sampled_from(MODES), st.integers(0, 2)),
)
def test_budget_is_kept_and_demand_carried_when_scaled(
    rps: float, a100: int, h100: int, workers: dict[Mode, int]
) -> None:
    budget = {"A100-80GB": a100, "H100-SXM-80GB": h100}
    decision = step_pool(pool(rps, budget, workers), CONFIG)
    assert all(count <= budget[gpu] for gpu, count in gpus_of(decision.workers).items())
    if decision.rationale.reason is not Reason.INFEASIBLE and (a100 or h100):
        assert capacity_rps(decision.workers, PROFILES) >= 1.1 * max(rps, 0.05) - 1e-6
