"""Carries a carbon plan's commands to pools: the partition in force, GPU budgets, and the workers that still fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from core.types import ChoosePartition, Command, SetGpuBudget
from pools.models import Partition, Pool, Service
from scheduler.control.active_operations import Pin
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import workers_from_json

Envelope = tuple[dict[str, int], dict[str, int]]  # a pool's GPU budget and its workers


def after(
    commands: Iterable[Command], partition: Partition, pools: Iterable[Pool], pins: Iterable[Pin]
) -> dict[int, Envelope]:
    """Returns what each pool has, by id, when the commands of a plan are carried out.

    Pools that the plan does not name get no budget; workers that do not fit their budget go. Pools that a person has
    pinned keep what they were given.
    """
    pinned = {pin.pool_id for pin in pins}
    budgets = {
        (command.pool.site, command.pool.request_class): {kind: n for kind, n in sorted(command.gpus.items()) if n}
        for command in commands
        if isinstance(command, SetGpuBudget)
    }
    found: dict[int, Envelope] = {}
    for pool in pools:
        if pool.pk in pinned:
            found[pool.pk] = (pool.gpu_budget, pool.workers)
            continue
        active = pool.request_class.partition_id == partition.pk
        budget = budgets.get((pool.site.name, pool.request_class.name), {}) if active else {}
        found[pool.pk] = (budget, pool.workers if within(pool.workers, budget) else {})
    return found


def partition_after(service: Service, commands: Iterable[Command]) -> Partition:
    """Returns the partition in force when the commands are carried out."""
    chosen = [command.partition for command in commands if isinstance(command, ChoosePartition)]
    changes = bool(chosen) and chosen[-1] != service.partition.name
    return Partition.objects.get(name=chosen[-1]) if changes else service.partition


def pools_of(service: Service) -> list[Pool]:
    """Returns the service's pools, of all partitions."""
    return list(service.pools.select_related("site", "request_class"))


def apply_budgets(context: TurnContext, commands: Sequence[Command], pools: Sequence[Pool]) -> None:
    """Writes the partition and the GPU budgets of a carbon plan. `pools`: all of the service's, as they are stored."""
    service, partition = context.service, partition_after(context.service, commands)
    if partition.pk != service.partition_id:
        service.partition = partition
        service.save(update_fields=["partition"])
    found = after(commands, partition, pools, context.pins)
    for pool in pools:
        if (pool.gpu_budget, pool.workers) != found[pool.pk]:
            pool.gpu_budget, pool.workers = found[pool.pk]
            pool.save(update_fields=["gpu_budget", "workers"])


def within(workers: Mapping[str, int], budget: Mapping[str, int]) -> bool:
    """Says whether the workers, by the names of their modes, have no more GPUs than the budget."""
    used: dict[str, int] = {}
    for mode, count in workers_from_json(workers).items():
        used[mode.gpu] = used.get(mode.gpu, 0) + mode.tp * count
    return all(count <= budget.get(kind, 0) for kind, count in used.items())
