"""A service's policy: what its loops run, what is published of it to gateways and agents, and how it is changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from core.observations.fleet import dynamo_given
from core.observations.request import engine_given
from core.observations.request.request_configs import itl_limit_s
from core.policy.knobs import Knobs
from core.policy.presets import Policy
from core.policy.tuning import Tuning
from core.ports import EngineLimits, EngineOptions
from core.types import Limits, Loop
from pools import wire
from pools.models import Service
from pools.writes import ensure_partition, ensure_pools
from scheduler.control import active_operations, loop_times
from scheduler.json_values import pool_key
from scheduler.models import ControllerState, Override

WEIGHTS = "weights"  # in the state of a scale loop: by pool and mode, what an instance weighs in routing
KIND = "policy"  # of the ControllerState that says which policy the loops have taken up
_CLOCK_FLAGS = ("throttle", "retail", "deadline", "iteration")  # clock rules that live at the gateway
_MEASURED = {"aging_tokens_per_s": "aging_measured", "predictor_error": "predictor_error_measured"}  # where not set
_NO_KNOBS = (*_CLOCK_FLAGS, "tuning", "wake_patience_s", *_MEASURED, *_MEASURED.values())
_REQUEST_KNOBS = [name for name in wire.RequestPolicy.__struct_fields__ if name not in _NO_KNOBS]
# Every engine is started so that it goes by priority: requests that bring none are served as they come, and a policy
# that sends priorities needs no engine to be restarted.
ENGINE_OPTIONS = EngineOptions("priority", preempt_for_waiting=True)


def with_overrides(policy: Policy, overrides: Iterable[Override]) -> Knobs:
    """Returns the knobs that a policy sets, with the partition that an override pins."""
    name = active_operations.partition_of(overrides)
    return policy.knobs if name is None else replace(policy.knobs, partition=name)


def of(service: Service) -> Knobs:
    """Returns the knobs of the service's policy in force, at this moment."""
    return with_overrides(service.own_policy(), active_operations.planned_around(service))


def deciding(service: Service) -> Policy:
    """Returns the policy that the service's loops run: the one in force, or, where that does not act by itself, the one
    configured, whose plans are shown or wait for approval.
    """
    if not service.acting_policy or active_operations.acts(service):
        return service.own_policy()
    return service.configured_policy()


def is_in_force(service: Service) -> bool:
    """Says whether the policy that is configured is the one in force."""
    acting = (service.acting_policy, service.acting_knobs)
    return not service.acting_policy or acting == (service.policy, service.knobs)


def signature_with(policy: Policy, overrides: Iterable[Override]) -> str:
    """Changes with whatever the loops are to decide anew for: the policy, and the overrides that are in force."""
    own, keys = [policy.name, policy.overrides], [item.pk for item in overrides]
    return json.dumps([*own, keys] if keys else own, sort_keys=True)


def signature(service: Service, now: datetime | None = None) -> str:
    """Returns the signature of what the loops run, at `now` or at this moment."""
    return signature_with(deciding(service), active_operations.planned_around(service, now))


@transaction.atomic
def change(service: Service, name: str, overrides: Mapping[str, Any]) -> Knobs:
    """Configures a policy. In the control mode act the loops take it up when `taken_up` is next asked; else the policy
    in force stays.

    Raises:
        ValidationError: The name or a knob makes no sense; nothing is changed.
    """
    ensure_state(service)
    service.policy, service.knobs = name, dict(overrides)
    service.clean()
    service.save(update_fields=["policy", "knobs"])
    knobs = of(service)
    provide(service, knobs)
    return knobs


def put_in_force(service: Service) -> None:
    """Puts the policy that is configured in force beside a control mode in which it does not act by itself."""
    service.acting_policy, service.acting_knobs = service.policy, service.knobs
    service.save(update_fields=["acting_policy", "acting_knobs"])


def provide(service: Service, knobs: Knobs) -> None:
    """Makes the partition that the policy names, and its pools."""
    if knobs.partition:
        ensure_pools(service, ensure_partition(knobs.partition))


def taken_up(service: Service, now: datetime) -> bool:
    """Says whether this call, and no other process, found a change of policy: its epochs are to be run now."""
    state, own = ensure_state(service), signature(service)
    if state.value.get("signature") == own:
        return False
    value = {"signature": own, "at": now.isoformat()}
    rows = ControllerState.objects.filter(pk=state.pk, version=state.version)
    return rows.update(version=state.version + 1, value=value) == 1


def ensure_state(service: Service) -> ControllerState:
    value = {"signature": signature(service)}
    return ControllerState.objects.get_or_create(kind=KIND, service=service, defaults={"value": value})[0]


def hands_on(service: Service, knobs: Knobs, kind: str = Loop.SCALE) -> dict[str, float]:
    """Returns by class the share of what comes to its pools that goes to the next larger class, as scale last decided.

    `kind`: of scale's ControllerState.

    Under a plan that stands still a class without instances hands on everything, as in the simulator. Empty where
    nothing is handed on, or scale has decided for another partition.
    """
    if knobs.carbon == "off" and knobs.scale == "static":
        pools = service.pools.filter(request_class__partition=service.partition_id).values_list(
            "request_class__name", "workers"
        )
        names = list(service.partition.classes.order_by("rank").values_list("name", flat=True))
        return dynamo_given.spilled(names, {name for name, workers in pools if any(workers.values())})
    if knobs.scale != "dynamo":
        return {}
    state = ControllerState.objects.filter(kind=kind, service=service).first()
    if state is None or state.value.get("partition") != service.partition.name:
        return {}
    return {pool_key(text).request_class: float(share) for text, share in state.value["shares"].items()}


