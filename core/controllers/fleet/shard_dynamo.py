"""DynamoLLM's shard epoch (section IV-B): the mix of TP degrees on a pool's nodes, changed a few nodes at a time.

Eq. 1 is solved at the top clock (the clock loop's knob is left to it; `clocks="all"` solves it in full), for the load
that is expected. A new mix is taken only if what it saves until the next epoch is more than its transition costs, as
the overhead table and the re-shard plan have it. Then the nodes change in waves, the largest saving first, and a wave
is only as large as the others can carry the load meanwhile.

An old instance serves until the new one is up when the GPUs have room for the weights of both; else its load goes to
the others first. Where nobody could take it, the node stays, unless what runs cannot carry the need anyway.

The paper changes nodes in place. Where instances cannot, new ones start: beside the old ones, which serve until then,
or on their GPUs, once they have ended what they had (`ShardPool.change`). Such a change takes what starts take.
Live engines change in place one by one (`ShardPool.one_by_one`): one becomes one, so that others end first where there
are to be fewer, and start after it where there are to be more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from core.algorithms.fleet import dynamo_mix
from core.algorithms.fleet.highs import SolverStatus
from core.algorithms.fleet.power_curve import OperatingMix, Piece, pieces
from core.algorithms.placement import reshard
from core.algorithms.placement.node_layouts import Layout, arrange
from core.controllers.basis import basis_json
from core.controllers.fleet.explain import gravest, least_trusted, workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.engine.engine_model import gpu
from core.engine.load_profile import LoadProfile
from core.engine.overhead_table import OverheadTable, reshard_key, start_key
from core.types import (
    Alternative,
    ChangeKind,
    Effects,
    Limits,
    Mode,
    PoolDecision,
    PoolKey,
    Rationale,
    Reason,
    ReshardNode,
    WeightTransfer,
)

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class ShardPool:
    """A pool of one GPU type. `nodes`: what runs on each now, an empty layout included.

    `limits`: the strictest of the services and classes that share the pool now. `drain_s`: what an old instance takes
    to end the requests that it has; of one that ends. `one_by_one`: in place, each instance becomes one; else some
    become others together, as in the paper.
    """

    key: PoolKey
    model: str
    gpu: str
    nodes: Mapping[str, Layout]
    demand_rps: tuple[float, ...]  # expected peak of each step of the coming epoch
    limits: Limits
    profiles: Mapping[int, LoadProfile]  # TP degree -> one instance
    weight_bytes: float
    room_bytes: float  # of a GPU, that weights and KV cache may fill
    start_s: float  # of an instance on a node that holds no weights, as published
    gpus_per_node: int = 8
    change: ChangeKind = ChangeKind.IN_PLACE
    drain_s: float = 0.0
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class ShardDynamoObservation:
    now_s: float
    pools: tuple[ShardPool, ...]
    overheads: OverheadTable
    sync_s: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ShardDynamoConfig:
    """`clocks`: "top" for the paper's simplified form, "all" for eq. 1 in full. `wave`: most nodes at once; one
    is watched for at least `settle_s`. A pool that has nodes keeps capacity for `floor_rps` also without traffic."""

    epoch_s: float = 300.0
    alpha: float = 1.1
    floor_rps: float = 0.05
    clocks: str = "top"
    wave: int = 2
    settle_s: float = 5.0
    min_saving: float = 0.01
    levels: int = 6

    def __post_init__(self) -> None:
        if self.clocks not in ("top", "all") or self.wave < 1 or self.alpha < 1.0 or self.epoch_s <= 0.0:
            raise ValueError("clocks are top or all, a wave has at least one node, alpha >= 1 and epoch_s > 0")


@dataclass(frozen=True, slots=True)
class Change:
    """A pool on its way: layouts to come, and the nodes under way with the time until which they are."""

    target: Mapping[str, Layout]
    busy_until_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardDynamoState:
    epoch: int
    changes: Mapping[PoolKey, Change] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Move:
    command: ReshardNode
    saving_w: float
    cost_j: float

    @property
    def takes_s(self) -> float:
        return self.command.transfer_s + self.command.sync_s


def step(
    state: ShardDynamoState | None, obs: ShardDynamoObservation, config: ShardDynamoConfig
) -> tuple[ShardDynamoState, Effects]:
    """Decides one tick: at the start of an epoch new mixes, between epochs the next wave of those under way.

    A pool that has neither gets no decision.
    """
    epoch = math.floor(obs.now_s / config.epoch_s + _EPS)
    fresh = state is None or state.epoch != epoch
    changes: dict[PoolKey, Change] = {}
    commands: list[ReshardNode] = []
    rationales: dict[PoolKey, Rationale] = {}
    decisions: list[PoolDecision] = []
    for pool in obs.pools:
        view = _View(pool, obs, config)
        change = state.changes.get(pool.key) if state is not None else None
        busy = {n: at for n, at in (change.busy_until_s if change else {}).items() if at > obs.now_s + _EPS}
        wave: list[ReshardNode] = []
        if fresh and not busy and pool.nodes:
            change, rationales[pool.key] = view.decide()
        if change is not None:
            wave = view.wave(pool.nodes, change.target, busy)
            commands += wave
            busy |= {m.node: obs.now_s + max(config.settle_s, m.transfer_s + m.sync_s) for m in wave}
            if busy:
                changes[pool.key] = Change(change.target, busy)
        if wave or pool.key in rationales:
            why = rationales.get(pool.key) or _goes_on(pool.key, wave)
            workers = view.workers({**pool.nodes, **{command.node: command.target for command in wave}})
            decisions.append(PoolDecision(pool.key, workers, bool(wave), why))
    ends = [at for change in changes.values() for at in change.busy_until_s.values()]
    next_s = min([(epoch + 1) * config.epoch_s, *(at for at in ends if at > obs.now_s + _EPS)])
    effects = Effects(tuple(commands), next_s, _rationale(rationales, commands), tuple(decisions))
    return ShardDynamoState(epoch, changes), effects


class _View:
    """One pool at one tick."""

    def __init__(self, pool: ShardPool, obs: ShardDynamoObservation, config: ShardDynamoConfig) -> None:
        self.pool, self.obs, self.config = pool, obs, config
        self.curves: dict[Mode, tuple[Piece, ...]] = {}
        for tp, profile in sorted(pool.profiles.items()):
            rows = profile.top() if config.clocks == "top" else profile
            self.curves[Mode(pool.gpu, tp)] = pieces(rows, pool.limits, config.levels)
        self.most_rps = {mode.tp: max((p.high_rps for p in own), default=0.0) for mode, own in self.curves.items()}
        self.busy_w = {mode.tp: max((p.high_w for p in own), default=0.0) for mode, own in self.curves.items()}
        self.load_rps = max(config.floor_rps, *pool.demand_rps, 0.0)
        self.need_rps = config.alpha * self.load_rps

    def decide(self) -> tuple[Change | None, Rationale]:
        """Finds the best mix that can be reached while serving, and takes it if it pays off.

        When the best of all cannot be reached (a node cannot change under load, nobody takes over), the modes that it
        would add are left out one by one, the smallest degree first, and the best of what is left is judged.
        """
        curves = dict(self.curves)
        first: Rationale | None = None
        while True:
            change, why, added = self._judge(curves)
            first = first or why
            if not added or len(curves) == 1:
                return change, first if change is None else why
            del curves[min(added)]

    def _judge(self, curves: Mapping[Mode, tuple[Piece, ...]]) -> tuple[Change | None, Rationale, set[Mode]]:
        """Returns the best mix of some modes; last: those that it would add, when it cannot be reached."""
        pool, present = self.pool, self.workers(self.pool.nodes)
        gpus = len(pool.nodes) * pool.gpus_per_node
        best = dynamo_mix.solve({pool.gpu: gpus}, curves, self.load_rps, self.need_rps)
        target = None if best is None else arrange(pool.nodes, _by_tp(best.workers), pool.gpus_per_node)
        if best is None or target is None:
            text = f"no mix on {gpus} GPUs carries {self.need_rps:.2f} requests/s; {workers_text(present)} stays"
            return None, self._rationale_of(Reason.INFEASIBLE, text, best), set()
        if best.workers == present:
            text = f"{workers_text(present)} is already the best mix"
            return None, self._rationale_of(Reason.NO_CHANGE, text, best), set()
        now_w = self.power_w(pool.nodes) if self.carries(pool.nodes) >= self.need_rps - 1e-6 else None
        move = f"{workers_text(present)} -> {workers_text(best.workers)}"
        cost_j = saving_j = None
        if now_w is not None:
            if now_w - best.power_w <= self.config.min_saving * now_w:
                text = f"{workers_text(present)} stays, no mix draws less by more than {self.config.min_saving:.0%}"
                return None, self._rationale_of(Reason.NO_CHANGE, text, best, now_w), set()
            moves = self._moves(pool.nodes, target)
            cost_j = sum(own.cost_j for own in moves)
            left_s = self.config.epoch_s - sum(own.takes_s for own in moves) / self.config.wave
            saving_j = (now_w - best.power_w) * max(0.0, left_s)
            if saving_j <= cost_j:
                text = f"{move} would save {saving_j:.0f} J in an epoch and cost {cost_j:.0f} J"
                return None, self._rationale_of(Reason.NOT_WORTH_IT, text, best, now_w, saving_j, cost_j), set()
        if not self._reachable(target):
            text = f"{move} would be better, but the others cannot take a node's load meanwhile"
            why = self._rationale_of(Reason.NOT_WORTH_IT, text, best, now_w, saving_j, cost_j)
            return None, why, set(best.workers) - set(present)
        if cost_j is None or saving_j is None:
            text = f"{move}, since what runs cannot carry {self.need_rps:.2f} requests/s"
        else:
            text = f"{move}, saves {saving_j - cost_j:.0f} J in an epoch"
        proven = Reason.OPTIMAL if best.status is SolverStatus.OPTIMAL else Reason.FEASIBLE
        return Change(target), self._rationale_of(proven, text, best, now_w, saving_j, cost_j), set()

    def _reachable(self, target: Mapping[str, Layout]) -> bool:
        """Says whether wave after wave, each as soon as the last is done, ends at the target."""
        nodes = dict(self.pool.nodes)
        while any(tuple(sorted(nodes[node])) != layout for node, layout in target.items()):
            wave = self.wave(nodes, target, {})
            if not wave:
                return False
            nodes |= {command.node: command.target for command in wave}
        return True

    def wave(
        self, nodes: Mapping[str, Layout], target: Mapping[str, Layout], busy: Mapping[str, float]
    ) -> list[ReshardNode]:
        """Returns the next nodes to change, largest saving first, so that those that serve meanwhile carry the load.

        Capacity that is given up for good is missing when the next nodes change: if it can be, such nodes wait until
        the others have changed. When what runs cannot carry the load anyway, nodes go all the same: those together
        that cost nothing meanwhile, else the one that costs least.
        """
        moves = [m for m in self._moves(nodes, target) if m.command.node not in busy]
        moves.sort(key=lambda m: (-m.saving_w, m.command.node))
        serving = self.carries({n: layout for n, layout in nodes.items() if n not in busy})
        room = self.config.wave - len(busy)
        if self.carries(nodes) < self.load_rps - 1e-6 and not busy:
            moves.sort(key=lambda m: self._lost_rps(m.command))
            free = [m.command for m in moves if self._lost_rps(m.command)[0] <= _EPS]
            return free[:room] or [m.command for m in moves[:1]]
        patient = self._fitting(moves, serving, room, patient=True)
        return patient or self._fitting(moves, serving, room, patient=False)

    def _fitting(self, moves: Sequence[_Move], serving: float, room: int, *, patient: bool) -> list[ReshardNode]:
        chosen: list[ReshardNode] = []
        losses = [self._lost_rps(move.command) for move in moves]
        most = sorted((during for during, _ in losses), reverse=True)[:2]
        for move, (during, for_good) in zip(moves, losses, strict=True):
            if len(chosen) >= room:
                break
            worst = most[1:] if during == most[0] else most[:1]  # of the others
            later = max(worst, default=0.0) if patient and for_good > _EPS else 0.0
            lost = max(during, for_good)
            if lost <= _EPS or serving - max(lost, for_good + later) >= self.load_rps - 1e-6:
                serving -= lost
                chosen.append(move.command)
        return chosen

    def _moves(self, nodes: Mapping[str, Layout], target: Mapping[str, Layout]) -> list[_Move]:
        """Lists what is to be done on each node.

        Nodes of one layout are alike: each kind of move is worked out once.
        """
        now_w = self.power_w(nodes)
        kinds: dict[tuple[Layout, Layout], _Move] = {}
        found = []
        for node, layout in target.items():
            if node not in nodes:
                continue
            kind = tuple(sorted(nodes[node])), layout
            if kind[0] == layout:
                continue
            if kind not in kinds:
                then_w = self.power_w({**nodes, node: layout})
                command = self._command(node, *kind)
                saving_w = math.inf if now_w is None else -math.inf if then_w is None else now_w - then_w
                kinds[kind] = _Move(command, saving_w, self._cost_j(command))
            found.append(replace(kinds[kind], command=replace(kinds[kind].command, node=node)))
        return found

    def _cost_j(self, command: ReshardNode) -> float:
        """Returns what a change draws that serves nobody: in place as much as the new instances do under load, else
        what their GPUs draw while they start."""
        if self._moves_weights(command.source, command.target):
            added_w = sum(self.busy_w.get(tp, 0.0) for tp in command.target)
            return added_w * (command.transfer_s + command.sync_s)
        params = gpu(self.pool.gpu)
        added = _less(command.target, command.source)
        return self._start_s(added) * sum(added) * params.loaded_idle_w(params.f_max)

    def _start_s(self, layout: Layout) -> float:
        """Returns the seconds until the last of some instances that start together serves."""
        pool, table = self.pool, self.obs.overheads
        keys = (start_key(pool.model, pool.gpu, tp, warm=True) for tp in layout)
        return max((table.get(key, pool.start_s) for key in keys), default=0.0)

    def _command(self, node: str, source: Layout, target: Layout) -> ReshardNode:
        """Returns the command that takes a node from one layout to the other: a re-shard plan, starts, or an end."""
        pool = self.pool
        if not source:
            took_s = self._start_s(target)
            return ReshardNode(pool.key, node, pool.gpu, source, target, took_s, 0.0, 1.0, True, 0.0, pool.change)
        share_rps = self.load_rps * self.carries({node: source}) / max(_EPS, self.carries(pool.nodes))
        if not target:
            return ReshardNode(pool.key, node, pool.gpu, source, target, 0.0, 0.0, 1.0, False, share_rps, pool.change)
        if self._moves_weights(source, target):
            return self._in_place(node, source, target, share_rps)
        took_s, stops = self._start_s(_less(target, source)), self._stops(source, target)
        if not stops:
            return ReshardNode(pool.key, node, pool.gpu, source, target, took_s, 0.0, 1.0, True, 0.0, pool.change)
        took_s, measured = self._took_s(source, target, took_s + pool.drain_s)
        shift_rps = share_rps * self.carries({node: stops}) / max(_EPS, self.carries({node: source}))
        return ReshardNode(
            *(pool.key, node, pool.gpu, source, target, 0.0, took_s, 1.0, False, shift_rps, pool.change, measured)
        )

    def _in_place(self, node: str, source: Layout, target: Layout, share_rps: float) -> ReshardNode:
        """Returns the command of a re-shard plan.

        One by one, the node counts as out while others of it end or start.
        """
        pool = self.pool
        ends, begins = _apart(source, target) if pool.one_by_one else ((), ())
        found = _way(_less(source, ends), _less(target, begins), pool.gpus_per_node)
        out = reshard.outlook(found, pool.weight_bytes, pool.room_bytes, self.obs.link_bytes_per_s, self.obs.sync_s)
        transfer_s, sync_s = out.transfer_s + (pool.drain_s if ends else 0.0), out.sync_s + self._start_s(begins)
        published_s = transfer_s + sync_s
        whole_s, measured = self._took_s(source, target, published_s)
        scale = whole_s / published_s if published_s > 0.0 else 1.0
        serves_on = out.serves_on and not ends and not begins
        return ReshardNode(
            *(pool.key, node, pool.gpu, source, target, scale * transfer_s, scale * sync_s, out.kv_share, serves_on),
            shift_rps=0.0 if serves_on else share_rps,
            measured=measured,
            transfers=tuple(
                WeightTransfer(one.source, one.target, len(one.blocks) / found.block_count) for one in found.transfers
            ),
        )

    def _moves_weights(self, source: Layout, target: Layout) -> bool:
        """Says whether instances become others in place; one by one, where there are both."""
        both = bool(_less(source, target) and _less(target, source))
        return self.pool.change is ChangeKind.IN_PLACE and (both or not self.pool.one_by_one)

    def _took_s(self, source: Layout, target: Layout, published_s: float) -> tuple[float, bool]:
        """Returns the seconds of a change as measured, and true; or as published, and false."""
        in_place = self.pool.change is ChangeKind.IN_PLACE
        key = reshard_key(self.pool.model, self.pool.gpu, source, target, in_place=in_place)
        return self.obs.overheads.get(key, published_s), key in self.obs.overheads.seconds

    def _lost_rps(self, command: ReshardNode) -> tuple[float, float]:
        """Returns the capacity that is gone while a node changes (all, or what the smaller KV cache may cost), and for
        good."""
        carries = self.carries({command.node: command.source})
        for_good = carries - self.carries({command.node: command.target})
        if command.serves_on:
            return carries * (1.0 - command.kv_share), for_good
        return self.carries({command.node: self._stops(command.source, command.target)}), for_good

    def _stops(self, source: Layout, target: Layout) -> Layout:
        """Returns the instances that serve nobody while a node changes, if the old ones do not serve on."""
        if self._moves_weights(source, target):
            return source
        gone = _less(source, target)
        return gone if self.pool.change is ChangeKind.RESTART and _less(target, source) else ()

    # -- figures of layouts --------------------------------------------------------------------------

    def workers(self, nodes: Mapping[str, Layout]) -> dict[Mode, int]:
        found: dict[Mode, int] = {}
        for layout in nodes.values():
            for tp in layout:
                mode = Mode(self.pool.gpu, tp)
                found[mode] = found.get(mode, 0) + 1
        return found

    def carries(self, nodes: Mapping[str, Layout]) -> float:
        """Returns the largest load within the limits at the clocks that the configuration allows; 0 of an
        unknown mode."""
        return sum(self.most_rps.get(tp, 0.0) for layout in nodes.values() for tp in layout)

    def power_w(self, nodes: Mapping[str, Layout]) -> float | None:
        return dynamo_mix.power_w(self.workers(nodes), self.curves, self.load_rps)

    def _rationale_of(
        self,
        reason: Reason,
        text: str,
        best: OperatingMix | None,
        now_w: float | None = None,
        saving_j: float | None = None,
        cost_j: float | None = None,
    ) -> Rationale:
        name, epoch_s = pool_name(self.pool.key), self.config.epoch_s
        present = self.workers(self.pool.nodes)
        rows = [(present, now_w, 0.0)] if present else []
        if best is not None and best.workers != present:
            rows.insert(0, (best.workers, best.power_w, cost_j or 0.0))
        chosen = best.workers if best is not None and reason in (Reason.OPTIMAL, Reason.FEASIBLE) else present
        alternatives = tuple(
            Alternative(
                f"{name}: {workers_text(workers)}",
                chosen=workers == chosen,
                feasible=watts is not None,
                power_w=watts,
                energy_j=None if watts is None else watts * epoch_s + extra_j,
                source=least_trusted(
                    self.pool.profiles[mode.tp].source for mode in workers if mode.tp in self.pool.profiles
                ),
            )
            for workers, watts, extra_j in rows
        )
        inputs: dict[str, Any] = {
            "nodes": {node: list(layout) for node, layout in self.pool.nodes.items()},
            "demand_rps": list(self.pool.demand_rps),
            "load_rps": self.load_rps,
            "need_rps": self.need_rps,
            "clocks": self.config.clocks,
            "change": self.pool.change.value,
            "power_w": now_w,
            "best_power_w": None if best is None else best.power_w,
            "saving_j": saving_j,
            "transition_j": cost_j,
            "profiles": {Mode(self.pool.gpu, tp).name: basis_json(own) for tp, own in self.pool.profiles.items()},
        }
        return Rationale(reason, f"{name}: {text}.", inputs, alternatives)


@lru_cache(maxsize=4096)
def _way(source: Layout, target: Layout, gpus: int) -> reshard.ReshardPlan:
    """Returns the plan for a node whose instances stand side by side; which GPUs they are does not change its time."""
    places, at = [], 0
    for tp in source:
        places.append(tuple(range(at, at + tp)))
        at += tp
    return reshard.plan(places, target, range(gpus))


def _apart(source: Layout, target: Layout) -> tuple[Layout, Layout]:
    """Returns the instances that end and those that start where the others become one another one by one, the largest
    first.
    """
    old, new = _less(source, target)[::-1], _less(target, source)[::-1]
    both = min(len(old), len(new))
    return old[both:], new[both:]


def _less(layout: Layout, other: Layout) -> Layout:
    """Returns the instances of a layout that the other does not have."""
    return tuple(sorted((Counter(layout) - Counter(other)).elements()))


def _by_tp(workers: Mapping[Mode, int]) -> dict[int, int]:
    return {mode.tp: count for mode, count in workers.items()}


def _goes_on(key: PoolKey, wave: Sequence[ReshardNode]) -> Rationale:
    """Returns why the nodes of a wave change between two epochs."""
    layouts = {command.node: {"source": list(command.source), "target": list(command.target)} for command in wave}
    text = f"{pool_name(key)}: the change of this epoch goes on with {', '.join(layouts)}."
    return Rationale(Reason.OPTIMAL, text, {"nodes": layouts})


def _rationale(rationales: Mapping[PoolKey, Rationale], commands: Sequence[ReshardNode]) -> Rationale:
    if not rationales:
        nodes = ", ".join(command.node for command in commands)
        reason = Reason.OPTIMAL if commands else Reason.NO_CHANGE
        return Rationale(reason, f"Next nodes to change: {nodes}." if nodes else "Nodes under way.")
    spoken = [own for own in rationales.values() if own.reason is not Reason.NO_CHANGE]
    return Rationale(
        gravest(own.reason for own in rationales.values()),
        " ".join(own.summary for own in spoken) or "No pool has another mix of TP degrees that pays off; none changes.",
        {pool_name(key): dict(own.inputs) for key, own in rationales.items()},
        tuple(alternative for own in spoken for alternative in own.alternatives),
    )
