"""Gives the GPUs of engines that sleep to others, and takes them back when these engines are to wake.

An engine of a service that sleeps by `level` stays on its node, with its weights in the machine's memory. Its GPUs it
lets go of once its agent says that their memory is free. It wakes on the same GPUs, or not at all: a process cannot
move. While somebody is about to leave them it waits; where somebody stays on them it ends, and the service starts
another one elsewhere. All of this runs inside the caller's transaction, under the lock of placements.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime

from django.db.models import Exists, OuterRef, QuerySet

from pools import wire
from pools.models import Instance, InstanceGpu, Service
from scheduler.control import sleep_states

log = logging.getLogger(__name__)

FALLS_ASLEEP_S = 180.0  # longer than an agent waits for an engine to fall asleep
_Desired = Instance.Desired


def let_go(agents: Mapping[str, wire.AgentState], now: datetime) -> frozenset[str]:
    """Frees the GPUs of engines that sleep with their service, as their agents say.

    One that does not fall asleep, as its node's engines cannot, ends. Returns the nodes where one does.
    """
    services = sleep_states.asleep_by_level()
    if not services:
        return frozenset()
    asleep = {seen.uid: seen.asleep for agent in agents.values() for seen in agent.instances}
    sleepers = Instance.objects.filter(desired=_Desired.SLEEPING, pool__service__in=services, uid__in=asleep)
    held = InstanceGpu.objects.filter(instance__in=sleepers, released_at__isnull=True)
    held.filter(instance__uid__in=[uid for uid in asleep if asleep[uid]]).update(released_at=now)
    late = [pk for pk, since_s in services.items() if now.timestamp() - since_s > FALLS_ASLEEP_S]
    sleepless = sleepers.filter(pk__in=list(held.values_list("instance", flat=True)), pool__service__in=late)
    nodes = frozenset(sleepless.values_list("node__name", flat=True))
    if nodes:
        log.warning("engines on %s do not fall asleep, and end", ", ".join(sorted(nodes)))
        sleepless.update(desired=_Desired.DRAINING)
    return nodes


def leaving() -> QuerySet[Instance]:
    """Returns the engines that give up GPUs soon: they end, or fall asleep with their service."""
    falling = Instance.objects.filter(desired=_Desired.SLEEPING, pool__service__in=sleep_states.asleep_by_level())
    return Instance.objects.filter(desired=_Desired.DRAINING) | falling


def end_stranded(service: Service) -> frozenset[str]:
    """Ends engines of a service that is awake whose GPUs somebody stays on. Returns the names of their nodes."""
    stayers = InstanceGpu.objects.filter(released_at__isnull=True).exclude(instance__in=leaving())
    stranded = _without_gpus(Instance.objects.filter(pool__service=service), stayers)
    nodes = frozenset(stranded.values_list("node__name", flat=True))
    if nodes:
        Instance.objects.filter(pk__in=list(stranded.values_list("pk", flat=True))).update(desired=_Desired.DRAINING)
    return nodes


def take_back(instances: Collection[int]) -> frozenset[int]:
    """Gives GPUs back to those that are to wake, where they are free. Returns those of them that have theirs."""
    if not instances:
        return frozenset()
    asked = Instance.objects.filter(pk__in=instances)
    for pk in _without_gpus(asked).values_list("pk", flat=True):
        if not _without_gpus(asked.filter(pk=pk), InstanceGpu.objects.filter(released_at__isnull=True)).exists():
            InstanceGpu.objects.filter(instance=pk).update(released_at=None, beside=False)
    return frozenset(instances) - set(_without_gpus(asked).values_list("pk", flat=True))


def _without_gpus(instances: QuerySet[Instance], others: QuerySet[InstanceGpu] | None = None) -> QuerySet[Instance]:
    """Returns those that sleep and have let go of their GPUs; with `others`, where one of these holds is on them."""
    own = InstanceGpu.objects.filter(instance=OuterRef("pk"), released_at__isnull=False)
    if others is not None:
        own = own.filter(Exists(others.filter(gpu=OuterRef("gpu"), slice=OuterRef("slice"))))
    live = instances.filter(desired=_Desired.SLEEPING).exclude(state=Instance.State.STOPPED)
    return live.filter(Exists(own))
