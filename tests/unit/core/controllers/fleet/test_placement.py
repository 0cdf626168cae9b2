"""mu-Serve's placement as a loop: what it takes, when it places anew, and what a starved model gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from core.controllers.fleet.placement import (
    PlacementObservation,
    PlacementOption,
    PlacementState,
    PlacingConfig,
    step,
)
from core.controllers.fleet.shared_out import NodeView
from core.observations.fleet import placement_given
from core.observations.recording import recall, record
from core.policy.presets import PRESETS
from core.policy.tuning import PlacementTuning
from core.types import ClassDemand, Mode, ModeProfile, PartitionOption, PoolKey, Reason, ScaleTo, Source

GPU = "A100-80GB"
NODES = (NodeView("lab", GPU, 8), NodeView("lab", GPU, 8))
SMALL, LARGE = "small/ALL", "large/ALL"


def option(rps: float, carries: Mapping[int, float]) -> PartitionOption:
    """`carries`: requests/s by TP degree."""
    profiles = {
        ("ALL", Mode(GPU, tp)): ModeProfile(rate, 100.0, None, None, None, Source.MODELLED)
        for tp, rate in carries.items()
    }
    return PartitionOption("whole", (ClassDemand("ALL", (rps,)),), profiles)


SERVICES = {
    "small": option(3.0, {1: 2.0, 2: 3.5, 4: 6.0, 8: 10.0}),
    "large": option(2.0, {1: 0.0, 2: 0.0, 4: 1.5, 8: 2.5}),  # a quarter of a node holds it, and not within its limits
}


def observed(kind: str, present=None, starved=(), nodes=NODES, services=None) -> PlacementObservation:
    loads = [
        load
        for name, own in (services or SERVICES).items()
        for load in placement_given.models(name, own, ["lab"], tp=8)
    ]
    return placement_given.observation(60.0, nodes, loads, present or {}, starved, PlacementTuning(kind=kind))


def placed(kind: str, **more) -> dict[tuple[str, str, Mode], int]:
    _, effects = step(None, observed(kind, **more), PlacingConfig(kind))
    return replicas(effects)


def replicas(effects) -> dict[tuple[str, str, Mode], int]:
    return {
        (own.pool.site, own.pool.request_class, mode): n
        for own in effects.commands
        if isinstance(own, ScaleTo)
        for mode, n in own.workers.items()
    }


def test_plans_of_muserve_and_alpaserve_scaling_differ_when_models_differ_in_size() -> None:
    """AlpaServe's groups are of one size, that of the large model, and the small one has a whole group. mu-Serve gives
    the small one as few GPUs of it as hold it; the others draw nothing."""
    kinds = {name: PRESETS[name].tuning.placement.kind for name in ("muserve", "alpaserve_scaling")}
    assert PRESETS["muserve"].knobs == PRESETS["alpaserve_scaling"].knobs
    found = {name: placed(kind) for name, kind in kinds.items()}
    assert found["alpaserve_scaling"] == {("lab", LARGE, Mode(GPU, 4)): 2, ("lab", SMALL, Mode(GPU, 4)): 1}
    assert found["muserve"] == {("lab", LARGE, Mode(GPU, 4)): 2, ("lab", SMALL, Mode(GPU, 1)): 2}


def test_alpaserves_groups_stay_when_on_fewer_gpus_more_would_be_late() -> None:
    options = {
        "alpaserve": PlacementOption({("lab", SMALL, Mode(GPU, 4)): 1}, 1.0),
        "power_aware": PlacementOption({("lab", SMALL, Mode(GPU, 1)): 1}, 0.9),
    }
    state, effects = step(None, PlacementObservation(0.0, options), PlacingConfig("power_aware"))
    assert state == PlacementState("alpaserve")
    assert effects.rationale.reason is Reason.WOULD_VIOLATE
    assert replicas(effects) == options["alpaserve"].replicas


@pytest.mark.parametrize("kind", ["alpaserve", "power_aware"])
def test_placement_stays_when_it_has_its_gpus_and_carries_the_load(kind: str) -> None:
    present = placed(kind)
    state, effects = step(PlacementState(kind), observed(kind, present), PlacingConfig(kind))
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_CHANGE
    assert state == PlacementState(kind)


def test_models_are_placed_anew_when_a_node_is_lost() -> None:
    present = {("lab", LARGE, Mode(GPU, 8)): 1, ("lab", SMALL, Mode(GPU, 8)): 1}
    _, effects = step(
        PlacementState("power_aware"),
        observed("power_aware", present, nodes=NODES[:1]),
        PlacingConfig("power_aware"),
    )
    assert replicas(effects) == {("lab", LARGE, Mode(GPU, 4)): 1, ("lab", SMALL, Mode(GPU, 1)): 2}


def test_models_are_placed_anew_when_more_comes_than_they_carry() -> None:
    present = placed("power_aware")
    more = SERVICES | {"small": option(9.0, {1: 2.0, 2: 3.5, 4: 6.0, 8: 10.0})}
    obs = observed("power_aware", present, services=more)
    _, effects = step(PlacementState("power_aware"), obs, PlacingConfig("power_aware"))
    assert replicas(effects) == {("lab", SMALL, Mode(GPU, 1)): 5}  # the large model's stay


def test_starved_model_gets_a_replica_on_the_fewest_free_gpus_and_no_second_before_the_first_serves() -> None:
    present = placed("power_aware")
    config = PlacingConfig("power_aware", settle_s=120.0)
    obs = observed("power_aware", present, starved=[SMALL])
    state, effects = step(PlacementState("power_aware"), obs, config)
    assert effects.commands == (ScaleTo(PoolKey("lab", SMALL), {Mode(GPU, 1): 3}),)
    assert effects.rationale.reason is Reason.CONGESTED
    assert state is not None
    grown = replace(obs, present={**present, ("lab", SMALL, Mode(GPU, 1)): 3})
    for at_s, changes in ((obs.now_s + 119.0, 0), (obs.now_s + 120.0, 1)):
        _, effects = step(state, replace(grown, now_s=at_s), config)
        assert len(effects.commands) == changes


def test_shortage_is_said_when_no_gpu_is_free_for_a_starved_model() -> None:
    present = {("lab", LARGE, Mode(GPU, 8)): 1, ("lab", SMALL, Mode(GPU, 8)): 1}
    obs = observed("alpaserve", present, starved=[SMALL])
    _, effects = step(PlacementState("alpaserve"), obs, PlacingConfig("alpaserve"))
    assert (effects.commands, effects.rationale.reason) == ((), Reason.AT_LIMIT)


def test_what_a_turn_is_given_and_answers_can_be_recorded() -> None:
    obs = observed("power_aware", placed("power_aware"), starved=[SMALL])
    assert recall(record(obs)) == obs
    state, _ = step(PlacementState("power_aware"), obs, PlacingConfig("power_aware"))
    assert recall(record(state)) == state


def test_nothing_is_placed_when_no_gpu_serves_in_time() -> None:
    late = {"large": option(2.0, {8: 0.0})}
    state, effects = step(None, observed("power_aware", services=late), PlacingConfig("power_aware"))
    assert (state, effects.commands, effects.rationale.reason) == (None, (), Reason.INFEASIBLE)
