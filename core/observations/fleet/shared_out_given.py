"""Builds what a plan without a carbon loop is given: the nodes that are there, and one partition's classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.controllers.fleet.shared_out import NodeView, SharedOutObservation
from core.types import PartitionOption


def shared_out_observation(
    now_s: float,
    period_s: float,
    nodes: Iterable[NodeView],
    partition: PartitionOption,
    g_per_kwh: Mapping[str, float | None] | None = None,
) -> SharedOutObservation:
    """Returns what a turn is given, small nodes first.

    Args:
        g_per_kwh: The mean intensity of each site over the coming epoch, where the scale loop goes by it.
    """
    in_order = tuple(sorted(nodes, key=lambda node: (node.gpus, node.site, node.gpu)))
    return SharedOutObservation(now_s, period_s, in_order, partition, g_per_kwh or {})
