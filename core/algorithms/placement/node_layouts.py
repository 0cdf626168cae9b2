"""Decides which node runs which TP degrees, so that a wanted mix needs few nodes changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

Layout = tuple[int, ...]  # TP degrees of the instances on a node, rising


def arrange(nodes: Mapping[str, Layout], wanted: Mapping[int, int], gpus_per_node: int) -> dict[str, Layout] | None:
    """Finds a layout for each node that together make the wanted counts by TP degree; None: they do not fit.

    Largest first, each to a node that already runs one of its degree, else to the fullest node with room. Where
    degrees are powers of two, as they are, this always finds a way when there are GPUs enough.
    """
    free = dict.fromkeys(sorted(nodes), gpus_per_node)
    spare = {name: Counter(layout) for name, layout in nodes.items()}
    given: dict[str, list[int]] = {name: [] for name in free}
    for tp in sorted(wanted, reverse=True):
        for _ in range(wanted[tp]):
            fitting = [name for name in free if free[name] >= tp]
            if not fitting:
                return None
            name = min(fitting, key=lambda name: (not spare[name][tp], free[name], name))
            spare[name][tp] = max(0, spare[name][tp] - 1)
            free[name] -= tp
            given[name].append(tp)
    return {name: tuple(sorted(layout)) for name, layout in given.items()}
