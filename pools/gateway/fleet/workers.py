"""Workers that registered themselves: engines that no agent runs. Who they are, and whether they answer.

A registration lies in Redis under a lease (`wire.WorkerRegistration`), so that all gateways have it. Each admits a
worker once its `/health` has answered 200, and looks again every few seconds; while it does not, it gets no requests.
To the rest of the gateway admitted ones are instances of an agent without a node.

Redis may lose registrations (it was emptied, or restarted from an older state). It then lists neither a lease nor that
one has ended: each gateway keeps such a worker until the lease that it has seen is over, and registers it anew.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from msgspec.structs import replace

from pools import wire
from pools.registration.registered_engines import instance_of
from pools.registration.worker_hosts import WorkerHosts

from .engine_probe import EngineProbe
from .instance import NO_NODE
from .receipts import Receipts

log = logging.getLogger(__name__)

MEASURED_S = 5.0  # what was measured longer ago, by its receipt, says nothing of now
PROBE_PERIOD_S = 5.0
PROBE_TIMEOUT_S = 2.0
MOST_WORKERS = 500


class WorkerStore(Protocol):
    """Keeps registrations under their leases. Blocks for 2 s at most; raises RedisError or OSError."""

    async def workers(self) -> tuple[list[wire.WorkerRegistration], set[str]]:
        """Returns those whose lease lasts, and the ids of those that have left or whose lease is over."""

    async def put_worker(self, worker: wire.WorkerRegistration) -> None:
        """Begins its lease, or begins it anew."""

    async def put_worker_back(self, worker: wire.WorkerRegistration, left_s: float) -> None:
        """Lists one that was lost for the rest of its lease, unless it is listed again."""

    async def drop_worker(self, uid: str) -> bool:
        """Removes a registration; returns whether there was one."""

    async def measured_workers(self) -> wire.AgentState | None:
        """Returns what the ingester measured of them last; None: nothing recently."""


@dataclass(slots=True, eq=False)
class Worker:
    """A registered worker. `answers` None: not asked yet; `said` is why it is out."""

    registration: wire.WorkerRegistration
    until_s: float  # monotonic: then the lease is over, as far as this gateway has seen
    watch: asyncio.Task[None] | None = None
    answers: bool | None = None
    said: str = ""

    @property
    def state(self) -> str:
        return "probing" if self.answers is None else "ready" if self.answers else "failing"


class Workers:
    """All that are registered. Make and use it inside a running event loop.

    `store` None: there are none, and none can be. `changed` is called when one comes or goes.
    """

    def __init__(
        self, hosts: WorkerHosts | None = None, trust: ssl.SSLContext | None = None, key: str | None = None
    ) -> None:
        """`trust`: see EngineProbe. `key`: what workers ask their clients for; None: nothing."""
        self.hosts = hosts or WorkerHosts()
        self._key = key or ""
        self.probe_period_s = PROBE_PERIOD_S
        self.store: WorkerStore | None = None
        self.changed: Callable[[], None] = lambda: None
        self.fleet: wire.Fleet | None = None
        self._known: dict[str, Worker] = {}
        self._left_out: set[str] = set()
        self._measured = Receipts()
        self._probe = EngineProbe(PROBE_TIMEOUT_S, trust)

    def known(self) -> Iterable[Worker]:
        return self._known.values()

    def get(self, uid: str) -> Worker | None:
        return self._known.get(uid)

    async def states(self, fleet: wire.Fleet) -> dict[str, wire.AgentState]:
        """Reads who is registered; gives those that answer, as an agent would. Raises what the store does."""
        self.fleet = fleet
        if self.store is None:
            return {}
        await self._take_over(self.store, *await self.store.workers())
        ready = [self._instance(worker.registration, fleet) for worker in self._known.values() if worker.answers]
        measured, now_s = await self.store.measured_workers(), time.monotonic()
        if measured is None or now_s - self._measured.note(NO_NODE, measured.at_s, now_s) > MEASURED_S:
            measured = wire.AgentState(NO_NODE, NO_NODE, now_s, None, [])
        loads = {instance.uid: instance for instance in measured.instances}
        instances = [_loaded(instance, loads.get(instance.uid)) for instance in ready if instance is not None]
        return {NO_NODE: replace(measured, node=NO_NODE, instances=instances)}

    async def close(self) -> None:
        watches = [worker.watch for worker in self._known.values() if worker.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await self._probe.close()

    async def _take_over(
        self, store: WorkerStore, registrations: Iterable[wire.WorkerRegistration], ended: set[str]
    ) -> None:
        now_s = time.monotonic()
        listed = {r.uid: r for r in registrations if self._may_be(r)}
        missing = [worker for uid, worker in self._known.items() if uid not in listed]
        lost = [w for w in missing if w.registration.uid not in ended and w.until_s > now_s]
        for gone in missing:
            if gone not in lost:
                self._forget(gone)
        for uid, registration in listed.items():
            worker = self._known.get(uid)
            if worker is None:
                worker = self._known[uid] = Worker(registration, _lease_end_s(registration, now_s))
                worker.watch = asyncio.get_running_loop().create_task(self._watch(worker), name=f"worker {uid}")
            elif worker.registration != registration:
                worker.registration, worker.until_s = registration, _lease_end_s(registration, now_s)
        for one in lost:
            log.warning("Redis has lost the worker at %s: it is registered anew", one.registration.url)
            await store.put_worker_back(one.registration, one.until_s - now_s)

    def _forget(self, worker: Worker) -> None:
        del self._known[worker.registration.uid]
        if worker.watch is not None:
            worker.watch.cancel()

    def _may_be(self, registration: wire.WorkerRegistration) -> bool:
        """Every gateway looks for itself: another one may be configured otherwise."""
        if self.hosts.allow(urlsplit(registration.url).hostname or ""):
            return True
        self._complain(registration, f"the worker at {registration.url} is not where workers may be")
        return False

    def _instance(self, worker: wire.WorkerRegistration, fleet: wire.Fleet) -> wire.InstanceState | None:
        """None: the fleet has changed since it registered, and has no place for it."""
        found = instance_of(worker, fleet.services)
        if found is None:
            self._complain(
                worker, f"the worker at {worker.url} gets no requests: '{worker.service}' has no pool for it"
            )
            return None
        self._left_out.discard(worker.uid)
        return replace(found, engine_key=self._key)

    def _complain(self, worker: wire.WorkerRegistration, what: str) -> None:
        if worker.uid not in self._left_out:
            self._left_out.add(worker.uid)
            log.warning("%s", what)

    async def _watch(self, worker: Worker) -> None:
        """Asks at once, and then every few seconds, until it is cancelled."""
        while True:
            said = (await self._probe.ask(worker.registration.url)).wrong
            answers = not said
            if answers != worker.answers:
                log.info("worker %s %s", worker.registration.url, "is admitted" if answers else f"is out: {said}")
                worker.answers, worker.said = answers, said
                self.changed()
            await asyncio.sleep(self.probe_period_s)


def _lease_end_s(registration: wire.WorkerRegistration, now_s: float) -> float:
    """Returns when a lease that was seen just now ends (monotonic); a wrong wall clock can make it only shorter."""
    return now_s + registration.lease_s - max(0.0, time.time() - registration.registered_at_s)


def _loaded(instance: wire.InstanceState, measured: wire.InstanceState | None) -> wire.InstanceState:
    """Adds what its engine says of itself. Whether it gets requests is for `/health` to say."""
    if measured is None:
        return instance
    running, waiting, kv_usage = measured.running, measured.waiting, measured.kv_usage
    return replace(instance, running=running, waiting=waiting, kv_usage=kv_usage)
