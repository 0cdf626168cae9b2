"""The nodes that a service may plan with, beside what other services have and need.

The rule is that of the simulator (`core.algorithms.fleet.sharing`). What a service needs is seen anew each time, from
its recent demand; nothing of it is stored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from core.algorithms.fleet.sharing import Claims, NodeGpus, Place, ServiceNeed, claims
from core.controllers.fleet.explain import gpus_of
from core.controllers.fleet.shared_out import NodeView
from core.engine.gpu_slices import sliced
from core.observations.fleet import dynamo_servers
from core.observations.fleet.dynamo_servers import Servers
from core.observations.fleet.service_needs import service_need
from core.types import Loop, Mode
from pools.models import Gpu, Instance, InstanceGpu, Partition, Pool, Service
from scheduler.control import active_operations, shortages, sleep_states, turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.published_profiles import has_room
from scheduler.control.snapshot.recorded_demand import arrivals
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import workers_from_json
from scheduler.models import ControllerState

_FIXED, _FIXED_KEY = "", 0  # who has what nobody gives back: no service's name or key


def offered_nodes(context: TurnContext, sharing: Collection[Service] = ()) -> tuple[NodeView, ...]:
    """Returns the nodes of the service's sites that report, small ones first, without what others claim.

    `sharing`: services whose plans do not count, since they are made together with this one's.
    """
    peers = [peer for peer in sharing if peer != context.service]
    states = sleep_states.of_all(Service.objects.all())
    mine = states.pop(context.service.pk)
    claimants = [pk for pk, state in states.items() if state.claims_beside(mine)]
    others = Service.objects.filter(pk__in=claimants).exclude(pk__in=[peer.pk for peer in peers])
    pins = {pin.pool_id for peer in peers for pin in active_operations.pins(peer, context.now)}
    nodes = _nodes(context.reporting, context.drained)
    found = _claims(context, nodes, others, pins)
    sites = set(context.service.pools.values_list("site__name", flat=True))
    sizes = {node.place: node.gpus for node in nodes}
    left = [own for own in found.left(context.service.name, within_ceiling=not peers) if own.site in sites]
    left.sort(key=lambda node: (sizes[node.place], node.node))
    return tuple(NodeView(node.site, node.gpu, node.gpus) for node in left)


def all_nodes(context: TurnContext) -> tuple[NodeView, ...]:
    """Returns the nodes of the service's sites that report, whoever uses them."""
    sites = set(context.service.pools.values_list("site__name", flat=True))
    nodes = _nodes(context.reporting, context.drained)
    return tuple(NodeView(own.site, own.gpu, own.gpus) for own in nodes if own.site in sites)


def to_give_back(reporting: Collection[str], now: datetime) -> list[Service]:
    """Returns the services that use GPUs which others have reserved, each once for the same GPUs.

    Notes what each service is short of, which its decisions, pages and REST say (`shortages`).
    """
    services = list(Service.objects.order_by("name"))
    shared = len(services) > 1 or any(own.max_gpus is not None for own in services)
    if not shared or not any(_acts(own) for own in services):
        ControllerState.objects.filter(kind=shortages.KIND).delete()
        return []
    states = sleep_states.of_all(services)
    awake = _claims_of([own for own in services if states[own.pk].claims], reporting, now)
    short = [own for own in services if states[own.pk].short]
    # Those that take turns give way to one that waits when they are idle, and do not plan anew for it.
    beside_short = [own for own in services if states[own.pk].claims or own in short]
    with_short = _claims_of(beside_short, reporting, now) if short else awake
    turns = [own for own in services if states[own.pk].takes_turns and own not in short]
    return [own for own in services if _asked_anew(own, awake if own in turns else with_short)]


def _claims_of(services: Sequence[Service], reporting: Collection[str], now: datetime) -> Claims:
    """Returns the claims of services on all GPUs beside each other."""
    nodes = _nodes(reporting, active_operations.drained_sites())
    first = next((own for own in services if _acts(own)), None)
    if first is None:
        return claims(nodes, [])
    return _claims(turn_context.resolve(first, now, reporting), nodes, [own for own in services if own != first])


def _asked_anew(service: Service, found: Claims) -> bool:
    """Says whether this call, and no other process, found that a service is to give back other GPUs than before."""
    asked = sorted([*place, count] for place, count in found.given_back.get(service.name, {}).items())
    value = {"gpus": asked, "short": shortages.as_json(found.shortages.get(service.name))}
    state, _ = ControllerState.objects.get_or_create(kind=shortages.KIND, service=service)
    if state.value == value:
        return False
    rows = ControllerState.objects.filter(pk=state.pk, version=state.version)
    changed = rows.update(version=state.version + 1, value=value) == 1
    return changed and bool(asked) and asked != state.value.get("gpus", [])


def _nodes(reporting: Collection[str], drained: Collection[int]) -> tuple[NodeGpus, ...]:
    """Returns the GPUs of reporting, schedulable nodes, at sites that are not being drained; or their slices."""
    rows = Gpu.objects.filter(node__schedulable=True, node__name__in=reporting)
    keys = ("node__cluster__site__name", "node__name", "gpu_type", "node__gpu_slices")
    counts = rows.exclude(node__cluster__site__in=drained).values_list(*keys).annotate(count=Count("pk"))
    return tuple(NodeGpus(site, node, sliced(gpu, n), count * n) for site, node, gpu, n, count in counts)


