"""Counts the GPUs that new instances may have: whole ones, or slices where a node's GPUs are cut."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.db.models import Count, Q

from core.engine.gpu_slices import sliced
from pools.models import Gpu


@dataclass(frozen=True, slots=True)
class FreeSlices:
    """Counts what is free of a GPU of a node; of one that is not cut a slice is all of it."""

    site_id: int
    site: str
    node_id: int
    gpu: str
    count: int


def free_gpus(reporting: Collection[str]) -> Iterator[FreeSlices]:
    """Returns those of nodes that report and may be placed on, GPU by GPU. None of a GPU that is full."""
    held = Count("holds__slice", filter=Q(holds__released_at__isnull=True), distinct=True)
    rows = Gpu.objects.filter(node__schedulable=True, node__name__in=reporting).order_by().annotate(held=held)
    keys = ("node__cluster__site_id", "node__cluster__site__name", "node_id", "gpu_type", "node__gpu_slices", "held")
    for site_id, site, node_id, gpu_type, slices, taken in rows.values_list(*keys):
        if taken < slices:
            yield FreeSlices(site_id, site, node_id, sliced(gpu_type, slices), slices - taken)
