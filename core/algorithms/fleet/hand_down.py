"""Nodes for each request class, and what pools hand on to the next larger class (DynamoLLM IV-B, "fragmentation").

Loads are added up in nodes: a class that comes at PL where one node carries ML of it takes PL / ML nodes, in its own
pool or beside others in a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from core.types import PoolKey

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """A request class and its pool. Loads in prompt tokens a second, as in the paper, or in any unit but one.

    `forecast`: the peak 5-second load of the steps from the present one on, None where unknown. `max_load`: ML.
    `hosted`: ML of this class in the pool of a larger one, by that one's name, whose limits may be tighter than its
    own: the configuration of a pool meets the strictest limits present. Not named: as in its own pool.
    """

    key: PoolKey
    forecast: tuple[float | None, ...]
    max_load: float
    hosted: Mapping[str, float] = field(default_factory=dict)
    basis: str = ""  # what the forecast rests on, for the rationale

    def max_load_in(self, host: PoolKey) -> float:
        return self.hosted.get(host.request_class, self.max_load)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Nodes by class, in their order. `need`: nodes' worth of load that came to each pool, the handed down included;
    `shares`: what part of that each hands on. `unserved`: classes that no node serves within the limits."""

    nodes: tuple[int, ...]
    need: tuple[float, ...]
    shares: tuple[float, ...]
    unserved: tuple[str, ...] = ()


Rule = Callable[[int, float], int]  # (place of the class, nodes' worth of load) -> nodes


def size(classes: Sequence[ClassLoad], loads: Sequence[float | None], rule: Rule) -> Sizing:
    """Goes through the classes from the smallest; what a pool's nodes do not cover goes on to the next one."""
    carried: list[tuple[ClassLoad, float]] = []
    stuck: list[tuple[ClassLoad, float]] = []
    nodes, needs, shares = [], [], []
    for i, (item, load) in enumerate(zip(classes, loads, strict=True)):
        arriving = [*carried, (item, load or 0.0)]
        servable = [(own, amount) for own, amount in arriving if own.max_load_in(item.key) > 0.0]
        need = sum(amount / own.max_load_in(item.key) for own, amount in servable)
        count = rule(i, need)
        left = max(0.0, need - count) / need if need > _EPS else 0.0
        stuck = [(own, amount) for own, amount in arriving if own.max_load_in(item.key) <= 0.0 and amount > 0.0]
        carried = stuck + [(own, amount * left) for own, amount in servable if amount * left > 0.0]
        total = sum(amount for _, amount in arriving)
        nodes.append(count)
        needs.append(need)
        shares.append(sum(amount for _, amount in carried) / total if total > 0.0 and i < len(classes) - 1 else 0.0)
    return Sizing(tuple(nodes), tuple(needs), tuple(shares), tuple(own.key.request_class for own, _ in stuck))


def within(nodes: list[int], need: Sequence[float], available: int | None) -> tuple[list[int], int]:
    """Cuts the nodes to as many as there are, where those that stay are loaded least. Second: how many were cut."""
    cut = 0
    while available is not None and sum(nodes) > max(0, available):
        loaded = {i: need[i] / (n - 1) if n > 1 else math.inf for i, n in enumerate(nodes) if n}
        i = min(loaded, key=lambda i: (loaded[i], need[i], i))
        nodes[i] -= 1
        cut += 1
    return nodes, cut
