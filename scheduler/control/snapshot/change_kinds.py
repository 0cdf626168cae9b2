"""Says how TP degrees are changed on the live fleet now: in place, beside what serves, or after it has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from core.observations.fleet.change_kinds import FreeGpus, change_kinds
from core.types import ChangeKind, Mode, PoolKey
from pools.models import Instance
from scheduler.control.snapshot.free_gpus import free_gpus
from scheduler.control.turn_context import TurnContext


def kinds(context: TurnContext, needs: Mapping[PoolKey, Mapping[Mode, int]]) -> dict[PoolKey, ChangeKind]:
    """Returns the kind of change of each pool; `needs` is the most that may start at once in each."""
    return change_kinds(_free(context) if context.knobs.shadow else {}, needs)


def in_place(context: TurnContext) -> frozenset[PoolKey]:
    """Returns the pools all of whose instances can change in place, as their agents say."""
    live = Instance.objects.filter(pool__in=context.pools, node__isnull=False).exclude(state=Instance.State.STOPPED)
    found: dict[PoolKey, list[bool]] = defaultdict(list)
    for site, name, reshards in live.values_list("pool__site__name", "pool__request_class__name", "reshards"):
        found[PoolKey(site, name)].append(reshards)
    return frozenset(key for key, engines in found.items() if all(engines))


def _free(context: TurnContext) -> FreeGpus:
    """Counts the GPUs that no instance has, of nodes that new ones may use."""
    found: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for own in free_gpus(context.reporting):
        if own.site_id not in context.drained:
            found[own.site][own.node_id][own.gpu] += own.count
    return found
