import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet.energy_mix import MixMode, power_w, solve
from core.controllers.fleet.explain import gpus_of
from core.controllers.fleet.pool_loop import PoolLoopConfig
from core.controllers.fleet.shard import step, step_pool
from core.engine.engine_model import gpu
from core.types import (
    ChangeKind,
    Limits,
    Mode,
    PoolDecision,
    PoolKey,
    PoolView,
    Reason,
    SetTpDegrees,
    ShardObservation,
)
from tests.unit.core.fleets import A2, A4, A8, PROFILES, pool, profile

CONFIG = PoolLoopConfig()
A100S = {"A100-80GB": 8}
MIX = {A2: MixMode(2.0, 160.0, 740.0), A4: MixMode(5.0, 320.0, 1_400.0), A8: MixMode(12.0, 650.0, 2_300.0)}


def counted_out(load_rps: float, need_rps: float) -> float | None:
    """Least power over every mix of MIX on 8 GPUs, and over every split of the load in it (ends of the polytope)."""
    powers = []
    for counts in itertools.product(range(5), range(3), range(2)):
        mix = dict(zip((A2, A4, A8), counts, strict=True))
        capacity = sum(MIX[mode].max_rps * count for mode, count in mix.items())
        if sum(mode.tp * count for mode, count in mix.items()) > 8 or capacity < max(need_rps, load_rps):
            continue
        for order in itertools.permutations(MIX):
            drawn, left = 0.0, load_rps
            for mode in order:
                share = min(left, MIX[mode].max_rps * mix[mode])
                drawn += mix[mode] * MIX[mode].idle_w + share * MIX[mode].j_per_request
                left -= share
            powers.append(drawn)
    return min(powers, default=None)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 13.0), st.floats(1.0, 1.3))
def test_mix_is_the_best_of_all_when_counted_out(load_rps: float, alpha: float) -> None:
    mix = solve(A100S, MIX, load_rps, alpha * load_rps + 0.05, gap=0.0)
    expected = counted_out(load_rps, alpha * load_rps + 0.05)
    if expected is None:
        assert mix is None
    else:
        assert mix is not None
        assert mix.power_w == pytest.approx(expected, rel=1e-5)
        assert gpus_of(mix.workers)["A100-80GB"] <= 8


def test_power_is_unknown_when_a_mix_cannot_carry_the_load() -> None:
    assert power_w({A2: 1}, MIX, 2.5) is None
    assert power_w({A2: 1}, MIX, 0.0) == 160.0


def test_there_is_no_mix_when_nothing_fits() -> None:
    assert solve({"A100-80GB": 1}, MIX, 1.0, 1.0) is None
    assert solve({}, MIX, 1.0, 1.0) is None


def decide(found: PoolView, epoch_s: float, transition_s: float, **more: Any) -> PoolDecision:
    return step_pool(found, ShardObservation(0.0, epoch_s, (found,), transition_s, **more), CONFIG)


def test_mix_changes_when_it_pays_off() -> None:
    decision = decide(pool(1.0, A100S, {A8: 1}), 300.0, 10.0)
    assert dict(decision.workers) == {A2: 1}
    assert decision.changed
    assert decision.rationale.reason is Reason.OPTIMAL
    assert "1 x A100-80GB/TP8 -> 1 x A100-80GB/TP2, saves" in decision.rationale.summary


def test_mix_stays_when_the_transition_costs_more_than_it_saves() -> None:
    decision = decide(pool(1.0, A100S, {A8: 1}), 20.0, 60.0)
    assert not decision.changed
    assert decision.rationale.reason is Reason.NOT_WORTH_IT
    assert decision.rationale.inputs["saving_j"] < decision.rationale.inputs["transition_j"]
    assert [row.chosen for row in decision.rationale.alternatives] == [False, True]


def test_change_costs_what_its_kind_takes() -> None:
    """In place new instances draw under load meanwhile; else as one that starts, and nothing is saved before then."""
    found = pool(1.0, A100S, {A8: 1})
    params, busy_w = gpu("A100-80GB"), PROFILES[A2].power_w
    for kind, watts, saved_s in (
        (ChangeKind.IN_PLACE, busy_w, 300.0),
        (ChangeKind.SHADOW, 2 * params.loaded_idle_w(params.f_max), 260.0),
        (ChangeKind.RESTART, 2 * params.loaded_idle_w(params.f_max), 260.0),
    ):
        inputs = decide(found, 300.0, 999.0, starts_s={A2: 40.0}, changes={found.key: kind}).rationale.inputs
        assert (inputs["change"], inputs["starts_s"]) == (kind.value, {A2.name: 40.0})
        assert inputs["transition_j"] == pytest.approx(40.0 * watts)
        rows = {row.chosen: row.power_w for row in decide(found, 300.0, 1.0).rationale.alternatives}
        assert inputs["saving_j"] == pytest.approx((rows[False] - rows[True]) * saved_s)  # type: ignore[operator]


