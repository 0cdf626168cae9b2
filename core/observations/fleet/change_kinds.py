"""Says how changes of TP degrees are made in each pool: beside what serves, or after it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from core.types import ChangeKind, Mode, PoolKey

FreeGpus = Mapping[str, Mapping[int, Mapping[str, int]]]  # site -> node -> GPU type -> GPUs that no instance has


def change_kinds(free: FreeGpus, needs: Mapping[PoolKey, Mapping[Mode, int]]) -> dict[PoolKey, ChangeKind]:
    """Returns the kind of change of each pool: with shadows where free GPUs hold what it needs, else a restart.

    Args:
        free: None at all under a policy without shadows.
        needs: The most that may start at once in a pool, as instances. What one pool needs is not free for the next.
    """
    left = {site: {node: Counter(gpus) for node, gpus in nodes.items()} for site, nodes in free.items()}
    return {
        key: ChangeKind.SHADOW if _take(left.get(key.site, {}), needs[key]) else ChangeKind.RESTART
        for key in sorted(needs)
    }


def _take(nodes: dict[int, Counter[str]], workers: Mapping[Mode, int]) -> bool:
    """Takes the GPUs of these instances, largest first, each of the node with fewest that has enough; or none."""
    left = {node: Counter(gpus) for node, gpus in nodes.items()}
    for mode in sorted(Counter(workers).elements(), key=lambda mode: -mode.tp):
        fits = [node for node, gpus in left.items() if gpus[mode.gpu] >= mode.tp]
        if not fits:
            return False
        left[min(fits, key=lambda node: (left[node][mode.gpu], node))][mode.gpu] -= mode.tp
    nodes |= left
    return bool(nodes)
