"""Reads from Redis what agents say of their nodes now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import redis
from django.conf import settings

from pools import redis_address, wire

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitingBatches:
    """The batches of samples that wait in Redis. `share`: of what it takes, of the stream that is fullest."""

    count: int
    share: float


def connect() -> redis.Redis:
    """Returns a client none of whose calls takes more than a few seconds."""
    return redis_address.connect(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)


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


def waiting_batches(client: redis.Redis, nodes: Iterable[str]) -> WaitingBatches:
    """Counts the batches of all streams: the shared one, and each node's own."""
    streams = {wire.BATCH_STREAM: wire.BATCH_STREAM_MOST}
    streams |= {wire.batch_stream(node): wire.NODE_STREAM_MOST for node in nodes}
    with client.pipeline(transaction=False) as pipe:
        for stream in streams:
            pipe.xlen(stream)
        counts: list[int] = pipe.execute()
    return WaitingBatches(sum(counts), max(n / most for n, most in zip(counts, streams.values(), strict=True)))
