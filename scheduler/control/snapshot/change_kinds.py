"""Says how changes of TP degrees are made on the live fleet now: beside what serves, or after it has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from core.types import ChangeKind, Mode, PoolKey
from pools.models import Gpu, InstanceGpu
from scheduler.control.turn_context import TurnContext

Free = dict[str, dict[int, Counter[str]]]  # site -> node -> GPU type -> free GPUs


def kinds(context: TurnContext, needs: Mapping[PoolKey, Mapping[Mode, int]]) -> dict[PoolKey, ChangeKind]:
    """Returns the kind of change of each pool: with shadows where the policy has them and free GPUs hold what it needs.

    `needs`: the most that may start at once in a pool, as instances. What one pool needs is not free for the next.
    """
    free = _free(context) if context.knobs.shadow else {}
    return {
        key: ChangeKind.SHADOW if _take(free.get(key.site, {}), needs[key]) else ChangeKind.RESTART
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


def _free(context: TurnContext) -> Free:
    """Counts the GPUs that no instance has, of nodes that new ones may use."""
    held = InstanceGpu.objects.filter(released_at__isnull=True).values("gpu")
    rows = Gpu.objects.filter(node__schedulable=True, node__name__in=context.reporting).exclude(pk__in=held)
    rows = rows.exclude(node__cluster__site__in=context.drained)
    found: Free = defaultdict(lambda: defaultdict(Counter))
    for site, node, gpu_type in rows.values_list("node__cluster__site__name", "node_id", "gpu_type"):
        found[site][node][gpu_type] += 1
    return found
