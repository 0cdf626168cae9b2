"""DynamoLLM's scale epoch (section IV-B): how many nodes each request class gets, and who serves what is left over.

Classes come smallest first. A node (one TP 8 instance at the top clock, the best that the faster loops can do) carries
at most ML of a class within its limits; a forecast peak of PL takes ceil(PL / ML) nodes. That rounds up in every pool,
so all but the largest class get one instance fewer and hand the rest of their load to the next larger class: only the
largest pool is rounded up. A class with less than a node hands on everything: its pool has merged with the next.

Instances start ahead: those that the next epoch needs, one measured cold start before it begins (a shorter one for
those that the warm pool holds ready). Hence two kinds of tick, both from `Effects.next_tick_s`: at the start of an
epoch counts go up or down, before the next one they only go up.

Flap guard: a pool shrinks when `down_after` epochs in a row wanted fewer, and not below what the next epoch needs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.algorithms.fleet.hand_down import ClassLoad, Rule, Sizing, size, within
from core.controllers.basis import basis_json
from core.engine.measured import Basis
from core.types import Effects, ForwardLoad, Mode, PoolDecision, PoolKey, Rationale, Reason, ScaleTo

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class ScaleDynamoObservation:
    """`nodes`: those that serve or start, by pool. `node`: what one node runs at its best, and `basis` what is known of
    that. `nodes_available`: None: no
    end. Starts take `warm_start_s` from the warm pool and `cold_start_s` beyond it, both measured."""

    now_s: float
    step_s: float
    node: Mode
    classes: tuple[ClassLoad, ...]  # smallest first
    nodes: Mapping[PoolKey, int]
    nodes_available: int | None
    warm_start_s: float
    cold_start_s: float
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class ScaleDynamoConfig:
    """`headroom` on the forecast; the paper has none (1). `warm_pool`: servers that stand ready, None: always enough.
    Without `hand_down` every pool is rounded up; one that needs less than `merge_below` nodes then still merges with
    the next, until it needs `split_above`. `min_nodes` of the largest class: somebody must serve."""

    epoch_s: float = 1800.0
    headroom: float = 1.0
    hand_down: bool = True
    merge_below: float = 0.25
    split_above: float = 0.5
    proactive: bool = True
    warm_pool: int | None = None
    down_after: int = 2
    min_nodes: int = 1

    def __post_init__(self) -> None:
        if self.epoch_s <= 0.0 or self.headroom < 1.0 or self.down_after < 1 or self.merge_below > self.split_above:
            raise ValueError("epoch_s > 0, headroom >= 1, down_after >= 1 and merge_below <= split_above")


@dataclass(frozen=True, slots=True)
class ScaleDynamoState:
    """`low`: epochs in a row that wanted fewer nodes. `shares`: what pools hand on, as last asked for."""

    epoch: int
    low: Mapping[PoolKey, int] = field(default_factory=dict)
    merged: frozenset[PoolKey] = frozenset()
    shares: Mapping[PoolKey, float] = field(default_factory=dict)


def step(
    state: ScaleDynamoState | None, obs: ScaleDynamoObservation, config: ScaleDynamoConfig
) -> tuple[ScaleDynamoState, Effects]:
    """One tick, at the start of an epoch or a start-up time before the next: see the module."""
    epoch = math.floor(obs.now_s / config.epoch_s + _EPS)
    fresh = state is None or state.epoch != epoch
    state = state or ScaleDynamoState(epoch)
    present = [obs.nodes.get(item.key, 0) for item in obs.classes]
    loads = _loads(obs, config, epoch)
    merged = _merged(state.merged, obs, loads, config) if fresh else state.merged
    least, low = _least(state, obs, config, merged, epoch, present) if fresh else (present, state.low)
    sizing = size(obs.classes, loads, _rule(obs, loads, present, merged, least, config))
    wanted, ahead = _look_ahead(obs, config, merged, epoch, list(sizing.nodes)) if config.proactive else (None, "")
    uncut = wanted or sizing.nodes
    nodes, cut = within(list(uncut), sizing.need, obs.nodes_available)
    flow = size(obs.classes, loads, lambda i, _: nodes[i])
    shares = {item.key: share for item, share in zip(obs.classes, flow.shares, strict=True)}
    scaled = [
        ScaleTo(item.key, {obs.node: count} if count else {})
        for item, count, had in zip(obs.classes, nodes, present, strict=True)
        if count != had
    ]
    forwards = [
        ForwardLoad(item.key, larger.key, shares[item.key])
        for item, larger in zip(obs.classes, obs.classes[1:], strict=False)
        if abs(shares[item.key] - state.shares.get(item.key, 0.0)) > _EPS
    ]
    unknown = [item.key.request_class for item, load in zip(obs.classes, loads, strict=True) if load is None]
    reason, notes = _why(scaled, flow.unserved, cut, unknown)
    summary = " ".join([_moves(obs, nodes, present), *notes, ahead]).strip()
    inputs = _inputs(obs, config, loads, sizing, nodes, shares)
    rationale = Rationale(reason, summary, inputs)
    short = [
        *flow.unserved,
        *(own.key.request_class for own, n, to in zip(obs.classes, uncut, nodes, strict=True) if to < n),
    ]
    decisions = tuple(_decision(obs, item, inputs["classes"][item.key.request_class], short) for item in obs.classes)
    after = ScaleDynamoState(epoch, low, merged, shares)
    return after, Effects((*scaled, *forwards), _next_tick_s(obs, config, epoch), rationale, decisions)


def _rule(
    obs: ScaleDynamoObservation,
    loads: Sequence[float | None],
    present: Sequence[int],
    merged: frozenset[PoolKey],
    least: Sequence[int],
    config: ScaleDynamoConfig,
) -> Rule:
    """Returns the nodes of a pool for its load; a class of unknown load keeps what it has, but the last one has nodes
    for what is handed to it."""
    last = len(obs.classes) - 1

    def nodes(i: int, need: float) -> int:
        if loads[i] is None:
            return max(present[i], least[i], math.ceil(need - _EPS) if i == last else 0)
        if i == last:
            return max(config.min_nodes, least[i], math.ceil(need - _EPS))
        if config.hand_down:
            return max(least[i], math.floor(need + _EPS))
        return max(least[i], 0 if obs.classes[i].key in merged else math.ceil(need - _EPS))

    return nodes


def _loads(obs: ScaleDynamoObservation, config: ScaleDynamoConfig, epoch: int) -> list[float | None]:
    """Returns the forecast peak of each class in what is left of an epoch; None where none of its steps is known."""
    first_step = math.floor(obs.now_s / obs.step_s + _EPS)
    first = max(0, math.floor(epoch * config.epoch_s / obs.step_s + _EPS) - first_step)
    last = max(first + 1, math.ceil((epoch + 1) * config.epoch_s / obs.step_s - _EPS) - first_step)
    found: list[float | None] = []
    for item in obs.classes:
        known = [value for value in item.forecast[first:last] if value is not None]
        found.append(config.headroom * max(known) if known else None)
    return found


def _merged(
    before: frozenset[PoolKey],
    obs: ScaleDynamoObservation,
    loads: Sequence[float | None],
    config: ScaleDynamoConfig,
) -> frozenset[PoolKey]:
    """Returns the pools whose own load is too small for a node of theirs; only the rule without hand-down asks."""
    found = set()
    for item, load in zip(obs.classes[:-1], loads, strict=False):
        bound = config.split_above if item.key in before else config.merge_below
        if load is None:
            found |= {item.key} & before
        elif item.max_load > 0.0 and load / item.max_load < bound:
            found.add(item.key)
    return frozenset(found)


def _least(
    state: ScaleDynamoState,
    obs: ScaleDynamoObservation,
    config: ScaleDynamoConfig,
    merged: frozenset[PoolKey],
    epoch: int,
    present: Sequence[int],
) -> tuple[list[int], dict[PoolKey, int]]:
    """Returns the flap guard, when an epoch starts: how far each pool may shrink, and for how long it has been too
    large."""
    nothing = [0] * len(present)
    loads, coming = _loads(obs, config, epoch), _loads(obs, config, epoch + 1)
    now = size(obs.classes, loads, _rule(obs, loads, present, merged, nothing, config)).nodes
    then = size(obs.classes, coming, _rule(obs, coming, nothing, merged, nothing, config)).nodes
    least, low = [], {}
    for item, had, wanted, soon in zip(obs.classes, present, now, then, strict=True):
        streak = state.low.get(item.key, 0) + 1 if wanted < had else 0
        if 0 < streak < config.down_after:
            least.append(had)
            low[item.key] = streak
        else:
            least.append(min(had, soon))
    return least, low


def _look_ahead(
    obs: ScaleDynamoObservation, config: ScaleDynamoConfig, merged: frozenset[PoolKey], epoch: int, nodes: list[int]
) -> tuple[list[int], str]:
    """Adds the nodes that coming epochs need and that must start by now to be ready when they begin."""
    started = 0
    for coming in range(epoch + 1, epoch + 2 + math.floor(obs.cold_start_s / config.epoch_s)):
        left_s = coming * config.epoch_s - obs.now_s
        loads = _loads(obs, config, coming)
        if left_s > obs.cold_start_s + _EPS or all(load is None for load in loads):
            break
        wanted = size(obs.classes, loads, _rule(obs, loads, nodes, merged, nodes, config)).nodes
        extra = sum(wanted) - sum(nodes)
        if left_s > obs.warm_start_s + _EPS:  # the warm pool's can wait
            extra = 0 if config.warm_pool is None else max(0, extra - config.warm_pool)
        for i in reversed(range(len(nodes))):
            more = min(extra, wanted[i] - nodes[i])
            nodes[i] += more
            extra -= more
            started += more
    return nodes, f"{started} of them ahead of the next epoch." if started else ""


def _next_tick_s(obs: ScaleDynamoObservation, config: ScaleDynamoConfig, epoch: int) -> float:
    ticks = [(epoch + 1) * config.epoch_s]
    if config.proactive:
        most = 2 + math.floor(obs.cold_start_s / config.epoch_s)
        leads = (obs.cold_start_s, obs.warm_start_s)
        ticks += [(epoch + j) * config.epoch_s - lead for j in range(1, most + 1) for lead in leads]
    return min(at for at in ticks if at > obs.now_s + _EPS)


def _why(
    scaled: Sequence[ScaleTo], unserved: Sequence[str], cut: int, unknown: Sequence[str]
) -> tuple[Reason, list[str]]:
    notes = []
    if unserved:
        notes.append(f"No node serves {', '.join(unserved)} within the limits.")
    if cut:
        notes.append(f"{cut} more would be needed than there are.")
    if unknown:
        notes.append(f"No forecast for {', '.join(unknown)}: kept.")
    if unserved or cut:
        return Reason.INFEASIBLE, notes
    if scaled:
        return Reason.HEURISTIC, notes
    return (Reason.NO_DATA if unknown else Reason.NO_CHANGE), notes


def _decision(
    obs: ScaleDynamoObservation, item: ClassLoad, figures: Mapping[str, Any], short: Collection[str]
) -> PoolDecision:
    """Returns the decision for one class, with the figures that are its own."""
    name, had, count, load = item.key.request_class, figures["had_nodes"], figures["nodes"], figures["peak_load"]
    move = f"{had} -> {count} nodes" if count != had else f"{count} nodes stay"
    basis = f" ({item.basis})" if item.basis else ""
    text = f"{name}: {move}, " + ("no forecast" if load is None else f"for {load:.3g} tokens/s forecast{basis}")
    if figures["handed_on"] > 0.0:
        text += f"; {figures['handed_on']:.0%} of what comes goes on to the next larger class"
    if name in short:
        reason, text = Reason.INFEASIBLE, f"{text}; it needs more nodes than there are, or other ones"
    elif load is None:
        reason = Reason.NO_DATA
    else:
        reason = Reason.HEURISTIC if count != had else Reason.NO_CHANGE
    rationale = Rationale(reason, f"{text}.", dict(figures))
    return PoolDecision(item.key, {obs.node: count} if count else {}, count != had, rationale)


def _moves(obs: ScaleDynamoObservation, nodes: Sequence[int], present: Sequence[int]) -> str:
    moves = [
        f"{item.key.request_class} {had} -> {count}"
        for item, count, had in zip(obs.classes, nodes, present, strict=True)
        if count != had
    ]
    return f"Nodes: {', '.join(moves)}." if moves else f"{sum(nodes)} nodes stay as they are."


def _inputs(
    obs: ScaleDynamoObservation,
    config: ScaleDynamoConfig,
    loads: Sequence[float | None],
    sizing: Sizing,
    nodes: Sequence[int],
    shares: Mapping[PoolKey, float],
) -> dict[str, Any]:
    return {
        "epoch_s": config.epoch_s,
        "headroom": config.headroom,
        "nodes_available": obs.nodes_available,
        **({} if obs.basis is None else {"profiles": {obs.node.name: basis_json(obs.basis)}}),
        "warm_start_s": obs.warm_start_s,
        "cold_start_s": obs.cold_start_s,
        "classes": {
            item.key.request_class: {
                "peak_load": load,
                "basis": item.basis,
                "max_load": item.max_load,
                "need_nodes": need,
                "nodes": count,
                "had_nodes": obs.nodes.get(item.key, 0),
                "handed_on": shares[item.key],
            }
            for item, load, need, count in zip(obs.classes, loads, sizing.need, nodes, strict=True)
        },
    }
