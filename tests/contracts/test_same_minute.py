"""The contract of both worlds: the same minute, as rows and as the simulator's view, gives the same decisions.

Of each step that a policy's loops take, the configuration, the observation and the answer are to be equal. Where a
service begins, at the moment 0, only its declared load is known; then comes a minute with requests on record.

What is left out: clocks (test_same_clocks) and routing (test_same_setup), which go by each engine's own figures;
what ended among requests that are under way; forecasts, which the simulator has none of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from django.db import transaction

from core.observations import asking
from core.policy import presets
from core.policy.knobs import DYNAMO
from core.policy.presets import PRESETS, Policy
from core.simulator.kernel.commands import FleetView, SimCommand
from core.simulator.policies import Plan, build, read_policy
from core.simulator.policies.throttllem.autoscale_loop import AUTOSCALE
from core.types import ChangeKind, Limits, Loop
from scheduler.control import epochs
from tests.fakes import minute as minutes
from tests.fakes.house import moment
from tests.fakes.minute import LARGE, MINUTE, MIXED, MIXED_LARGE, MIXED_STEADY, SERVERS, STEADY, Minute
from tests.fakes.taken_steps import Taken, differences, taken
from tests.integration.scheduler import each_preset

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("usual_periods")]

# Live, every policy without a carbon loop takes this step. It decides nothing where each pool may have all GPUs of its
# site, as simulated pools have from the start; and where its plan stays, which the simulated DynamoLLM makes once.
SHARED_OUT = "core.controllers.fleet.shared_out:step"
# What one world alone is given, or both otherwise, and why.
ONE_WORLD = {
    ".instance: ": "an instance has a name of its own in each world",
}
# Simulated servers of DynamoLLM move weights between their GPUs, as the paper's do; vLLM's engines have to start anew.
# Here the simulator plans with what live services can.
IN_PLACE = "core.simulator.policies.dynamollm.loops.CHANGE"
# Families of which both worlds take no step in common, and those whose simulated plan is made once, so that a live one
# that stays is left out; and why.
NO_STEP = {
    "placement": "simulated models share GPUs, which are placed on by devices; a live GPU is one instance's",
}
ONCE = {
    "dynamo": "simulated servers are cut once, as in the paper; a live service's follow its nodes",
    "split": "a simulated request's two groups are made once, as in the paper; a live service's follow its nodes",
    "throttle": "simulated engines are as many as at first, as in the paper, which has one; live ones follow the plan",
}
# Knobs that change what is observed.
CHOICES = (
    ("freesh", {"objective": "cost"}),
    ("freesh", {"partition": "four", "freeze_tp": True, "alpha": 1.3}),
    ("throttllem", {"max_rps": {"tp2": 2.6, "tp4": 9.0}, "tuning": {"throttle": {"tbt_s": 0.1}}}),
    ("throttllem", {"max_rps": {"tp2": 1.0, "tp4": 2.0}}),
    ("triton", {"max_rps": {"tp2": 0.7, "tp4": 0.8}, "tuning": {"throttle": {"tbt_s": 0.1}}}),
    ("retail", {"tp": 1}),
    ("pd_disagg", {"tp": 2}),
    ("single_pool", {"tp": 4, "fill": "enough", "alpha": 1.6}),
    ("least_loaded", {"partition": "four", "tp": 4, "slo_factor": 10.0, "carbon_period_s": 600.0}),
    ("multi_pool", {"tp": 4, "plan_tpot_share": 0.8, "fill": "enough"}),
    ("disaggregated", {"partition": "four", "tp": 2, "class_limits": True}),
    ("threshold", {"partition": "four", "alpha": 1.3, "tuning": {"threshold": {"streak": 1, "gain": 0.02}}}),
    ("freesh", {"shadow": True}),
    (
        "scale_inst",
        {"hand_down": True, "alpha": 1.3, "tuning": {"dynamo": {"down_after": 1}, "starts": {"warm_pool": 2}}},
    ),
    ("scale_inst", {"proactive": True, "scale_period_s": 600.0, "plan_ttft_share": 0.6}),
    ("dynamollm", {"alpha": 1.2, "plan_tpot_share": 0.8, "proactive": False, "tuning": {"dynamo": {"wave": 1}}}),
    ("scale_freq", {"class_limits": False, "alpha": 1.4, "plan_tpot_share": 0.5}),
    ("scale_shard", {"slo_factor": 10, "tuning": {"dynamo": {"clocks": "all", "wave": 4, "shard_alpha": 1.3}}}),
    ("greenserve", {"objective": "cost", "alpha": 1.2, "plan_ttft_share": 0.5, "plan_tpot_share": 0.6}),
    ("greenserve", {"objective": "energy", "scale_period_s": 20.0, "chunk_tokens": 0, "clock_floor": "gpu"}),
    ("greenserve", {"changes_per_hour": 4, "tuning": {"right_size": {"look_s": 30.0, "hold_s": 0.0}}}),
)
LAID_OUT_AT_ONCE = "voltanallm"  # simulated, on every GPU, so that no step is taken; live it is shared out once
COMPARED = sorted(name for name in PRESETS if PRESETS[name].family not in NO_STEP and name != LAID_OUT_AT_ONCE)
SLOW = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
SYSTEMS = ("greenserve", *each_preset.SYSTEMS)


def _each(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The papers' own systems as they are, each time; their baselines and other settings among the slow tests."""
    other = pytest.mark.slow("a baseline, or other settings")
    return [row if row[0] in SYSTEMS and not row[1] else pytest.param(*row, marks=other) for row in rows]


