"""Takes one turn of a loop: the step that the service's policy names, on the state that it left last time.

A turn reads and computes, and changes no plan: `epochs` carries out what it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.types import CarbonPlan, Command, Effects, Loop, Rationale, Reason
from pools.models import Pool
from scheduler.control.apply import budgets
from scheduler.control.apply.budgets import Envelope
from scheduler.control.steps import (
    autoscale_step,
    dynamollm_steps,
    placement_step,
    policy_steps,
    right_size_step,
    threshold_steps,
)
from scheduler.control.steps.policy_steps import LoopTurn, Result
from scheduler.control.turn_context import TurnContext
from scheduler.models import ControllerState

STEPS: Mapping[tuple[Loop, str], Callable[[LoopTurn], Result]] = {
    (Loop.CARBON, "freesh"): policy_steps.freesh_step,
    (Loop.CARBON, "off"): policy_steps.shared_out_step,
    (Loop.SCALE, "fleet"): policy_steps.fleet_step,
    (Loop.SCALE, "static"): policy_steps.static_step,
    (Loop.SCALE, "placement"): placement_step.scale,
    (Loop.SCALE, "dynamo"): dynamollm_steps.scale,
    (Loop.SCALE, "throttle"): autoscale_step.scale,
    (Loop.SCALE, "right_size"): right_size_step.scale,
    (Loop.SCALE, "threshold"): threshold_steps.scale,
    (Loop.SHARD, "mix"): policy_steps.mix_step,
    (Loop.SHARD, "dynamo"): dynamollm_steps.shard,
    (Loop.SHARD, "threshold"): threshold_steps.shard,
    (Loop.SHARD, "off"): policy_steps.off_step,
}
FROZEN = Rationale(Reason.POLICY, "The policy has this loop decide once: what it decided holds.")
META = "_"  # in a ControllerState's value: whose it is, and when it was last looked at


@dataclass(frozen=True, slots=True)
class TurnDecision:
    """A step's answer, and the controller's state that it was taken on. `fresh`: the first turn under this policy."""

    state: ControllerState
    result: Result
    fresh: bool


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Scale's answer to a carbon plan, made before that is carried out. `pools`: as they were, by id."""

    decision: TurnDecision
    pools: Mapping[int, Envelope]


def decide(context: TurnContext, loop: Loop, index: int | None) -> TurnDecision:
    """Takes the step.

    Another step's state is not read, but for the carbon loop's: that is the plan in force, whoever made it. `index`
    None: it follows up on another loop, and has its own turn still before it.
    """
    state, _ = ControllerState.objects.get_or_create(kind=context.state_kind(loop), service=context.service)
    name = str(getattr(context.knobs, loop.value))
    meta = state.value.get(META, {})
    fresh = meta.get("policy") != context.signature
    known = state.value if loop is Loop.CARBON or meta.get("step") == name else {}
    if loop.value in context.knobs.frozen and index is not None and not fresh and context.plan is not None:
        result = Result(Effects((), None, FROZEN), dict(state.value), no_op=True)
    else:
        result = _around_pins(context, STEPS[loop, name](LoopTurn(context, known, fresh)))
    mine = {
        "step": name,
        "policy": meta.get("policy") if index is None else context.signature,
        "looked": [context.times.of(loop), index],
        "next_tick_s": result.next_tick_s,
    }
    return TurnDecision(state, replace(result, state={**result.state, META: mine}), fresh)


def follow_up(
    context: TurnContext, commands: Sequence[Command], plan: CarbonPlan | None, pools: Sequence[Pool] = ()
) -> FollowUp:
    """Decides the workers of a carbon plan that is about to be carried out.

    Pools that lose or gain GPUs get their workers at once rather than at the next scale epoch. `pools`: all of the
    service's, as they are to be taken to be, which get what the plan gives them; empty: as they are stored.
    """
    pools = pools or budgets.pools_of(context.service)
    before = {pool.pk: (pool.gpu_budget, pool.workers) for pool in pools}
    partition = budgets.partition_after(context.service, commands)
    after = budgets.after(commands, partition, pools, context.pins)
    for pool in pools:
        pool.gpu_budget, pool.workers = after[pool.pk]
    return FollowUp(decide(context.with_plan(plan, partition, pools), Loop.SCALE, None), before)


def _around_pins(context: TurnContext, result: Result) -> Result:
    """Returns the result without its commands and decisions for pools that a person has pinned."""
    keys = {pin.key for pin in context.pins}
    if not keys:
        return result
    commands = tuple(own for own in result.effects.commands if getattr(own, "pool", None) not in keys)
    decisions = tuple(own for own in result.effects.decisions if own.pool not in keys)
    return replace(result, effects=replace(result.effects, commands=commands, decisions=decisions))
