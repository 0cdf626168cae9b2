"""DynamoLLM's cluster on a fleet of several sites and types of GPU: what a server is, where they are, what each runs.

The paper has one cluster of servers that are all alike. Here that is the type of GPU of which there is most, in servers
of one size (`server_size`), wherever they are; instances of other types stand beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.algorithms.fleet.server_size import server_size
from core.algorithms.placement.node_layouts import Layout, arrange
from core.controllers.fleet.shared_out import TP_DEGREES, NodeView
from core.types import Mode, PoolKey


@dataclass(frozen=True, slots=True)
class Servers:
    """DynamoLLM's cluster: `mode` is what one server runs at its best, `at` how many there are by site."""

    mode: Mode
    at: Mapping[str, int]

    @property
    def size(self) -> int:
        return self.mode.tp

    @property
    def degrees(self) -> tuple[int, ...]:
        """The TP degrees of instances on a server."""
        return tuple(tp for tp in TP_DEGREES if tp <= self.size)

    def holds(self, mode: Mode) -> bool:
        """Says whether such an instance is on a server; else it stands beside them."""
        return mode.gpu == self.mode.gpu and mode.tp <= self.size


def servers(whole: Sequence[NodeView], left: Sequence[NodeView], able: Callable[[Mode], bool]) -> Servers | None:
    """Makes servers of the type of GPU of which there is most; None: no node has room for one.

    Args:
        whole: The nodes, whoever uses them. Type and size are theirs, so that servers stay what they are while others
            take and leave GPUs.
        left: What others leave of them. Only where that has no room for one such server, servers are cut from it.
        able: Says whether the model can run in a mode, and may.
    """
    for basis in (whole, left):
        if (mode := server_mode(basis, able)) is not None:
            at = Counter[str]()
            for node in left:
                at[node.site] += node.gpus // mode.tp if node.gpu == mode.gpu else 0
            if at.total():
                return Servers(mode, at)
    return None


def server_mode(nodes: Iterable[NodeView], able: Callable[[Mode], bool]) -> Mode | None:
    """Returns what one server runs at its best, of the type of which these nodes have most; a type on which the model
    cannot run does not count.
    """
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        sizes.setdefault(node.gpu, []).append(node.gpus)
    for kind in sorted(sizes, key=lambda name: (-sum(sizes[name]), name)):
        size = server_size(sizes[kind], [tp for tp in TP_DEGREES if able(Mode(kind, tp))])
        if size is not None:
            return Mode(kind, size)
    return None


def by_degree(cluster: Servers, workers: Mapping[Mode, int]) -> dict[int, int]:
    """Counts the instances that are on servers, by TP degree."""
    return {mode.tp: n for mode, n in workers.items() if cluster.holds(mode)}


def beside(cluster: Servers, workers: Mapping[Mode, int]) -> dict[Mode, int]:
    """Counts the instances that stand beside the servers."""
    return {mode: n for mode, n in workers.items() if not cluster.holds(mode)}


def servers_used(cluster: Servers, workers: Mapping[Mode, int]) -> int:
    """Counts the servers that a pool's instances need."""
    return math.ceil(sum(tp * n for tp, n in by_degree(cluster, workers).items()) / cluster.size)


def layouts(cluster: Servers, workers: Mapping[Mode, int], known: Mapping[str, Layout]) -> dict[str, Layout]:
    """Returns what runs on each server of a pool; nothing is said of servers that are too few for its instances.

    Args:
        known: Its servers, and what they ran when last looked at; that is kept where it is possible.
    """
    return arrange(known, by_degree(cluster, workers), cluster.size) or {}


def spread(
    cluster: Servers, present: Mapping[PoolKey, Sequence[Layout]], wanted: Mapping[str, int]
) -> dict[PoolKey, list[Layout]]:
    """Returns the servers of each pool, so that every class has as many as are wanted: those it has stay, if they are.

    A class gives up servers where it has fewest, those first on which nothing or many small instances run; it gets new
    ones, each with one instance, at the site with the most free.
    """
    found = {key: sorted(own, key=lambda layout: (not layout, len(layout), layout)) for key, own in present.items()}
    for name, count in wanted.items():
        mine = sorted((key for key in found if key.request_class == name), key=lambda key: len(found[key]))
        for key in mine:
            surplus = sum(len(found[other]) for other in mine) - count
            found[key] = found[key][: len(found[key]) - max(0, min(surplus, len(found[key])))]
    free = Counter(cluster.at)
    for key, own in found.items():
        free[key.site] -= len(own)
    for name, count in wanted.items():
        mine = [key for key in found if key.request_class == name]
        for _ in range(count - sum(len(found[key]) for key in mine)):
            roomy = [key for key in mine if free[key.site] > 0]
            if not roomy:
                break
            key = max(roomy, key=lambda key: (free[key.site], key.site))
            found[key].append((cluster.size,))
            free[key.site] -= 1
    return found
