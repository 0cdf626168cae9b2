"""mu-Serve's placement on the live fleet: the models of all services that are placed so, on the same nodes together.

Each service's turn places all of them and carries out its own part. They all come to the same placement from the same
facts; where they ask at different moments, GPUs go to the first that asks. Agents report when a clock is at its top and
wanted higher (`starved`, in their clock decisions): such a model gets another replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from core.algorithms.placement.own_gpus import ModelLoad, Place
from core.controllers.clock.muserve_clock import STARVED
from core.controllers.fleet import placement
from core.controllers.fleet.placement import PlacementState
from core.observations import asking, step_configs
from core.observations.fleet import placement_given
from core.observations.fleet.placement_given import model_name
from core.observations.recording import RecordingError, recall, record
from core.types import Effects, PoolDecision, PoolKey, ScaleTo
from pools.models import Instance, Partition
from scheduler.control import turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.offered_nodes import offered_nodes
from scheduler.control.steps.policy_steps import LoopTurn, Result, nothing_to_do, placed_together
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import workers_from_json
from scheduler.models import Decision, DecisionKind

STATE = "state"
REPORTED_S = 90.0  # agents report a clock that stays where it is each 30 s; twice that may be late


def scale(turn: LoopTurn) -> Result:
    """Looks whether the placement stays."""
    context = turn.context
    if not any(pool.gpu_budget for pool in context.pools):
        return nothing_to_do()
    contexts = [context, *_peers(context)]
    loads = [load for own in contexts for load in _loads(own)]
    obs = placement_given.observation(
        context.now.timestamp(),
        offered_nodes(context, [own.service for own in contexts]),
        loads,
        _present(contexts),
        _starved(context),
        context.tuning.placement,
    )
    config = step_configs.placing_config(context.tuning)
    state, effects = asking.step(placement.step, None if turn.fresh else _recalled(turn.state), obs, config)
    own = _own(context, effects)
    return Result(own, {STATE: record(state)}, no_op=not own.commands, next_tick_s=effects.next_tick_s)


def _peers(context: TurnContext) -> list[TurnContext]:
    return [turn_context.resolve(own, context.now, context.reporting) for own in placed_together(context.service)]


def _loads(context: TurnContext) -> list[ModelLoad]:
    """Returns the models of a service under the load that came; without its partition it has none."""
    if not Partition.objects.filter(name=context.knobs.partition).exists():
        return []
    obs, _ = snapshot.shared_out(context, ())
    sites = context.service.pools.values_list("site__name", flat=True)
    return placement_given.models(context.service.name, obs.partition, sites, context.knobs.tp, context.service.share)


def _present(contexts: Sequence[TurnContext]) -> dict[Place, int]:
    """Returns the replicas that the pools are to have."""
    found: Counter[Place] = Counter()
    for context in contexts:
        for pool in context.pools:
            name = model_name(context.service.name, pool.request_class.name)
            found.update({(pool.site.name, name, mode): n for mode, n in workers_from_json(pool.workers).items() if n})
    return dict(found)


def _starved(context: TurnContext) -> set[str]:
    """Returns the service's models of which an instance wants more than the top clock, as agents reported of late."""
    since = context.now - timedelta(seconds=REPORTED_S)
    live = Instance.objects.filter(pool__service=context.service, desired=Instance.Desired.RUNNING)
    classes = dict(live.values_list("uid", "pool__request_class__name"))
    rows = Decision.objects.filter(kind=DecisionKind.CLOCK, instance_uid__in=classes, at__gt=since, at__lte=context.now)
    latest: dict[Any, int] = {}
    for uid, inputs in rows.order_by("at").values_list("instance_uid", "inputs"):
        latest[uid] = inputs.get("starved") or 0
    return {model_name(context.service.name, classes[uid]) for uid, times in latest.items() if times >= STARVED}


def _own(context: TurnContext, effects: Effects) -> Effects:
    """Returns the commands and decisions for the service's own pools, by their classes."""
    keys = {PoolKey(p.site.name, model_name(context.service.name, p.request_class.name)): p for p in context.pools}
    commands: list[ScaleTo] = []
    decisions: list[PoolDecision] = []
    for own in effects.decisions:
        if (pool := keys.get(own.pool)) is not None:
            key = PoolKey(pool.site.name, pool.request_class.name)
            commands.append(ScaleTo(key, own.workers))
            decisions.append(replace(own, pool=key))
    return replace(effects, commands=tuple(commands), decisions=tuple(decisions))


def _recalled(stored: Mapping[str, Any]) -> PlacementState | None:
    """Reads the step's state; of another version: none, and models are placed anew."""
    try:
        found = recall(stored.get(STATE))
    except RecordingError:
        return None
    return found if isinstance(found, PlacementState) else None
