"""Says how changes of TP degrees are made on the live fleet now: beside what serves, or after it has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from core.observations.fleet.change_kinds import FreeGpus, change_kinds
from core.types import ChangeKind, Mode, PoolKey
from scheduler.control.snapshot.free_gpus import free_gpus
from scheduler.control.turn_context import TurnContext


def kinds(context: TurnContext, needs: Mapping[PoolKey, Mapping[Mode, int]]) -> dict[PoolKey, ChangeKind]:
    """Returns the kind of change of each pool; `needs` is the most that may start at once in each."""
    return change_kinds(_free(context) if context.knobs.shadow else {}, needs)


def _free(context: TurnContext) -> FreeGpus:
    """Counts the GPUs that no instance has, of nodes that new ones may use."""
    found: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for own in free_gpus(context.reporting):
        if own.site_id not in context.drained:
            found[own.site][own.node_id][own.gpu] += own.count
    return found
