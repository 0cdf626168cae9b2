"""The agent's side of Redis: its desired state in, its state and its batches out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pools import redis_address, wire
from pools.measured_engines import ReadProfiles

TIMEOUT_S = 2.0


class LinkError(Exception):
    """Redis could not be reached, or refused."""


class BadDesired(Exception):
    """The desired state is not what `pools.wire` says it is."""


class Link(Protocol):
    """The loop's side of Redis. Each call blocks for at most about two seconds and raises LinkError."""

    def desired(self) -> wire.DesiredNode | None:
        """None: there is none. The profiles that it names are in it. Raises BadDesired too."""

    def send(self, state: wire.AgentState, heartbeat: wire.Heartbeat, batches: Sequence[wire.AgentBatch]) -> int:
        """Returns how many of the batches, from the first on, there was room for."""


class RedisLink:
    def __init__(
        self, url: str, node: str, timeout_s: float = TIMEOUT_S, most_batches: int = wire.NODE_STREAM_MOST
    ) -> None:
        self._node = node
        self._profiles = ReadProfiles()
        self._most_batches = str(most_batches)
        # No retries of its own: the loop comes back in a second, and must not be held up.
        self._redis = redis_address.connect(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )

    def desired(self) -> wire.DesiredNode | None:
        try:
            data = self._redis.get(wire.desired_key(self._node))
        except redis.RedisError as error:
            raise LinkError(f"Redis: {error}") from error
        if data is None:
            return None
        try:
            desired = wire.decode(bytes(data), wire.DesiredNode)  # type: ignore[arg-type]  # stubs know of awaitables
        except msgspec.DecodeError as error:
            raise BadDesired(f"the desired state cannot be read: {error}") from error
        if desired.node != self._node:
            raise BadDesired(f"the desired state is that of node {desired.node}")
        return self._with_profiles(desired)

    def _with_profiles(self, desired: wire.DesiredNode) -> wire.DesiredNode:
        if missing := self._profiles.missing(desired.measured):
            try:
                found = self._redis.hmget(wire.profiles_key(self._node), missing)
            except redis.RedisError as error:
                raise LinkError(f"Redis: {error}") from error
            self._profiles.add(dict(zip(missing, found, strict=True)))  # type: ignore[arg-type]  # as above
        return msgspec.structs.replace(desired, profiles=self._profiles.profiles())

    def send(self, state: wire.AgentState, heartbeat: wire.Heartbeat, batches: Sequence[wire.AgentBatch]) -> int:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(wire.agent_key(state.node), wire.encode(state), ex=wire.AGENT_STATE_TTL_S)
        pipeline.set(wire.alive_key(heartbeat.process), wire.encode(heartbeat), ex=wire.HEARTBEAT_TTL_S)
        data = [wire.encode(batch) for batch in batches]
        pipeline.eval(wire.ADD_WHILE_ROOM, 1, wire.batch_stream(self._node), self._most_batches, *data)
        try:
            return int(pipeline.execute()[-1])
        except redis.RedisError as error:
            raise LinkError(f"Redis: {error}") from error

    def close(self) -> None:
        self._redis.close()


def redis_url(broker_url: str) -> str:
    """Returns Celery's broker URL as the Redis client writes it. Raises ValueError when it is not Redis.

    A socket is `redis+socket:///PATH?virtual_host=DB` there and `unix:///PATH?db=DB` here.
    """
    parts = urlsplit(broker_url)
    if parts.scheme in ("redis", "rediss", redis_address.SCHEME):
        return broker_url
    if parts.scheme not in ("redis+socket", "unix"):
        raise ValueError(f"the broker must be Redis, not {parts.scheme or 'nothing'}")
    query = parse_qs(parts.query)
    db = (query.get("virtual_host") or query.get("db") or ["0"])[-1]
    return f"unix://{parts.netloc}{parts.path}?db={db.strip('/')}"
