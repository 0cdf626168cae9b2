"""Gives the controller of servers what it decides on: which there are, what runs there, and what load is foreseen."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Max, QuerySet

from core.controllers.fleet.servers import Place, Server, ServersConfig, ServersObservation
from core.engine import engine_params
from core.policy.presets import Policy
from core.policy.tuning import ServersTuning
from core.types import Loop
from pools.models import Gpu, Instance, InstanceGpu, Node, Pool, PowerCycle, PowerPort, Service
from pools.server_states import Phase, ServerState
from scheduler.control import active_operations, sleep_states
from scheduler.control.snapshot.recorded_demand import arrivals, foreseen
from scheduler.json_values import workers_from_json
from telemetry.forecasts.histories import load_step_s
from telemetry.models import MeterMark

POWER_OFF = "power_off"  # of the knob `servers`
RETRY = timedelta(minutes=15)  # until a server that could not be switched off is tried again


@dataclass(frozen=True, slots=True)
class ServerView:
    observation: ServersObservation
    config: ServersConfig


def read(states: Mapping[str, ServerState], heard: Collection[str], now: datetime) -> ServerView:
    """Reads what there is. `heard`: nodes whose agents report. As many queries for many servers as for few."""
    services = list(Service.objects.select_related("model_card").order_by("name"))
    policies = {own.pk: own.own_policy() for own in services}
    sites = _sites(services)
    running = [name for name in heard if name not in states or states[name].phase is Phase.ON]
    running += [name for name, own in states.items() if own.phase is Phase.BOOTS]
    gpus = _gpus()
    switched = [own for own in policies.values() if own.knobs.servers == POWER_OFF]
    longest_s = max((own.boot_s for own in states.values()), default=0.0)
    kept = _kept_at(services, policies, sites)
    observation = ServersObservation(
        now.timestamp(),
        tuple(_servers(states, heard, kept, gpus, now)),
        _free(running, gpus),
        _spare(services, longest_s, now) if switched else {},
        frozenset(site for own in services if own.min_gpus for site in sites[own.pk]),
        dict(Counter(Node.objects.filter(name__in=running).values_list("cluster__site__name", flat=True))),
    )
    return ServerView(observation, _config([own.tuning.servers for own in switched]))


def _config(tuned: Sequence[ServersTuning]) -> ServersConfig:
    """Returns what is the most patient of what policies say."""
    waits_s = [own.idle_s for own in tuned]
    known_s = [own_s for own_s in waits_s if own_s is not None]
    idle_s = max(known_s) if known_s and len(known_s) == len(waits_s) else None
    return ServersConfig(idle_s, max((own.boot_power for own in tuned), default=1.0))


def _sites(services: Collection[Service]) -> Mapping[int, set[str]]:
    """Returns the sites of each service's pools."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for pk, site in Pool.objects.filter(service__in=services).values_list("service", "site__name").distinct():
        found[pk].add(site)
    return found


def _gpus() -> dict[str, list[Gpu]]:
    """Returns the GPUs of each node, by its name."""
    found: defaultdict[str, list[Gpu]] = defaultdict(list)
    for gpu in Gpu.objects.select_related("node"):
        found[gpu.node.name].append(gpu)
    return found


def _planned(gpus: Iterable[Gpu]) -> Counter[str]:
    """Counts GPUs, or their slices, by the type that plans count."""
    found: Counter[str] = Counter()
    for gpu in gpus:
        found[gpu.planned_type] += gpu.node.gpu_slices
    return found


def _free(running: Collection[str], gpus: Mapping[str, Sequence[Gpu]]) -> dict[Place, int]:
    """Counts what no instance has on servers that run or boot, and may be placed on."""
    nodes = Node.objects.filter(name__in=running, schedulable=True).values_list("name", "cluster__site__name")
    held = InstanceGpu.objects.filter(released_at__isnull=True, beside=False).values_list("gpu", flat=True)
    taken = Counter(held)
    found: Counter[Place] = Counter()
    for name, site in nodes:
        for gpu in gpus.get(name, ()):
            found[site, gpu.planned_type] += max(0, gpu.node.gpu_slices - taken[gpu.pk])
    return found


