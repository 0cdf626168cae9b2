"""Each service's part of the GPUs of a fleet, by weight and by need.

Weighted max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2; with weights: Parekh and
Gallager 1993): GPUs go to the service that has fewest for its weight, until it has what it wants or what it can run on
is given out. So nobody is given GPUs that it does not need while another lacks them. They go out in rounds: an instance
for everybody, one for each class, then what floors promise, then the rest up to the ceilings.

A service that can run on few types of GPU is given those, and others make room: GPUs move along augmenting paths, as in
bipartite matching, so that the order in which services ask has no effect on how many each gets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Share:
    """Says what part of the GPUs a service is to have.

    weight: Its part beside others' where there is too little for all: 2 is twice as many GPUs as 1.
    min_gpus: The floor. It has as many before others get more than an instance for each class; what it does not need
        of them, others may use until it does.
    max_gpus: The ceiling, which holds also where GPUs are free. None: there is none.
    """

    weight: float = 1.0
    min_gpus: int = 0
    max_gpus: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.weight < float("inf"):
            raise ValueError(f"weight: {self.weight:g} is not a weight; give a number above 0, 1 for an equal part")
        if self.min_gpus < 0:
            raise ValueError("min_gpus: must be at least 0")
        if self.max_gpus is not None and self.max_gpus < max(1, self.min_gpus):
            raise ValueError(
                f"max_gpus: {self.max_gpus} is below "
                + (f"min_gpus, {self.min_gpus}; raise it, or lower min_gpus" if self.min_gpus else "1; leave it out")
            )

    def most(self, gpus: int) -> int:
        """Returns how many of so many GPUs it may have."""
        return gpus if self.max_gpus is None else min(gpus, self.max_gpus)


EQUAL = Share()


@dataclass(frozen=True, slots=True)
class Ask:
    """Says what a service asks for.

    Attributes:
        wanted: GPUs for its load, by its own count.
        unit: GPUs of its smallest instance: fewer are of no use to it, but as the last ones of `wanted`.
        least: GPUs with which every one of its classes has an instance.
        on: The kinds of GPUs that it can run on.
    """

    wanted: int
    on: frozenset[Hashable]
    unit: int = 1
    least: int = 0
    share: Share = field(default=EQUAL)

    @property
    def rounds(self) -> tuple[int, ...]:
        """Returns up to how many GPUs it gets in each round."""
        most = self.share.most(self.wanted)
        floor = max(self.least, self.share.min_gpus)
        return tuple(min(most, gpus) for gpus in (self.unit, self.least, floor, most))


def gpu_parts(gpus: Mapping[Hashable, int], asks: Mapping[str, Ask]) -> dict[str, int]:
    """Returns how many GPUs are each service's, at most what it wants and its ceiling.

    Args:
        gpus: How many there are of each kind. What a kind is the caller says; GPUs of one are alike to all services.
        asks: By service. Among equals the heavier one comes first, then the first by name.
    """
    free = Counter(gpus)
    had: dict[str, Counter[Hashable]] = {name: Counter() for name in asks}
    for number in range(4):
        able = {name: ask.rounds[number] for name, ask in asks.items()}
        while able := {name: up_to for name, up_to in able.items() if had[name].total() < up_to}:
            name = min(able, key=lambda name: _order(name, had[name].total(), asks[name].share))
            gpus_more = min(asks[name].unit, asks[name].share.most(asks[name].wanted) - had[name].total())
            if not _take(name, gpus_more, free, had, asks):
                del able[name]
    return {name: own.total() for name, own in had.items()}


def _order(name: str, gpus: int, share: Share) -> tuple[float, float, str]:
    return gpus / share.weight, -share.weight, name


def _take(
    name: str, gpus: int, free: Counter[Hashable], had: dict[str, Counter[Hashable]], asks: Mapping[str, Ask]
) -> bool:
    """Gives a service so many GPUs more, all or none; others move to other kinds where that makes room."""
    moves: list[tuple[list[tuple[str, Hashable]], int]] = []
    left = gpus
    while left:
        path = _path(name, free, had, asks)
        if path is None:
            for done, count in moves:
                _move(done, -count, free, had)
            return False
        count = min(left, free[path[-1][1]], *(had[other][path[n][1]] for n, (other, _) in enumerate(path[1:])))
        _move(path, count, free, had)
        moves.insert(0, (path, count))
        left -= count
    return True


def _path(
    name: str, free: Mapping[Hashable, int], had: Mapping[str, Counter[Hashable]], asks: Mapping[str, Ask]
) -> list[tuple[str, Hashable]] | None:
    """Returns the shortest chain to a free GPU: who takes one of which kind; each but the first gives up one of the
    kind before."""
    paths: deque[list[tuple[str, Hashable]]] = deque([(name, kind)] for kind in sorted(asks[name].on, key=repr))
    seen = set(asks[name].on)
    while paths:
        path = paths.popleft()
        kind = path[-1][1]
        if free[kind] > 0:
            return path
        for other in sorted(had):
            if had[other][kind] > 0:
                further = sorted(asks[other].on - seen, key=repr)
                seen.update(further)
                paths.extend([*path, (other, next_kind)] for next_kind in further)
    return None


def _move(
    path: list[tuple[str, Hashable]], count: int, free: Counter[Hashable], had: dict[str, Counter[Hashable]]
) -> None:
    for n, (who, kind) in enumerate(path):
        had[who][kind] += count
        if n:
            had[who][path[n - 1][1]] -= count
    free[path[-1][1]] -= count