@given(st.sampled_from(ChangeKind), st.floats(0.0, 400.0), st.floats(0.0, 100.0))
def test_cost_grows_with_what_starts_take(kind: ChangeKind, start_s: float, more_s: float) -> None:
    found = pool(1.0, A100S, {A8: 1})
    less, more = (
        decide(found, 300.0, 1.0, starts_s={A2: took_s}, changes={found.key: kind})
        for took_s in (start_s, start_s + more_s)
    )
    assert more.rationale.inputs["transition_j"] >= less.rationale.inputs["transition_j"]
    assert more.rationale.inputs["saving_j"] <= less.rationale.inputs["saving_j"]
    assert less.changed or not more.changed


def test_mix_stays_when_it_is_the_best() -> None:
    decision = decide(pool(1.0, A100S, {A2: 1}), 300.0, 10.0)
    assert (decision.changed, decision.rationale.reason) == (False, Reason.NO_CHANGE)


def test_mix_changes_at_any_cost_when_the_present_one_cannot_carry_the_need() -> None:
    decision = decide(pool(9.0, A100S, {A2: 4}), 1.0, 600.0)
    assert dict(decision.workers) == {A8: 1}
    assert "cannot carry 9.90 requests/s" in decision.rationale.summary


def test_mix_changes_when_the_present_one_breaks_the_limits() -> None:
    figures = {A2: profile(9.0, 700.0, tpot_s=0.2), A4: profile(5.0, 1_400.0, tpot_s=0.1)}
    decision = decide(pool(1.0, A100S, {A2: 2}, profiles=figures, limits=Limits(tpot_s=0.15)), 300.0, 10.0)
    assert dict(decision.workers) == {A4: 1}


def test_workers_stay_when_no_mix_carries_the_need() -> None:
    decision = decide(pool(50.0, A100S, {A4: 2}), 300.0, 10.0)
    assert dict(decision.workers) == {A4: 2}
    assert decision.rationale.reason is Reason.INFEASIBLE
    assert decision.rationale.alternatives[0].failed == "carries 10.00 of 55.00 requests/s"


def test_pool_is_left_alone_when_it_has_no_workers() -> None:
    decision = decide(pool(1.0, A100S), 300.0, 10.0)
    assert (decision.changed, decision.rationale.reason) == (False, Reason.NO_CHANGE)


def test_idle_power_is_the_engine_models_when_the_gpu_is_known() -> None:
    decision = decide(pool(1.0, A100S, {A2: 1}), 300.0, 10.0)
    a100 = gpu("A100-80GB")
    assert decision.rationale.inputs["profiles"]["A100-80GB/TP2"]["idle_w"] == pytest.approx(
        2 * a100.loaded_idle_w(a100.f_max)
    )


def test_idling_saves_nothing_when_the_gpu_is_unknown() -> None:
    exotic = Mode("L40S", 2)
    found = pool(1.0, {"L40S": 2}, {exotic: 1}, profiles={exotic: profile(2.0, 600.0)})
    decision = decide(found, 300.0, 10.0)
    assert decision.rationale.alternatives[0].power_w == pytest.approx(600.0)


def test_commands_name_only_pools_that_change_when_stepped() -> None:
    calm = replace(pool(1.0, A100S, {A2: 1}), key=PoolKey("south", "LS"))
    obs = ShardObservation(5.0, 300.0, (pool(1.0, A100S, {A8: 1}), calm), 10.0)
    state, effects = step(None, obs, CONFIG)
    assert effects.commands == (SetTpDegrees(PoolKey("north", "LS"), {A2: 1}),)
    assert dict(state.workers[PoolKey("south", "LS")]) == {A2: 1}
    assert [(own.pool.site, own.changed) for own in effects.decisions] == [("north", True), ("south", False)]
    assert effects.next_tick_s == 305.0
    json.dumps(effects.rationale.inputs, allow_nan=False)


def test_configuration_is_refused_when_there_is_no_head_room() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PoolLoopConfig(alpha=0.5)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.0, 14.0),
    st.dictionaries(st.sampled_from([A2, A4, A8]), st.integers(0, 2), min_size=1),
    st.floats(10.0, 2_000.0),
    st.floats(0.0, 60.0),
)
def test_gpus_are_kept_and_power_never_rises_when_sharded(
    rps: float, workers: dict[Mode, int], epoch_s: float, transition_s: float
) -> None:
    decision = decide(pool(rps, A100S, workers), epoch_s, transition_s)
    held = gpus_of(workers).get("A100-80GB", 0)
    assert gpus_of(decision.workers).get("A100-80GB", 0) <= held
    rows = {row.chosen: row for row in decision.rationale.alternatives}
    if decision.changed and False in rows and rows[False].power_w is not None:
        assert (rows[True].power_w or 0.0) < rows[False].power_w
    assert set(decision.workers) <= set(PROFILES)
