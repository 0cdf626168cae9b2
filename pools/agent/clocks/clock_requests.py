"""Clocks that gateways ask for: heard from Redis in a thread of its own, kept until their leases are over.

Nothing of it is stored: while Redis is away nobody can ask, leases run out, and the clocks go back to their rules.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.retry import Retry

from pools import redis_address, wire

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
_LISTEN_S = 1.0  # at a time: so long does ending take at most
_PING_S, _SILENCE_S = 5.0, 15.0  # a connection that is only half there answers no ping
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class HeardClockRequest:
    """A clock that one gateway asks for. `at_s` is by the gateway's clock, `until_s` by the agent's."""

    gateway: str
    mhz: float
    reason: str
    summary: str
    at_s: float
    until_s: float


class ClockRequests:
    """The clocks that are asked for now, by instance and gateway. One thread writes them and another reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: dict[str, dict[str, HeardClockRequest]] = {}

    def put(self, request: wire.ClockRequest, now_s: float) -> None:
        """Takes a request that has just come. Raises ValueError when it makes no sense."""
        if not (request.mhz > 0.0 and math.isfinite(request.mhz)):
            raise ValueError(f"mhz must be above 0, not {request.mhz:g}")
        if not request.lease_s >= 0.0:
            raise ValueError(f"lease_s must be at least 0, not {request.lease_s:g}")
        until_s = now_s + min(request.lease_s, wire.LONGEST_CLOCK_LEASE_S)
        ask = HeardClockRequest(request.gateway, request.mhz, request.reason, request.summary, request.at_s, until_s)
        with self._lock:
            mine = self._heard.setdefault(request.uid, {})
            known = mine.get(request.gateway)
            if known is None or known.at_s <= request.at_s or known.until_s <= now_s:
                mine[request.gateway] = ask

    def highest(self, uid: str, now_s: float) -> HeardClockRequest | None:
        """Returns the request for the highest clock whose lease lasts; None: nobody asks."""
        with self._lock:
            mine = {gateway: ask for gateway, ask in self._heard.get(uid, {}).items() if ask.until_s > now_s}
            if not mine:
                self._heard.pop(uid, None)
                return None
            self._heard[uid] = mine
            return max(mine.values(), key=lambda ask: (ask.mhz, ask.until_s))

    def forget(self) -> None:
        """Forgets all requests: their times are of a clock that was set back. Gateways ask again while they want it."""
        with self._lock:
            self._heard.clear()

    def forget_lapsed(self, now_s: float) -> None:
        """Forgets requests for instances that nobody looks at here: they came to the wrong node, or too late."""
        with self._lock:
            uids = list(self._heard)
        for uid in uids:
            self.highest(uid, now_s)

    def next_lapse_s(self) -> float | None:
        """Returns when the next lease is over, by the agent's clock."""
        with self._lock:
            ends = [ask.until_s for mine in self._heard.values() for ask in mine.values()]
        return min(ends, default=None)


class ClockListener(threading.Thread):
    """Hears a node's clock requests, takes them down, and rings. Outlives any absence of Redis."""

    def __init__(self, url: str, node: str, requests: ClockRequests, ring: Callable[[], None]) -> None:
        super().__init__(name="clock requests", daemon=True)
        self._url = url
        self._channel = wire.clock_channel(node)
        self._requests = requests
        self._ring = ring
        self._ending = threading.Event()
        self._fault = ""  # that was logged and lasts

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                self._say(f"no clock requests are heard: {error}")
                self._ending.wait(_AGAIN_S)

    def end(self, timeout_s: float) -> None:
        self._ending.set()
        self.join(timeout_s)

    def _listen(self) -> None:
        """Listens until the end. Raises RedisError."""
        client = redis_address.connect(
            self._url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
        with client, PubSub(client.connection_pool, ignore_subscribe_messages=True) as channel:
            channel.subscribe(self._channel)
            heard_s = pinged_s = time.monotonic()
            while not self._ending.is_set():
                message = channel.get_message(timeout=_LISTEN_S)
                now_s = time.monotonic()
                if message is not None:
                    heard_s = now_s
                    self._say("")
                    if message["type"] == "message":
                        self._take(message["data"])
                if now_s - heard_s > _SILENCE_S:
                    raise redis.ConnectionError(f"no sign of life for {_SILENCE_S:g} s")
                if now_s - pinged_s > _PING_S:
                    pinged_s = now_s
                    channel.ping()

    def _take(self, data: bytes) -> None:
        try:
            self._requests.put(wire.decode(data, wire.ClockRequest), time.time())
        except (msgspec.DecodeError, ValueError) as error:
            logger.warning("a clock request cannot be used: %s", error)
            return
        self._ring()

    def _say(self, fault: str) -> None:
        """Says in the log once that a fault begins and once that it ends."""
        if fault and not self._fault:
            logger.warning("%s", fault)
        elif self._fault and not fault:
            logger.info("clock requests are heard again")
        self._fault = fault
