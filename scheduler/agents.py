"""Reads from Redis what the agents report now, and says which nodes epochs can count on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
import redis
from django.conf import settings

from pools import wire
from pools.models import Node
from telemetry.models import GpuSample

log = logging.getLogger(__name__)

SILENT_AFTER_S = 30.0


def connect() -> redis.Redis:
    """Returns a client none of whose calls takes more than a few seconds."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)


def states(client: redis.Redis, nodes: Iterable[str]) -> Mapping[str, wire.AgentState]:
    """Returns the agents' states by node, without nodes whose agent is silent or not understood."""
    names = list(nodes)
    found: dict[str, wire.AgentState] = {}
    if not names:
        return found
    for name, data in zip(names, client.mget([wire.agent_key(name) for name in names]), strict=True):
        if data is None:
            continue
        try:
            found[name] = wire.decode(data, wire.AgentState)
        except msgspec.MsgspecError as error:
            log.warning("state of agent %s cannot be read: %s", name, error)
    return found


def nodes() -> list[str]:
    return list(Node.objects.values_list("name", flat=True))


def reporting(client: redis.Redis, now: datetime) -> set[str]:
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