def minute_of(name: str, own: Mapping[str, Any] | None = None) -> Minute:
    knobs = presets.policy(name, own).knobs
    if knobs.partition != DYNAMO:
        return MINUTE
    if not knobs.whole_sites:
        return STEADY
    return SERVERS if knobs.shard == "off" else LARGE


def live(minute: Minute, policy: str, client, **knobs: Any) -> list[Taken]:
    """Takes the loops' turns of a service that begins, and then of the minute. Nothing of it stays in the database."""
    found = []
    with transaction.atomic():
        service = minutes.rows(minute, policy, knobs)
        for now in (minute.before_anything(), minute):
            minutes.write_requests(now)
            minutes.write_samples(now)
            minutes.report_nodes(client, now)
            with asking.noting() as notes:
                for loop in SLOW:
                    epoch = epochs.run(service, loop, moment(now.now_s))
                    assert epoch is None or not epoch.error, epoch.error
            found += taken(notes)
        known = service.own_policy()
        transaction.set_rollback(True)
    return [own for own in found if not (own.step == SHARED_OUT and _is_left_out(known, own))]


def _is_left_out(policy: Policy, plan: Taken) -> bool:
    moves = policy.knobs.whole_sites and policy.family != "throttle"  # whose engines are as many as planned
    return moves or (policy.family in ONCE and not plan.commands)