def weights(service: Service, knobs: Knobs) -> Mapping[str, Mapping[str, float]]:
    """Returns what an instance weighs in routing, by pool (`site/class`) and mode, as scale last decided.

    Empty under a scale loop that plans no weights: its instances weigh the same, as in the simulator.
    """
    if knobs.scale not in ("fleet", "right_size", "threshold"):
        return {}
    state = ControllerState.objects.filter(kind=Loop.SCALE, service=service).first()
    found: Mapping[str, Mapping[str, float]] = {} if state is None else state.value.get(WEIGHTS, {})
    return found


# -- what is published -----------------------------------------------------------------------------


def request_policy(knobs: Knobs, tuning: Tuning) -> wire.RequestPolicy:
    """Knobs and fields have the same names; a clock rule that lives at the gateway is a flag there."""
    own: dict[str, Any] = {name: getattr(knobs, name) for name in _REQUEST_KNOBS}
    own |= {name: knobs.clock == name for name in _CLOCK_FLAGS}
    own |= _set(knobs, *_MEASURED) | {flag: getattr(knobs, name) is None for name, flag in _MEASURED.items()}
    own["aging_measured"] &= knobs.order == "sjf"
    own["wake_patience_s"] = None if knobs.sleep == "off" else tuning.sleep.patience_s
    return wire.RequestPolicy(**own, tuning=_request_tuning(tuning))


def _set(knobs: Knobs, *names: str) -> dict[str, Any]:
    """Returns those that are set: of the others the message's default holds, until a measurement takes its place."""
    return {name: value for name in names if (value := getattr(knobs, name)) is not None}


def _request_tuning(tuning: Tuning) -> wire.RequestTuning:
    names = {name: name.partition("_") for name in wire.RequestTuning.__struct_fields__}
    own = {name: getattr(tuning, record) for name, (record, _, _) in names.items()}
    return wire.RequestTuning(
        **{name: getattr(own[name], field) if field else own[name] for name, (_, _, field) in names.items()}
    )


def clock_rule(knobs: Knobs, tuning: Tuning, paused: bool = False, advise: bool = False) -> wire.ClockPolicy:
    """Returns the service's clock rule, with the figures that settings give for all.

    `advise`: it sets no clock below the top.
    """
    loop = settings.GREENSERVE_LOOPS["clock"]
    own = {
        "policy": knobs.clock,
        "period_s": loop_times.times(knobs).clock_s,
        **_set(knobs, "predictor_error"),
        "ttft_share": knobs.clock_ttft_share,
        "tpot_share": knobs.clock_tpot_share,
        "clock_floor": knobs.clock_floor,
        "clock_floor_mhz": knobs.clock_floor_mhz,
        "paused": paused,
        "advise": advise,
    }
    return wire.ClockPolicy(**{**loop, **own, **_tuned(knobs.clock, tuning)})


def _tuned(clock: str, tuning: Tuning) -> dict[str, Any]:
    """Returns the fields that a clock rule has from the tuning of its own."""
    match clock:
        case "miad":
            return asdict(tuning.miad)
        case "primal_dual":
            own = asdict(tuning.primal_dual)
            own["by_profile"] = own.pop("by") == "profile"
            return own
        case "profile":
            return asdict(tuning.profile)
        case "slack":
            slack = tuning.slack
            own = {name: getattr(slack, name) for name in ("increase", "reserve", "sample_s", "memory_s")}
            return {**own, "decrease_mhz": slack.step_mhz, "by_sensitivity": slack.sensitivity}
        case "threshold":
            return {name: getattr(tuning.threshold, name) for name in ("busy_high", "busy_low", "clock_step_mhz")}
    return {}


def chunk_in_force(service: Service, states: Iterable[wire.AgentState]) -> int:
    """Returns the most tokens of one prompt in an iteration that a plan may count on; 0: all there is room for.

    `states`: of the agents. An engine without the plug-in keeps what it was started with.
    """
    own, pools = service.own_policy(), set(service.pools.values_list("pk", flat=True))
    there = [instance for state in states for instance in state.instances if instance.pool_id in pools]
    up = [instance.engine_limits for instance in there if instance.state in ("ready", "sleeping")]
    return engine_given.chunk_in_force(EngineLimits(chunk_tokens=own.knobs.chunk_tokens), up)


def engine_limits(knobs: Knobs, tuning: Tuning, of_classes: Iterable[Limits]) -> EngineLimits:
    """Returns the limits that the service's engines are to keep. `of_classes`: the limits of its request classes."""
    limits = EngineLimits(
        itl_limit_s=itl_limit_s(knobs.itl_limit_s, tuning.split.itl_margin, of_classes) or None,
        chunk_tokens=knobs.chunk_tokens,
        preempts_s=0.0 if knobs.order == "fcfs" else knobs.preempts_s,
        margin_s=tuning.queue.margin_s,
        window_factor=tuning.queue.window_factor,
    )
    return limits if knobs.max_num_seqs is None else replace(limits, max_num_seqs=knobs.max_num_seqs)
