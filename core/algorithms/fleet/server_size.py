"""The size of DynamoLLM's servers on nodes that are not all alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_ENOUGH = 0.9  # of the GPUs that the best size has


def server_size(nodes: Sequence[int], able: Collection[int]) -> int | None:
    """Returns the largest size whose servers have nine tenths of the GPUs that the best one's have.

    A single node from which something else took a GPU does not make all servers small; GPUs over stay idle.

    Args:
        nodes: GPUs of each node.
        able: GPUs of a server that the model can run on.

    Returns:
        None: no node has room for any of them.
    """
    covered = {size: sum(gpus // size * size for gpus in nodes) for size in able}
    best = max(covered.values(), default=0)
    return max((size for size, gpus in covered.items() if gpus and gpus >= _ENOUGH * best), default=None)
