"""Commands -> rows: budgets, workers, instances. Everything here runs inside the caller's transaction."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from django.db.models import F, prefetch_related_objects
from django.utils import timezone

from core.controllers.fleet.explain import gpus_of
from core.engine.gpu_slices import sliced
from core.policy.knobs import DYNAMO
from core.types import Command, Mode, ScaleTo, SetTpDegrees
from pools import database_locks, server_states, wire
from pools.database_locks import Lock
from pools.models import Gpu, Instance, InstanceGpu, Node, Pool, Service
from scheduler.control import active_operations, sleep_states
from scheduler.control.apply import gpu_memory, gpu_turns, in_place, renewals, stand_ins, warm_pool
from scheduler.control.apply.budgets import within
from scheduler.control.apply.node_placement import NodeRoom, Placement, SliceId, Standing, Start, Wanted, place
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import workers_from_json, workers_to_json

log = logging.getLogger(__name__)

Desired = Instance.Desired


def lock() -> None:
    """Lets one transaction at a time in the whole fleet change plans and placements; its end releases the lock."""
    database_locks.take(Lock.PLACEMENT)


def apply_workers(
    context: TurnContext, commands: Iterable[Command]
) -> dict[int, tuple[dict[str, int], dict[str, int]]]:
    """Writes the workers that scale or shard wants.

    Returns pool -> (workers before, workers now) of those that changed.
    """
    service, pinned = context.service, {pin.pool_id for pin in context.pins}
    pools = {
        (pool.site.name, pool.request_class.name): pool
        for pool in service.pools.filter(request_class__partition=service.partition_id).select_related(
            "site", "request_class"
        )
    }
    wanted: dict[int, dict[str, int]] = {}
    for command in commands:
        if not isinstance(command, (ScaleTo, SetTpDegrees)):
            continue
        pool = pools[command.pool.site, command.pool.request_class]
        if pool.pk in pinned:
            continue
        workers = workers_to_json(command.workers)
        if not within(workers, pool.gpu_budget):
            # A slower loop moved the envelope meanwhile; a faster one never leaves it.
            log.warning("%s: %s does not fit the budget %s", pool, workers, pool.gpu_budget)
            continue
        wanted[pool.pk] = workers
    sharing = [pool for pool in pools.values() if pool.pk not in pinned] if context.knobs.whole_sites else []
    for pool in _overdrawn(sharing, wanted):
        log.warning(
            "%s: its site's pools together do not fit the budget %s, which is the site's", pool, pool.gpu_budget
        )
        wanted.pop(pool.pk, None)
    changed = {}
    for pool in pools.values():
        workers = wanted.get(pool.pk, pool.workers)
        if workers != pool.workers:
            changed[pool.pk] = (pool.workers, workers)
            pool.workers = workers
            pool.save(update_fields=["workers"])
    return changed


def _overdrawn(pools: Collection[Pool], wanted: Mapping[int, dict[str, int]]) -> list[Pool]:
    """Returns the pools of sites where all together would have more GPUs than their budget, which is the site's, and
    than they have now.
    """
    budgets: dict[str, Counter[str]] = defaultdict(Counter)
    now: dict[str, Counter[str]] = defaultdict(Counter)
    then: dict[str, Counter[str]] = defaultdict(Counter)
    for pool in pools:
        site = pool.site.name
        budgets[site] |= Counter(pool.gpu_budget)
        now[site].update(gpus_of(workers_from_json(pool.workers)))
        then[site].update(gpus_of(workers_from_json(wanted.get(pool.pk, pool.workers))))
    return [pool for pool in pools if then[pool.site.name] - (budgets[pool.site.name] | now[pool.site.name])]


def finish_drains(agents: Mapping[str, wire.AgentState], now: datetime) -> frozenset[str]:
    """Ends instances that were to drain and that their agent no longer lists; their GPUs are free again."""
    nodes = set()
    draining = Instance.objects.filter(desired=Desired.DRAINING).exclude(state=Instance.State.STOPPED)
    for instance in draining.annotate(node_name=F("node__name")):
        agent = agents.get(instance.node_name)
        if agent is None or agent.error or any(seen.uid == str(instance.uid) for seen in agent.instances):
            continue
        Instance.objects.filter(pk=instance.pk).update(
            desired=Desired.STOPPED, state=Instance.State.STOPPED, stopped_at=now, url=""
        )
        for hold in InstanceGpu.objects.filter(instance=instance, released_at__isnull=True):
            InstanceGpu.objects.filter(pk=hold.pk).update(released_at=now)
            there = InstanceGpu.objects.filter(gpu=hold.gpu_id, slice=hold.slice, released_at__isnull=True)
            there.update(beside=False)
        nodes.add(instance.node_name)
    return frozenset(nodes)


def apply_placement(service: Service, reporting: Collection[str], decisions: Mapping[int, int]) -> frozenset[str]:
    """Brings instances towards the pools' wanted workers, and names the nodes to nudge.

    `decisions`: pool -> the decision that new ones carry, and those that change in place.
    """
    prefetch_related_objects([service], "adapters")  # for all that is started below
    sleeps = sleep_states.of(service)
    wanted, standing, rooms = _wanted(service), _standing(service), _rooms(service, reporting)
    ending: frozenset[str] = frozenset()
    if not sleeps.asleep and any(s.warm and not s.gpu_ids for s in standing):
        ending, standing = gpu_turns.end_stranded(service), _standing(service)
    if sleeps.asleep:
        wanted = [replace(pool, workers={}) for pool in wanted]
    changes = in_place.turns(wanted, standing, rooms)
    standing, rooms = list(changes.standing), list(changes.rooms)
    turned = {_turn(turn, decisions.get(turn.pool_id)) for turn in changes.turns}
    plan = stand_ins.serve_on(place(wanted, standing, rooms), wanted, standing, rooms)
    warm = dict(service.pools.filter(request_class__partition=service.partition_id).values_list("pk", "warm"))
    if sleeps.asleep:
        warm = Counter(s.pool_id for s in standing if sleeps.by_level)
    kept = warm_pool.keep(plan, wanted, standing, rooms, warm)
    plan = replace(plan, drains=tuple(pk for pk in plan.drains if pk not in kept.asleep))
    if not (kept.starts or changes.turns):  # which take free GPUs
        plan = renewals.renew(plan, standing, rooms)
    names = dict(Node.objects.values_list("pk", "name"))
    nodes = {names[node_id] for node_id in (*turned, *_apply(service, plan, decisions), *_keep_warm(service, kept))}
    for pool_id, mode in plan.unplaceable:
        log.warning("%s of pool %d fits on no node as things are", mode.name, pool_id)
    return ending | nodes


def _apply(service: Service, plan: Placement, decisions: Mapping[int, int]) -> set[int]:
    touched = set(Instance.objects.filter(pk__in=[*plan.moves, *plan.drains]).values_list("node_id", flat=True))
    for instance_id, pool_id in plan.moves.items():
        Instance.objects.filter(pk=instance_id).update(pool_id=pool_id)
    Instance.objects.filter(pk__in=plan.drains).update(desired=Desired.DRAINING)
    for start in plan.starts:
        _start(service, start, decisions.get(start.pool_id))
        touched.add(start.node_id)
    return touched


def _keep_warm(service: Service, kept: warm_pool.Kept) -> list[int]:
    """Puts instances to sleep, wakes them, and starts warm ones. Returns the nodes on which something changes."""
    changed: list[int] = []
    woken = gpu_turns.take_back(kept.woken)
    for wish, ids in ((Desired.SLEEPING, kept.asleep), (Desired.RUNNING, woken)):
        rows = Instance.objects.filter(pk__in=ids).exclude(desired=wish)
        changed += rows.values_list("node_id", flat=True)
        if wish == Desired.RUNNING:
            rows.filter(state=Instance.State.SLEEPING).update(wake_asked_at=timezone.now(), woken_at=None)
        rows.update(desired=wish)
    for start in kept.starts:
        _start(service, start, None, Desired.SLEEPING)
        changed.append(start.node_id)
    return changed


def _start(service: Service, start: Start, decision_id: int | None, desired: str = Desired.RUNNING) -> None:
    uids = {pk: str(uid) for pk, uid in Instance.objects.filter(pk__in=start.replaces).values_list("pk", "uid")}
    instance = Instance.objects.create(
        pool_id=start.pool_id,
        node_id=start.node_id,
        model_card=service.model_card,
        gpu_type=start.mode.gpu,
        tp=start.mode.tp,
        decision_id=decision_id,
        max_lora_rank=service.max_lora_rank(),
        max_loras=service.max_loras,
        desired=desired,
        replaces=[uids[old] for old in start.replaces],
    )
    InstanceGpu.objects.bulk_create(
        InstanceGpu(instance=instance, gpu_id=gpu_id, slice=number, beside=start.beside)
        for gpu_id, number in _slices(start)
    )


def _turn(turn: in_place.Turn, decision_id: int | None) -> int:
    """Writes the GPUs to which an instance is to go over; its agent sees to it. Returns its node."""
    now = timezone.now()
    mine = InstanceGpu.objects.filter(instance_id=turn.id)
    wanted = {gpu_id for gpu_id, _ in _slices(turn)}
    mine.filter(released_at__isnull=True).exclude(gpu_id__in=wanted).update(released_at=now)
    for gpu_id in wanted:
        mine.update_or_create(instance_id=turn.id, gpu_id=gpu_id, defaults={"released_at": None})
    instance = Instance.objects.get(pk=turn.id)
    instance.tp, instance.reshard_at, instance.resharded_at = turn.mode.tp, now, None
    instance.decision_id = instance.decision_id if decision_id is None else decision_id
    instance.save(update_fields=["tp", "reshard_at", "resharded_at", "decision_id"])
    log.info("instance %s goes over to %s in place", instance.uid, turn.mode.name)
    assert instance.node_id is not None
    return instance.node_id


def _slices(placed: Start | in_place.Turn) -> Iterator[tuple[int, int]]:
    """Returns the GPU and the slice of it for each id, which `_standing` and `_rooms` gave."""
    for found in placed.gpu_ids:
        assert isinstance(found, tuple)
        yield found


def _wanted(service: Service) -> list[Wanted]:
    pools = Pool.objects.filter(service=service).select_related("request_class")
    knobs = service.policy_knobs()
    how = knobs.shadow, knobs.shard == DYNAMO
    return [
        Wanted(pool.pk, pool.site_id, pool.request_class.name, workers_from_json(pool.workers), *how)
        for pool in pools
        if pool.workers or pool.request_class.partition_id == service.partition_id
    ]


def _standing(service: Service) -> list[Standing]:
    live = (
        Instance.objects.filter(pool__service=service, node__isnull=False)
        .exclude(state=Instance.State.STOPPED)
        .annotate(site=F("node__cluster__site_id"), on=F("node_id"), class_name=F("pool__request_class__name"))
        .order_by("pk")
    )
    allocations: dict[int, list[InstanceGpu]] = {}
    for allocation in InstanceGpu.objects.filter(instance__in=live, released_at__isnull=True).select_related(
        "gpu__node"
    ):
        allocations.setdefault(allocation.instance_id, []).append(allocation)
    ids = {str(row.uid): row.pk for row in live}
    rank = service.max_lora_rank()
    return [
        Standing(
            id=row.pk,
            pool_id=row.pool_id,
            site_id=row.site,
            node_id=row.on,
            request_class=row.class_name,
            mode=Mode(row.gpu_type, row.tp),
            running=row.desired in (Desired.RUNNING, Desired.SLEEPING),
            warm=row.desired == Desired.SLEEPING,
            state=row.state,
            outdated=row.started_for_less(rank, service.max_loras),
            gpu_ids=tuple((allocation.gpu_id, allocation.slice) for allocation in allocations.get(row.pk, ())),
            roomy=gpu_memory.fits_two(service.model_card, row.tp, allocations.get(row.pk, ())),
            beside=any(allocation.beside for allocation in allocations.get(row.pk, ())),
            order=row.pk,
            replaces=tuple(ids[uid] for uid in row.replaces if uid in ids),
            reshards=row.reshards,
        )
        for row in live
    ]


def _rooms(service: Service, reporting: Collection[str]) -> list[NodeRoom]:
    soon: dict[int, Counter[str]] = {}
    others = gpu_turns.leaving().exclude(pool__service=service)
    rows = InstanceGpu.objects.filter(instance__in=others, released_at__isnull=True, beside=False)
    for node_id, gpu_type, count in rows.values_list("gpu__node_id", "gpu__gpu_type", "gpu__node__gpu_slices"):
        soon.setdefault(node_id, Counter())[sliced(gpu_type, count)] += 1
    allocated = set(InstanceGpu.objects.filter(released_at__isnull=True).values_list("gpu_id", "slice"))
    taken = Counter(gpu_id for gpu_id, _ in allocated)
    drained, boots = active_operations.drained_sites(), {own.pk for own in server_states.switched().values()}
    rooms: dict[int, tuple[int, dict[str, list[SliceId]]]] = {}
    gpus = Gpu.objects.filter(node__schedulable=True, node__name__in=reporting).select_related("node__cluster")
    for gpu in sorted(gpus, key=lambda gpu: (gpu.node_id, -taken[gpu.pk], gpu.index)):  # GPUs in use fill up first
        site_id = gpu.node.cluster.site_id
        _, free = rooms.setdefault(gpu.node_id, (site_id, {}))
        slices = free.setdefault(gpu.planned_type, [])
        if site_id not in drained:
            slices += [(gpu.pk, n) for n in range(gpu.node.gpu_slices) if (gpu.pk, n) not in allocated]
    return [
        NodeRoom(
            node_id, site_id, {kind: tuple(ids) for kind, ids in free.items()}, soon.get(node_id, {}), node_id in boots
        )
        for node_id, (site_id, free) in rooms.items()
    ]
