"""Decides which instances go over to other GPUs in place, rather than that others start (DynamoLLM IV-C). Pure.

It comes before the placement (`node_placement.place`), which then finds these instances as they will be. What a pool
lacks is made of what it has too much of on the same node, largest first, of the one that is nearest in size. An
instance keeps its GPUs and takes free ones, or gives some back, so that the fewest weights move. Where the GPUs that it
needs are others' of its pool that are to end, it serves on, until they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.algorithms.placement import reshard
from core.types import Mode

from .node_placement import READY, NodeRoom, SliceId, Standing, Wanted


@dataclass(frozen=True, slots=True)
class Turn:
    """An instance that is to go over to other GPUs of its node now."""

    id: int
    pool_id: int
    mode: Mode
    gpu_ids: tuple[SliceId, ...]


@dataclass(frozen=True, slots=True)
class InPlace:
    """Has what turns now, and instances and rooms as they will be then. Of an instance that has to wait for its GPUs,
    `standing` has the mode that it will have.
    """

    turns: tuple[Turn, ...]
    standing: tuple[Standing, ...]
    rooms: tuple[NodeRoom, ...]


def turns(wanted: Sequence[Wanted], standing: Sequence[Standing], rooms: Sequence[NodeRoom]) -> InPlace:
    """Returns what changes in place: in pools whose policy wants that, of engines that can."""
    found: list[Turn] = []
    here, left = {s.id: s for s in standing}, {room.id: room for room in rooms}
    shadowed = {old for s in standing for old in s.replaces}
    for pool in (one for one in wanted if one.in_place):
        mine = sorted((s for s in standing if s.pool_id == pool.pool_id and s.running), key=lambda s: (s.order, s.id))
        surplus = [s for s in _surplus(pool, mine) if _can(s) and s.id not in shadowed and s.node_id in left]
        missing = Counter(pool.workers) - Counter(s.mode for s in mine)
        for mode in sorted(missing.elements(), key=lambda mode: (-mode.tp, mode)):
            fits = [s for s in surplus if _room(s, mode, surplus, left[s.node_id]) >= mode.tp]
            if not fits:
                continue
            old = min(fits, key=lambda s: (_free(s, mode, left) < mode.tp, abs(s.mode.tp - mode.tp), s.order, s.id))
            surplus.remove(old)
            room = left[old.node_id]
            free = room.free.get(mode.gpu, ())
            if _free(old, mode, left) < mode.tp:
                now, kept = old.gpu_ids, free[:0]  # all that is free is for it
            else:
                now, kept = _least_moved(old, mode.tp, free)
                found.append(Turn(old.id, pool.pool_id, mode, now))
            here[old.id] = replace(old, mode=mode, gpu_ids=now)
            left[room.id] = replace(room, free={**room.free, mode.gpu: kept})
    return InPlace(tuple(found), tuple(here[s.id] for s in standing), tuple(left[room.id] for room in rooms))


def _can(s: Standing) -> bool:
    return s.reshards and s.state == READY and not s.warm and not s.beside and not s.replaces


def _surplus(pool: Wanted, mine: Sequence[Standing]) -> list[Standing]:
    """Returns the instances that the pool has too much of: of those of one mode the youngest."""
    left = Counter(pool.workers)
    found = []
    for s in mine:
        left[s.mode] -= 1
        if left[s.mode] < 0:
            found.append(s)
    return found


def _free(s: Standing, mode: Mode, left: dict[int, NodeRoom]) -> int:
    """Counts the GPUs that an instance has or could take now; none of another type."""
    return s.mode.tp + len(left[s.node_id].free.get(mode.gpu, ())) if s.mode.gpu == mode.gpu else 0


def _room(s: Standing, mode: Mode, surplus: Sequence[Standing], room: NodeRoom) -> int:
    """Counts the GPUs that an instance can have once the others of its pool there that are too much have ended."""
    if s.mode.gpu != mode.gpu:
        return 0
    others = sum(o.mode.tp for o in surplus if (o.node_id, o.mode.gpu, o.id != s.id) == (s.node_id, mode.gpu, True))
    return s.mode.tp + others + len(room.free.get(mode.gpu, ()))


def _least_moved(old: Standing, tp: int, free: Sequence[SliceId]) -> tuple[tuple[SliceId, ...], tuple[SliceId, ...]]:
    """Returns the GPUs by rank to which the fewest weights move, and those that are free then."""
    ids = (*old.gpu_ids, *free)
    (ranks,) = reshard.plan([range(len(old.gpu_ids))], [tp], range(len(ids))).instances
    return tuple(ids[n] for n in ranks), tuple(gpu for n, gpu in enumerate(ids) if n not in ranks)
