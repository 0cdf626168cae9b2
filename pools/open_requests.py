"""Reads from Redis which requests have come to the gateways and not ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import redis

from pools import wire

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request of a service; its answer's length is predicted."""

    request_id: str
    started_at_s: float
    prompt_tokens: int
    output_tokens: int


def gateways_known(client: redis.Redis) -> bool:
    """Says whether any gateway has reported in the last seconds; else it is not known whether requests are open."""
    return any(True for _ in _messages(client))


def open_requests(client: redis.Redis, service: str) -> Iterator[OpenRequest]:
    """Yields the open requests of a service, as gateways said in the last seconds; none of a Redis that is away."""
    for found in _messages(client):
        if service not in found.services:
            continue
        own = found.services.index(service)
        lengths = zip(found.prompt_tokens, found.predicted_output_tokens, strict=True)
        for index, request_id, at_s, (prompt, output) in zip(
            found.service, found.request_id, found.started_at_s, lengths, strict=True
        ):
            if index == own:
                yield OpenRequest(request_id, at_s, prompt, output)


def waiting_since(client: redis.Redis) -> dict[str, list[float]]:
    """Returns when the open requests of each service came, in Unix seconds, by its name."""
    found: dict[str, list[float]] = {}
    for message in _messages(client):
        for index, at_s in zip(message.service, message.started_at_s, strict=True):
            found.setdefault(message.services[index], []).append(at_s)
    return found


def _messages(client: redis.Redis) -> Iterator[wire.OpenRequests]:
    try:
        names = [str(name, "utf-8") for name in client.zrange(wire.GATEWAYS_KEY, 0, -1)]  # type: ignore[arg-type]
        values = client.mget(map(wire.open_requests_key, names)) if names else []
    except redis.RedisError as error:
        log.warning("which requests are open is not known: %s", error)
        return
    for name, data in zip(names, values, strict=True):
        try:
            if data is not None:
                yield wire.decode(data, wire.OpenRequests)
        except msgspec.MsgspecError as error:
            log.warning("the open requests of gateway %s cannot be read: %s", name, error)
