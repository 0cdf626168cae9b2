"""Counts the instances that nodes have room for."""

from __future__ import annotations

from collections.abc import Iterable

from core.algorithms.fleet.sharing import NodeGpus
from core.controllers.fleet.shared_out import NodeView
from core.types import Mode


def room(nodes: Iterable[NodeGpus | NodeView], site: str, mode: Mode, taken: int = 0) -> int:
    """Returns how many instances of a mode fit on the nodes of a site, since none spans nodes.

    Args:
        taken: GPUs of the type that are not free; they are counted on the first nodes.
    """
    found = 0
    for node in nodes:
        if (node.site, node.gpu) == (site, mode.gpu):
            gone = min(taken, node.gpus)
            taken -= gone
            found += (node.gpus - gone) // mode.tp
    return found