def _claims(
    context: TurnContext, nodes: tuple[NodeGpus, ...], others: Iterable[Service], pinned: Collection[int] = ()
) -> Claims:
    """Returns the claims of the service and of `others`, on the nodes without what nobody gives back.

    That is what the pools have that are pinned (those of `pinned`, by key, too), and those of others whose loops do not
    act. A service that is alone, without a ceiling, claims nothing: what it needs makes no difference.
    """
    contexts = [turn_context.resolve(other, context.now, context.reporting) for other in others]
    acting = [own for own in contexts if _acts(own.service)]
    fixed = {*pinned, *(pin.pool_id for own in (context, *contexts) for pin in own.pins)}
    still = [own.service for own in contexts if own not in acting]
    fixed.update(Pool.objects.filter(service__in=still).values_list("pk", flat=True))
    if not (acting or fixed) and context.service.max_gpus is None:
        return claims(nodes, [ServiceNeed(context.service.name, {})])
    use = _use(fixed)
    for pk, state in sleep_states.of_all([own.service for own in (context, *acting)]).items():
        if not state.claims:  # what it plans it has only once it is awake
            use[pk] = _Use(Counter(), Counter())
    free = claims(nodes, [ServiceNeed(_FIXED, use[_FIXED_KEY].gpus)]).left(context.service.name)
    return claims(free, [_need(own, use[own.service.pk]) for own in (context, *acting)])


def _acts(service: Service) -> bool:
    """Says whether the service's plans are carried out, now or when somebody approves them."""
    paused = any(active_operations.is_paused(service, loop) for loop in (Loop.CARBON, Loop.SCALE))
    return not paused and active_operations.loops_run(service)


@dataclass(slots=True)
class _Use:
    """The GPUs that the pools of a service have, by place, and their workers by class."""

    gpus: Counter[Place]
    workers: Counter[tuple[str, Mode]]


def _use(fixed: Collection[int]) -> defaultdict[int, _Use]:
    """Returns what each service has, by its key, and what the pools have that nobody gives back.

    Of a pool that is its budget, or its workers where a faster loop moves GPUs between pools; on the nodes of its
    instances, and what these do not show anywhere at the site.
    """
    found: defaultdict[int, _Use] = defaultdict(lambda: _Use(Counter(), Counter()))
    owner = {}
    for pool in Pool.objects.select_related("service", "site", "request_class"):
        owner[pool.pk] = _FIXED_KEY if pool.pk in fixed else pool.service_id
        own, workers = found[owner[pool.pk]], workers_from_json(pool.workers)
        gpus = Counter(gpus_of(workers))
        if not pool.service.policy_knobs().whole_sites:
            gpus |= Counter(pool.gpu_budget)
        for gpu, count in gpus.items():
            own.gpus[pool.site.name, "", gpu] += count
        for mode, count in workers.items():
            own.workers[pool.request_class.name, mode] += count
    live = Instance.objects.filter(desired__in=(Instance.Desired.RUNNING, Instance.Desired.SLEEPING))
    keys = (
        "instance__pool",
        "gpu__node__cluster__site__name",
        "gpu__node__name",
        "gpu__gpu_type",
        "gpu__node__gpu_slices",
    )
    rows = InstanceGpu.objects.filter(instance__in=live, released_at__isnull=True, beside=False).values_list(*keys)
    for pool_id, site, node, gpu_type, slices, count in rows.annotate(count=Count("pk")):
        own, gpu = found[owner[pool_id]], sliced(gpu_type, slices)
        own.gpus[site, node, gpu] += count
        own.gpus[site, "", gpu] -= min(count, own.gpus[site, "", gpu])
    return found


def _need(context: TurnContext, use: _Use) -> ServiceNeed:
    """Returns what a service has and lacks."""
    service, knobs = context.service, context.knobs
    partition = Partition.objects.filter(name=knobs.partition).first() or service.partition
    seen = arrivals(service, context.now, context.times.look_back_s)
    if knobs.scale == "right_size":
        seen = seen.once_begun
    classes = snapshot.classes_now(context, partition, seen, 1)
    sites = sorted(set(service.pools.values_list("site__name", flat=True)))
    server = None
    if knobs.in_servers:
        server = dynamo_servers.server_mode(all_nodes(context), lambda mode: _may_run(context, mode))

    def sites_of(mode: Mode) -> list[str]:
        return sites if server in (None, mode) else []

    return service_need(service.name, use.gpus, use.workers, classes, sites_of, knobs, service.share)


# -- DynamoLLM's servers ---------------------------------------------------------------------------


def servers(context: TurnContext, nodes: Sequence[NodeView]) -> Servers | None:
    """Makes servers of the service's nodes; `nodes`: what others leave of them, as `offered_nodes` has them."""
    return dynamo_servers.servers(all_nodes(context), nodes, lambda mode: _may_run(context, mode))


def _may_run(context: TurnContext, mode: Mode) -> bool:
    return mode.tp <= context.knobs.tp and has_room(context.service, mode)