def _servers(
    states: Mapping[str, ServerState],
    heard: Collection[str],
    kept_at: Mapping[str, str],
    gpus: Mapping[str, Sequence[Gpu]],
    now: datetime,
) -> Iterator[Server]:
    """Yields the servers that can be switched. One that goes off is neither on nor off, unless it is wanted again."""
    nodes = Node.objects.filter(name__in=states).select_related("cluster__site").order_by("name")
    live = Instance.objects.filter(node__in=nodes).exclude(state=Instance.State.STOPPED)
    there = Counter(live.values_list("node", flat=True))
    wished = live.filter(desired__in=(Instance.Desired.RUNNING, Instance.Desired.SLEEPING))
    wanted = set(wished.values_list("node", flat=True))
    since, refused = _idle_since(nodes), _refused(nodes, now)
    drained = active_operations.drained_sites()
    for node in nodes:
        own, site = states[node.name], node.cluster.site
        reasons = (
            (node.power_port == PowerPort.NONE, "it has no power port"),
            (not node.schedulable, "it is in maintenance: schedulable is off"),
            (site.pk in drained, "its site is drained by hand"),
            (node.pk in refused, f"it could not be switched off: {refused.get(node.pk, '')}"),
            (own.phase is Phase.BOOTS, "it boots"),
            (own.phase is Phase.ON and node.name not in heard, "its agent is silent: nobody knows what runs there"),
            (there[node.pk] > 0, "an instance is there"),
        )
        kept = next((words for holds, words in reasons if holds), "")
        if own.phase is Phase.GOES_OFF and node.pk not in wanted:
            continue
        idle_s = 0.0 if there[node.pk] else (now - since.get(node.pk, now)).total_seconds()
        yield Server(
            node.name,
            site.name,
            dict(_planned(gpus.get(node.name, ()))),
            on=own.phase in (Phase.ON, Phase.BOOTS),
            wanted=node.pk in wanted,
            idle_s=max(0.0, idle_s),
            boot_s=own.boot_s,
            boot_source=own.boot_source,
            kept=kept or kept_at.get(site.name, "no service may use it, and so none lets it go"),
            idle_w=_idle_w(gpus.get(node.name, ())),
        )


def _idle_since(nodes: QuerySet[Node]) -> dict[int, datetime]:
    """Returns since when each node has had no instance: the last one ended, it booted, or was first metered."""
    found: dict[int, datetime] = {}
    marks = MeterMark.objects.filter(gpu__node__in=nodes).values_list("gpu__node").annotate(at=Max("opened_at"))
    ended = Instance.objects.filter(node__in=nodes).values_list("node").annotate(at=Max("stopped_at"))
    booted = PowerCycle.objects.filter(node__in=nodes).values_list("node").annotate(at=Max("ready_at"))
    for rows in (marks, ended, booted):
        for node, at in rows.order_by():
            if at is not None:
                found[node] = max(at, found.get(node, at))
    return found


def _refused(nodes: QuerySet[Node], now: datetime) -> dict[int, str]:
    """Returns the nodes that could not be switched off of late, and why."""
    rows = PowerCycle.objects.filter(node__in=nodes, ready_at__gte=now - RETRY, off_at__isnull=True)
    return dict(rows.filter(off_asked_at=F("ready_at")).values_list("node", "fault"))


def _kept_at(
    services: Collection[Service], policies: Mapping[int, Policy], sites: Mapping[int, set[str]]
) -> dict[str, str]:
    """Says of each site that a service may use why its servers are never switched off; empty: all services let them."""
    found: dict[str, str] = {}
    for own in services:
        words = ""
        if policies[own.pk].knobs.servers != POWER_OFF:
            words = f"{own.name} keeps servers on"
        elif not active_operations.loops_run(own) or not active_operations.acts(own):
            words = f"plans of {own.name} do not act by themselves"
        elif active_operations.is_paused(own, Loop.SCALE):
            words = f"the scale loop of {own.name} is paused"
        for site in sites[own.pk]:
            found[site] = found.get(site) or words
    return found


def _idle_w(gpus: Iterable[Gpu]) -> float | None:
    known = [engine_params.GPUS.get(gpu.gpu_type) for gpu in gpus]
    return None if None in known else math.fsum(one.idle_w for one in known if one is not None)


def _spare(services: Collection[Service], boot_s: float, now: datetime) -> dict[Place, int]:
    """Returns the GPUs that load could come to need beyond those in use, before a server has booted.

    Services that serve: by how much the forecast's upper quantile lies above what came of late, their GPUs grow. Those
    that sleep wake one after another: the largest must have its GPUs.
    """
    found: Counter[Place] = Counter()
    asleep: Counter[Place] = Counter()
    states = sleep_states.of_all(services)
    steps = max(1, math.ceil(boot_s / load_step_s()) + 1)
    for own in services:
        gpus = _planned_gpus(own)
        if states[own.pk].asleep:
            asleep |= gpus
            continue
        seen = arrivals(own, now, load_step_s())
        ahead = foreseen(seen, own, now, load_step_s(), steps)
        rise = max(ahead.rise, default=1.0)
        found.update({place: math.ceil(count * rise) - count for place, count in gpus.items()})
    found.update(asleep)
    return {place: count for place, count in found.items() if count > 0}


def _planned_gpus(service: Service) -> Counter[Place]:
    found: Counter[Place] = Counter()
    pools = service.pools.filter(request_class__partition=service.partition_id)
    for site, workers in pools.values_list("site__name", "workers"):
        for mode, count in workers_from_json(workers).items():
            for gpu, each in mode.gpus.items():
                found[site, gpu] += each * count
    return found
