"""Says how changes of TP degrees are made on the live fleet now: beside what serves, or after it has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from core.observations.fleet.change_kinds import FreeGpus, change_kinds
from core.types import ChangeKind, Mode, PoolKey
from pools.models import Gpu, InstanceGpu
from scheduler.control.turn_context import TurnContext


def kinds(context: TurnContext, needs: Mapping[PoolKey, Mapping[Mode, int]]) -> dict[PoolKey, ChangeKind]:
    """Returns the kind of change of each pool; `needs` is the most that may start at once in each."""
    return change_kinds(_free(context) if context.knobs.shadow else {}, needs)


def _free(context: TurnContext) -> FreeGpus:
    """Counts the GPUs that no instance has, of nodes that new ones may use."""
    held = InstanceGpu.objects.filter(released_at__isnull=True).values("gpu")
    rows = Gpu.objects.filter(node__schedulable=True, node__name__in=context.reporting).exclude(pk__in=held)
    rows = rows.exclude(node__cluster__site__in=context.drained)
    found: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for site, node, gpu_type in rows.values_list("node__cluster__site__name", "node_id", "gpu_type"):
        found[site][node][gpu_type] += 1
    return found
