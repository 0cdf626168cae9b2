"""The re-shard plan of DynamoLLM (section IV-C): which GPU takes which shard of the next layout, and who sends what.

A model is cut into equal blocks (1/8 each, finer where a TP degree does not divide 8). A GPU that is rank r of a TP n
instance holds the r-th n-th of them, so that a larger shard contains whole smaller ones. Current GPUs and next shards
form a bipartite graph whose edges weigh the blocks that need not move; a matching of most weight moves least.

Several matchings may move as little. Links are full duplex and all pairs have their own (NVLink through a switch), so
what takes time is the busiest link. A GPU that lacks k blocks gets them from all who hold them, as evenly as can be,
and how evenly does not depend on where the others' shards went: among the matchings of most weight the one of the
least time is found exactly, by forbidding edges that take longer. Of equals, shards stay with their own instance.

Replicas hold the same blocks, hence time is not volume: TP4 -> 4TP2 brings 4 blocks to a GPU, 2 from each of two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

EIGHTHS = 8
_FORBIDDEN = 1e9

Instance = tuple[int, ...]  # the GPUs of an instance, by rank


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks that one GPU sends to another; all transfers run at once."""

    source: int
    target: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Shares of the whole model on one GPU: what it holds now, what comes, and what it will hold."""

    stored: float
    coming: float
    wanted: float


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """The GPUs on which the next instances stand, and the transfers that lead there.

    `units` in T, the time to move 1/8 of the weights over one link (table VI).
    """

    instances: tuple[Instance, ...]  # in the order of the wanted TP degrees
    transfers: tuple[Transfer, ...]
    block_count: int  # blocks that the whole model is cut into
    gpus: Mapping[int, GpuShare]

    @property
    def units(self) -> float:
        return max((len(t.blocks) for t in self.transfers), default=0) * EIGHTHS / self.block_count


@dataclass(frozen=True, slots=True)
class Outlook:
    """The effect of a re-shard on the instances that serve meanwhile.

    For `transfer_s` the old instances serve with `kv_share` of their KV cache (below 1 where a GPU takes up weights),
    then engines synchronise for `sync_s`. `serves_on`: the old ones serve through that as well, since every GPU has
    room for the weights of both; else their load is to be shifted first. Where not even what comes fits beside what is
    there, `kv_share` is 0: they must be down before anything moves.
    """

    transfer_s: float
    sync_s: float
    kv_share: float
    serves_on: bool

    @property
    def serving_s(self) -> float:
        """Seconds in which the old instances still serve."""
        if self.kv_share <= 0.0:
            return 0.0
        return self.transfer_s + self.sync_s if self.serves_on else self.transfer_s

    @property
    def halted_s(self) -> float:
        """Seconds after that in which nobody does."""
        return self.transfer_s + self.sync_s - self.serving_s


def plan(
    current: Sequence[Sequence[int]], target: Sequence[int], gpus: Sequence[int], onto: Collection[int] | None = None
) -> ReshardPlan:
    """Returns the plan of least volume and, among those, of least time.

    Args:
        current: The GPUs of each instance that serves now, by rank.
        target: TP degrees of the instances that are to be.
        gpus: Ids of all GPUs of the server that may be used, idle ones included; all of `current` are among them.
        onto: Those of them on which the next instances are to stand; None: on any.

    Raises:
        ValueError: Nobody holds the weights, or there are too few GPUs, or one is named twice or not among `gpus`.
    """
    open_to = set(gpus if onto is None else onto)
    used = [gpu for instance in current for gpu in instance]
    if not used or any(not instance for instance in current):
        raise ValueError("a re-shard needs an instance that holds the weights")
    if len(set(used)) < len(used) or not set(used) <= set(gpus) or len(set(gpus)) < len(gpus):
        raise ValueError("each GPU belongs to one instance and to the server")
    if not open_to <= set(gpus):
        raise ValueError("instances are to stand on GPUs of the server")
    if not target or min(target) < 1 or sum(target) > len(open_to):
        raise ValueError(f"{len(open_to)} GPUs cannot hold instances of TP {', '.join(map(str, target)) or 'nothing'}")
    graph = _Graph(current, tuple(target), tuple(gpus), open_to)
    return graph.answer(graph.match())


def outlook(
    found: ReshardPlan, weight_bytes: float, room_bytes: float, link_bytes_per_s: float, sync_s: float
) -> Outlook:
    """Seconds and who serves meanwhile (end of IV-C). `room_bytes`: what weights and KV cache of a GPU may fill.

    A GPU that holds nothing now serves nobody; what comes there takes no KV cache from anyone.
    """
    transfer_s = found.units * weight_bytes / EIGHTHS / link_bytes_per_s
    if not found.transfers and all(share.stored == share.wanted for share in found.gpus.values()):
        return Outlook(0.0, 0.0, 1.0, True)
    serving = [share for share in found.gpus.values() if share.stored > 0.0]
    kv_share = min(_kv_share(share, weight_bytes, room_bytes) for share in serving)
    both = max(share.stored + share.wanted for share in serving) * weight_bytes <= room_bytes
    return Outlook(transfer_s, sync_s, kv_share, both and kv_share > 0.0)


def _kv_share(share: GpuShare, weight_bytes: float, room_bytes: float) -> float:
    spare = room_bytes - share.stored * weight_bytes
    if share.coming == 0.0:
        return 1.0
    return max(0.0, 1.0 - share.coming * weight_bytes / spare) if spare > 0.0 else 0.0


class _Graph:
    """GPUs on one side, next shards on the other. `lacks[g, s]` are the blocks that GPU g would need for shard s."""

    def __init__(
        self, current: Sequence[Sequence[int]], target: tuple[int, ...], gpus: tuple[int, ...], open_to: Collection[int]
    ) -> None:
        self.target, self.gpus = target, gpus
        self.closed = np.array([gpu not in open_to for gpu in gpus])
        self.blocks = math.lcm(EIGHTHS, *(len(instance) for instance in current), *target)
        self.stored: dict[int, frozenset[int]] = dict.fromkeys(gpus, frozenset())
        place: dict[int, tuple[int, int]] = {}  # GPU -> (instance, rank)
        for number, instance in enumerate(current):
            for rank, gpu in enumerate(instance):
                self.stored[gpu] = self._shard(rank, len(instance))
                place[gpu] = number, rank
        self.slots = [(number, rank) for number, tp in enumerate(target) for rank in range(tp)]
        self.wanted = [self._shard(rank, target[number]) for number, rank in self.slots]
        shape = len(gpus), len(self.slots)
        own = _successors([len(instance) for instance in current], target)
        self.kept = np.zeros(shape)  # blocks that stay
        self.units = np.zeros(shape)  # blocks on the busiest link to this GPU
        self.home = np.zeros(shape)  # 1: the very shard of the very instance
        for g, gpu in enumerate(gpus):
            for s, wanted in enumerate(self.wanted):
                self.kept[g, s] = len(wanted & self.stored[gpu])
                self.units[g, s] = self._busiest(gpu, wanted)
                number, rank = self.slots[s]
                self.home[g, s] = float(gpu in place and (own.get(number), rank) == place[gpu])

    def _shard(self, rank: int, tp: int) -> frozenset[int]:
        size = self.blocks // tp
        return frozenset(range(rank * size, (rank + 1) * size))

    def _busiest(self, gpu: int, wanted: frozenset[int]) -> int:
        return max((len(t.blocks) for t in self._fetch(gpu, wanted)), default=0)

    def _fetch(self, gpu: int, wanted: frozenset[int]) -> tuple[Transfer, ...]:
        """Who sends the missing blocks, so that the busiest link carries as few as can be: `even` decides."""
        missing = sorted(wanted - self.stored[gpu])
        holders = [other for other in self.gpus if other != gpu and self.stored[other] & wanted]
        chosen = even([[h for h, holder in enumerate(holders) if b in self.stored[holder]] for b in missing])
        return tuple(
            Transfer(holder, gpu, blocks)
            for h, holder in enumerate(holders)
            if (blocks := tuple(b for b, by in zip(missing, chosen, strict=True) if by == h))
        )

    def match(self) -> NDArray[np.intp]:
        """The GPU of each shard: most blocks stay, then least time, then shards stay with their instance."""
        weight = self.kept * (len(self.slots) + 1.0) + self.home
        weight[self.closed] = -_FORBIDDEN
        most = self._kept_by(_assign(weight))
        for limit in sorted(set(self.units.ravel().tolist())):
            allowed = np.where(self.units <= limit, weight, -_FORBIDDEN)
            found = _assign(allowed)
            if np.all(allowed[found, range(len(self.slots))] > -_FORBIDDEN) and self._kept_by(found) >= most:
                return found
        raise AssertionError("the longest edge allows every matching")

    def _kept_by(self, rows: NDArray[np.intp]) -> float:
        return float(self.kept[rows, range(len(self.slots))].sum())

    def answer(self, rows: NDArray[np.intp]) -> ReshardPlan:
        takes = {self.slots[s]: self.gpus[g] for s, g in enumerate(rows.tolist())}
        transfers: list[Transfer] = []
        shares = {gpu: GpuShare(len(self.stored[gpu]) / self.blocks, 0.0, 0.0) for gpu in self.gpus}
        for slot, wanted in zip(self.slots, self.wanted, strict=True):
            gpu = takes[slot]
            transfers += self._fetch(gpu, wanted)
            coming = len(wanted - self.stored[gpu]) / self.blocks
            shares[gpu] = GpuShare(shares[gpu].stored, coming, len(wanted) / self.blocks)
        instances = tuple(tuple(takes[number, rank] for rank in range(tp)) for number, tp in enumerate(self.target))
        return ReshardPlan(instances, tuple(transfers), self.blocks, shares)


def even(holders: Sequence[Sequence[int]]) -> list[int]:
    """Chooses one holder for each block so that the busiest one sends as few blocks as possible.

    Kuhn's augmenting paths, with a cap on every holder that rises when a block finds no way.

    Args:
        holders: For each block those who have it; each has at least one.
    """
    sends: dict[int, list[int]] = {}
    cap = 1

    def place(block: int, tried: set[int]) -> bool:
        for holder in holders[block]:
            if holder in tried:
                continue
            tried.add(holder)
            queue = sends.setdefault(holder, [])
            if len(queue) < cap:
                queue.append(block)
                return True
            for position, other in enumerate(queue):
                if place(other, tried):
                    queue[position] = block
                    return True
        return False

    for block in range(len(holders)):
        while not place(block, set()):
            cap += 1
    return [holder for _, holder in sorted((block, holder) for holder, queue in sends.items() for block in queue)]


def _successors(current: Sequence[int], target: Sequence[int]) -> dict[int, int]:
    """Returns for each next instance the present one that it may go on from: the first free one of its degree."""
    free = list(range(len(current)))
    found: dict[int, int] = {}
    for number, tp in enumerate(target):
        same = next((old for old in free if current[old] == tp), None)
        if same is not None:
            free.remove(same)
            found[number] = same
    return found


def _assign(weight: NDArray[np.float64]) -> NDArray[np.intp]:
    """Returns the row of each column, of most weight in all. There are at least as many rows as columns."""
    rows, columns = linear_sum_assignment(weight, maximize=True)
    order = np.argsort(columns)
    found: NDArray[np.intp] = rows[order]
    return found