def simulated(minute: Minute, policy: str, **knobs: Any) -> list[Taken]:
    """Takes the steps of the policy's first plan, then the turns of its slow loops at the moment 0 and at the minute.

    A turn at the moment 0 repeats a step of the plan to no effect, where that has taken it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IN_PLACE, ChangeKind.SHADOW if PRESETS[policy].knobs.shadow else ChangeKind.RESTART)
        return _simulated(minute, policy, knobs)


def _simulated(minute: Minute, policy: str, knobs: dict[str, Any]) -> list[Taken]:
    with asking.noting() as notes:
        plan = build(read_policy({"name": policy, **knobs}), minutes.world(minute))
    found = taken(notes)
    begun = {own.step for own in found}
    first, commands = _turns(plan, minutes.view(minute.before_anything(), plan))
    assert not [own for own in first if own.step in begun and own.commands]
    found += [own for own in first if own.step not in begun]
    return found + _turns(plan, minutes.view(minute, plan, commands))[0]


def _turns(plan: Plan, view: FleetView) -> tuple[list[Taken], list[SimCommand]]:
    commands: list[SimCommand] = []
    with asking.noting() as notes:
        for control in sorted(plan.controls, key=lambda own: -own.period_s):
            if control.name in (*SLOW, AUTOSCALE):
                commands += control.step(view).commands
    return taken(notes), commands


def compared(live: list[Taken], simulated: list[Taken]) -> list[str]:
    """Returns in words where the steps of both worlds differ."""
    steps = [own.step for own in live], [own.step for own in simulated]
    assert steps[0], "no step was taken"
    if steps[0] != steps[1]:
        return [f"live takes {steps[0]}, the simulator {steps[1]}"]
    found = [text for own, other in zip(live, simulated, strict=True) for text in differences(own, other, own.step)]
    return [text for text in found if not any(known in text for known in ONE_WORLD)]


@pytest.mark.parametrize(("policy", "knobs"), _each([*((policy, {}) for policy in COMPARED), *CHOICES]))
def test_decisions_are_the_same_when_the_minute_is(policy, knobs, redis_client):
    minute = minute_of(policy, knobs)
    found = compared(live(minute, policy, redis_client, **knobs), simulated(minute, policy, **knobs))
    assert "\n".join(found) == ""


@pytest.mark.slow("a baseline")
# Of the 256 places in a batch 128 are enough to keep an instance, and 240 to add more.
@pytest.mark.parametrize("known", [{"running": 128}, {"running": 240}, {"declared": None}], ids=str)
def test_thresholds_decide_the_same_when_more_or_less_is_known(known, redis_client):
    minute = replace(MINUTE, **known)
    found = compared(live(minute, "threshold", redis_client), simulated(minute, "threshold"))
    assert "\n".join(found) == ""


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("dynamollm", {}),
        ("scale_shard", {}),
        ("throttllem", {}),
        ("dynaserve", {}),
        *(
            pytest.param(*row, marks=pytest.mark.slow("the others"))
            for row in (
                *(
                    (name, {})
                    for name in COMPARED
                    if name not in ("dynamollm", "scale_shard", "throttllem", "dynaserve")
                ),
                ("scale_shard", {"tp": 2}),
            )
        ),
    ],
)
def test_decisions_are_the_same_on_several_sites_with_several_types_of_gpu(policy, knobs, redis_client):
    own = presets.policy(policy, knobs).knobs
    servers = MIXED_LARGE if own.whole_sites else MIXED_STEADY
    minute = servers if own.partition == DYNAMO else MIXED
    found = live(minute, policy, redis_client, **knobs)
    assert "\n".join(compared(found, simulated(minute, policy, **knobs))) == ""


def test_plans_are_of_least_energy_in_both_worlds_when_no_site_has_an_intensity(redis_client):
    unknown = replace(MINUTE, places=tuple(replace(own, g_per_kwh=()) for own in MINUTE.places))
    found = live(unknown, "freesh", redis_client)
    asked = [own.config.objective for own in found if own.step.endswith("carbon:step")]
    assert asked == ["carbon", "energy"] * 2
    assert "\n".join(compared(found, simulated(unknown, "freesh"))) == ""


# 20 requests in the look-back are too few to tell their lengths.
SIZED = {
    "little came": {"came": MINUTE.came[::8]},
    "nothing came": {"came": MINUTE.came[:1]},
    "requests wait": {"waiting": 7},
    "more waits than the fleet carries": {"waiting": 400},
    "a site has a cap": {"places": tuple(replace(place, power_cap_w=1_500.0) for place in MINUTE.places)},
}


@pytest.mark.parametrize(
    "known",
    [pytest.param(own, marks=pytest.mark.slow("other loads") if n > 1 else ()) for n, own in enumerate(SIZED.values())],
    ids=SIZED,
)
def test_fleets_are_sized_the_same_when_other_things_are_known(known, redis_client):
    minute = replace(MINUTE, **known)
    found = compared(live(minute, "greenserve", redis_client), simulated(minute, "greenserve"))
    assert "\n".join(found) == ""


def a_quarter(own):
    """Returns a look-back that is a quarter as long."""
    return lambda now_s, span_s: own(now_s, span_s / 4.0)


# In one world alone: the policy, the world, what is patched, and with what. A function is given the one that it stands
# for.
CHANGED = (
    (
        "freesh",
        "live",
        "core.observations.step_configs.carbon_config",
        lambda own: lambda *given: replace(own(*given), alpha=1.2),
    ),
    (
        "freesh",
        "live",
        "core.observations.step_configs.pool_config",
        lambda own: lambda *given: replace(own(*given), alpha=1.2),
    ),
    (
        "freesh",
        "live",
        "scheduler.control.snapshot.snapshot.class_limits",
        lambda own: lambda *given: Limits(1.9, 0.15, 60.0),
    ),
    ("freesh", "simulated", "core.observations.demand.loop_windows.MAX_WINDOW_S", lambda own: 100.0),
    ("freesh", "simulated", "core.observations.demand.class_view.ENOUGH", lambda own: 10_000),
    ("freesh", "simulated", "core.observations.demand.class_view.TYPICAL_TOKENS", lambda own: (1100.0, 200.0)),
    (
        "freesh",
        "simulated",
        "core.observations.demand.class_view.mode_profile",
        lambda own: lambda *given: own(*given[:-1], Limits()),
    ),
    ("freesh", "simulated", "core.simulator.policies.freesh.cold_start_s", lambda own: lambda *given, **more: 1.0),
    ("freesh", "simulated", "core.simulator.policies.freesh.change_kinds", lambda own: lambda *given: {}),
    (
        "throttllem",
        "live",
        "scheduler.control.snapshot.snapshot.batch_limits",
        lambda own: lambda *given: Limits(None, 0.05, 60.0),
    ),
    (
        "triton",
        "live",
        "core.observations.step_configs.shared_out_config",
        lambda own: lambda *given: replace(own(*given), alpha=1.1),
    ),
    ("retail", "simulated", "core.simulator.policies.throttllem.engines.largest_tp", lambda own: lambda *given: 2),
    (
        "dynaserve",
        "simulated",
        "core.simulator.policies.dynaserve.dynaserve_policy.partition_option",
        lambda own: lambda *given: replace(own(*given), name="other"),
    ),
    (
        "dynaserve",
        "live",
        "core.observations.step_configs.shared_out_config",
        lambda own: lambda knobs, tp: own(knobs, 2),
    ),
    (
        "throttllem",
        "live",
        "core.observations.fleet.autoscale_given.observation",
        lambda own: lambda *given: replace(own(*given), rps=2.0),
    ),
    (
        "throttllem",
        "simulated",
        "core.simulator.policies.throttllem.engines.cold_start_s",
        lambda own: lambda *_, **__: 1.0,
    ),
    ("throttllem", "simulated", "core.simulator.policies.throttllem.autoscale_loop.STRETCH_S", lambda own: 4.0),
    (
        "threshold",
        "live",
        "core.observations.step_configs.scale_threshold_config",
        lambda own: lambda *given: replace(own(*given), kv_low=0.3),
    ),
    (
        "threshold",
        "live",
        "core.observations.step_configs.shard_threshold_config",
        lambda own: lambda *given: replace(own(*given), gain=0.2),
    ),
    ("threshold", "simulated", "core.observations.demand.loop_windows.MAX_WINDOW_S", lambda own: 100.0),
    (
        "threshold",
        "simulated",
        "core.observations.demand.class_view.mode_profile",
        lambda own: lambda *given: own(*given[:-1], Limits()),
    ),
    (
        "scale_freq",
        "live",
        "core.observations.step_configs.shared_out_config",
        lambda own: lambda *given: replace(own(*given), alpha=1.2),
    ),
    (
        "scale_freq",
        "simulated",
        "core.simulator.policies.dynamollm.demand.class_limits",
        lambda own: lambda *given: given[0],
    ),
    (
        "scale_shard",
        "live",
        "core.observations.step_configs.shard_dynamo_config",
        lambda own: lambda *given: replace(own(*given), alpha=1.2),
    ),
    (
        "scale_inst",
        "live",
        "core.observations.step_configs.scale_dynamo_config",
        lambda own: lambda *given: replace(own(*given), headroom=1.2),
    ),
    ("scale_inst", "live", "scheduler.control.steps.dynamollm_steps.TEMPLATE", lambda own: replace(own, step_s=150.0)),
    ("scale_inst", "simulated", "core.simulator.policies.dynamollm.loops.LOOK_S", lambda own: 7.0),
    ("scale_inst", "simulated", "core.observations.demand.loop_windows.MAX_WINDOW_S", lambda own: 100.0),
    (
        "scale_inst",
        "simulated",
        "core.simulator.policies.dynamollm.demand.planned",
        lambda own: lambda *given: given[0],
    ),
    ("dynamollm", "live", "scheduler.control.service_policy.hands_on", lambda own: lambda *given: {}),
    ("dynamollm", "simulated", "core.observations.demand.class_view.ENOUGH", lambda own: 10_000),
    ("scale_shard", "live", "core.observations.fleet.dynamo_given.spilled", lambda own: lambda *given: {}),
    (
        "scale_shard",
        "simulated",
        "core.simulator.policies.dynamollm.demand.TEMPLATE",
        lambda own: replace(own, recent_steps=100),
    ),
    (
        "scale_shard",
        "simulated",
        "core.observations.fleet.dynamo_given.cold_start_s",
        lambda own: lambda *given, **more: 1.0,
    ),
    (
        "single_pool",
        "live",
        "core.observations.step_configs.shared_out_config",
        lambda own: lambda *given: replace(own(*given), min_gain=0.1),
    ),
    ("single_pool", "live", "scheduler.control.snapshot.snapshot.planned", lambda own: lambda *given: Limits(1.9)),
    ("single_pool", "simulated", "core.simulator.policies.cut_fleet.planned", lambda own: lambda *given: Limits(1.9)),
    ("single_pool", "simulated", "core.observations.demand.loop_windows.MAX_WINDOW_S", lambda own: 100.0),
    (
        "greenserve",
        "live",
        "core.observations.step_configs.right_size_config",
        lambda own: lambda *given: replace(own(*given), headroom=1.05),
    ),
    (
        "greenserve",
        "live",
        "core.observations.fleet.right_size_given.planned",
        lambda own: lambda limits, *shares: limits,
    ),
    (
        "greenserve",
        "live",
        "scheduler.control.steps.right_size_step.class_limits",
        lambda own: lambda *given: Limits(1.9, 0.15, 60.0),
    ),
    ("greenserve", "live", "scheduler.control.snapshot.recorded_demand.recent_stretches", a_quarter),
    ("greenserve", "live", "scheduler.control.steps.recent_load.STRETCH_S", lambda own: 10.0),
    ("greenserve", "simulated", "core.simulator.policies.greenserve.demand.recent_stretches", a_quarter),
    ("greenserve", "simulated", "core.simulator.policies.greenserve.demand.AHEAD_STEPS", lambda own: 2),
    ("greenserve", "simulated", "core.observations.fleet.right_size_given.ENOUGH", lambda own: 10_000),
    (
        "greenserve",
        "simulated",
        "core.observations.fleet.right_size_given.mean_context",
        lambda own: lambda *came: 100.0,
    ),
)


UNCHANGED: dict[str, dict[str, list[Taken]]] = {}  # by policy and world, filled by the first test that asks


def _first_of_each(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The first row of some policies in each world; the others among the slow tests."""
    seen: set[tuple[str, str]] = set()
    found = []
    for row in rows:
        first = row[0] in ("greenserve", "dynamollm") and row[:2] not in seen
        found.append(pytest.param(*row, marks=() if first else pytest.mark.slow("other changes")))
        seen.add(row[:2])
    return found


@pytest.mark.parametrize(
    ("policy", "world", "name", "changed"), _first_of_each(CHANGED), ids=["-".join(row[:3]) for row in CHANGED]
)
def test_worlds_differ_when_one_of_them_is_changed(policy, world, name, changed, redis_client, monkeypatch):
    minute = minute_of(policy)
    if policy not in UNCHANGED:
        UNCHANGED[policy] = {"live": live(minute, policy, redis_client), "simulated": simulated(minute, policy)}
    assert compared(**UNCHANGED[policy]) == []
    module, _, attribute = name.rpartition(".")
    monkeypatch.setattr(name, changed(getattr(import_module(module), attribute)))
    found = live(minute, policy, redis_client) if world == "live" else simulated(minute, policy)
    assert compared(**UNCHANGED[policy] | {world: found})


def test_what_is_not_compared_becomes_less():
    assert len(NO_STEP) <= 1
    assert len(ONCE) <= 3
    assert len(ONE_WORLD) <= 1
