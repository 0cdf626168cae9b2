"""Reads from Redis what the agents report now, and says which nodes epochs can count on."""

from __future__ import annotations

from datetime import datetime, timedelta

import redis

from pools import server_states
from pools.agent_states import connect as connect
from pools.agent_states import states as states
from pools.models import Node
from telemetry.models import GpuSample

SILENT_AFTER_S = 30.0


def nodes() -> list[str]:
    return list(Node.objects.values_list("name", flat=True))


def reporting(client: redis.Redis, now: datetime) -> set[str]:
    """Returns the names of the nodes that report, and of servers that are off by plan or boot.

    Instances are planned on those, too: a server with one is switched on (`scheduler.power`).
    """
    return heard(client, now) | server_states.usable(server_states.switched(), now)


def heard(client: redis.Redis, now: datetime) -> set[str]:
    """Returns the names of the nodes that reported in the last 30 s: a state in Redis, or samples in the database.

    Either will do, so that a restart of Redis or of the ingester does not look like the loss of the fleet.
    """
    since = now - timedelta(seconds=SILENT_AFTER_S)
    fresh = {name for name, state in states(client, nodes()).items() if state.at_s >= since.timestamp()}
    sampled = GpuSample.objects.filter(at__gte=since, at__lte=now + timedelta(seconds=SILENT_AFTER_S))
    return fresh | set(sampled.values_list("gpu__node__name", flat=True).distinct())


def presence(now: datetime) -> tuple[set[str], set[str]]:
    """Returns the nodes that epochs may use, and those of them that report."""
    expected = set(Node.objects.filter(schedulable=True).values_list("name", flat=True))
    return expected, expected & reporting(connect(), now)
