"""The warm pool: engines beside those that are wanted, asleep or just loaded, which a plan takes before it starts one.

A placement (`node_placement.place`) treats an instance of it like any other: it stays where its pool wants one of its
mode more, and is surplus where none is wanted. What is decided here is what becomes of the surplus. Pure.

Each pool keeps up to its `warm` instances. Surplus ones that serve fall asleep instead of draining; where there are too
few of these, new ones of the mode of which most are wanted are started on free GPUs. Whoever waits for GPUs goes
before: the warm ones of that site and GPU type then drain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.types import Mode

from .node_placement import READY, NodeRoom, Placement, SliceId, Standing, Start, Wanted


@dataclass(frozen=True, slots=True)
class Kept:
    """The instances that sleep from now on (those that already do are among them), that wake, and that start asleep."""

    asleep: frozenset[int] = frozenset()
    woken: frozenset[int] = frozenset()
    starts: tuple[Start, ...] = ()


def keep(
    plan: Placement,
    wanted: Sequence[Wanted],
    standing: Sequence[Standing],
    nodes: Sequence[NodeRoom],
    warm: Mapping[int, int],
) -> Kept:
    """Decides what the warm pool is after a placement of the same arguments. `warm`: how many each pool keeps."""
    usable = {node.id for node in nodes}
    sites = {w.pool_id: w.site_id for w in wanted}
    short = {(sites[pool_id], mode.gpu) for pool_id, mode in (*plan.waiting, *plan.unplaceable)}
    left = dict(warm)
    asleep: set[int] = set()
    drains = set(plan.drains)
    surplus = [s for s in standing if s.id in drains and (s.warm or s.state == READY)]
    for s in sorted(surplus, key=lambda s: (not s.warm, s.order, s.id)):
        if left.get(s.pool_id, 0) > 0 and (s.site_id, s.mode.gpu) not in short:
            left[s.pool_id] -= 1
            asleep.add(s.id)
    woken = {s.id for s in standing if s.warm and s.id not in drains and s.node_id in usable}
    return Kept(frozenset(asleep), frozenset(woken), tuple(_starts(plan, wanted, nodes, left, short)))


def _starts(
    plan: Placement,
    wanted: Sequence[Wanted],
    nodes: Sequence[NodeRoom],
    left: Mapping[int, int],
    short: set[tuple[int, str]],
) -> list[Start]:
    """Starts each on the node with the fewest free GPUs that still fits, as a placement does."""
    taken = {gpu_id for start in plan.starts for gpu_id in start.gpu_ids}
    free: dict[tuple[int, str], list[SliceId]] = defaultdict(list)
    for room in nodes:
        for kind, there in room.free.items():
            free[room.id, kind] = [gpu_id for gpu_id in there if gpu_id not in taken]
    found: list[Start] = []
    for w in wanted:
        mode = _usual(w)
        if mode is None or (w.site_id, mode.gpu) in short:
            continue
        for _ in range(left.get(w.pool_id, 0)):
            on = (n for n in nodes if not n.boots)  # no server is switched on for what may never be needed
            here = [n.id for n in on if n.site_id == w.site_id and len(free[n.id, mode.gpu]) >= mode.tp]
            if not here:
                break
            _, node = min((len(free[n, mode.gpu]), n) for n in here)
            ids = free[node, mode.gpu]
            found.append(Start(w.pool_id, node, mode, tuple(ids[: mode.tp])))
            del ids[: mode.tp]
    return found


def _usual(pool: Wanted) -> Mode | None:
    """Returns the mode of which most are wanted, the larger one of equals; None: none is wanted."""
    present = [(count, mode.tp, mode) for mode, count in pool.workers.items() if count]
    return max(present, key=lambda item: item[:2])[2] if present else None
