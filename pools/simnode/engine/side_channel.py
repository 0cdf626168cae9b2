"""Lets simulated engines find each other's caches, as NIXL's side channel does for real ones: HTTP on loopback.

`GET /kv_cache/{request}` says what is kept (and renews its lease), `DELETE` that it has been fetched. The bytes
themselves are not sent, only the time that they would take passes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from core.engine.overheads import Overheads

from .hand_over import KvLink

logger = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class KvOffer(msgspec.Struct, frozen=True):
    """A cache that an engine keeps for another. `there_at_s`: pushed, and there then (monotonic seconds)."""

    model: str
    tokens: int
    there_at_s: float | None = None


class LoadFailed(Exception):
    """A cache cannot be had: its engine has gone, or does not keep it any more."""


@dataclass(frozen=True, slots=True)
class KvLinks:
    """The links between engines of one node, and of different ones.

    The defaults are NVLink as in `Overheads`, and a NIC of 200 Gb/s with RDMA (DynaServe's testbed has one a GPU). The
    latencies are guesses at the fixed part of a transfer.
    """

    local: KvLink = field(default_factory=lambda: KvLink(Overheads().link_bytes_per_s, 0.0005))
    network: KvLink = field(default_factory=lambda: KvLink(25e9, 0.002))


@dataclass(slots=True)
class KvNetwork:
    """One node's end of the side channel; engines are distinguished by their instances' uid."""

    links: KvLinks
    is_neighbour: Callable[[str], bool]  # whether an engine is of this node
    _session: aiohttp.ClientSession | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def link_to(self, engine_id: str | None) -> KvLink:
        """None: it is not known yet who will fetch."""
        return self.links.local if engine_id is not None and self.is_neighbour(engine_id) else self.links.network

    async def offer(self, host: str, port: int, request_id: str) -> KvOffer:
        """Raises LoadFailed. Takes two seconds at most."""
        try:
            async with self._client().get(_url(host, port, request_id)) as response:
                data = await response.read()
                if response.status != 200:
                    raise LoadFailed(f"engine {host}:{port} keeps no cache of request {request_id}")
                return msgspec.json.decode(data, type=KvOffer)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise LoadFailed(f"engine {host}:{port} does not answer: {error or type(error).__name__}") from error

    def let_go(self, host: str, port: int, request_id: str) -> None:
        """Sends word that a cache is not needed there any more; if that fails its lease ends it."""
        task = asyncio.get_running_loop().create_task(self._let_go(_url(host, port, request_id)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _let_go(self, url: str) -> None:
        try:
            async with self._client().delete(url):
                pass
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("cannot say that %s has been fetched: %s", url, error)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self._session


def _url(host: str, port: int, request_id: str) -> str:
    where = f"[{host}]" if ":" in host else host
    return f"http://{where}:{port}/kv_cache/{request_id}"
