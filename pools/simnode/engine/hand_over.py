"""The values that two simulated engines share of a KV cache that goes over; `kv` keeps and sends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvLink:
    """A link from one instance to another. Transfers go one by one, each takes `latency_s` and its bytes' time."""

    bytes_per_s: float
    latency_s: float = 0.0

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bytes_per_s


@dataclass(slots=True, eq=False)
class HandOver:
    """A request's cache that is kept for another engine. `chunk_tokens`: pushed in such chunks; None: to be pulled."""

    request_id: str
    bytes_per_token: float
    link: KvLink
    chunk_tokens: int | None = None
    tokens: int = 0  # in the cache; known when the request has ended
    sent_tokens: int = 0
    there_at_s: float | None = None  # pushed: when the last chunk arrives
    until_s: float = 0.0  # the lease


@dataclass(slots=True, eq=False)
class Arriving:
    """The cache of a request's first `tokens` tokens, from another engine.

    `there_at_s`: when it is here by itself; None: it is pulled, for `transfer_s`, once there is room for it.
    `let_go` tells the other engine that it is not needed there any more.
    """

    tokens: int
    size_bytes: float
    transfer_s: float
    there_at_s: float | None
    let_go: Callable[[], None]
