"""Has an engine load the LoRA adapter that requests wait for, in the place of the one least recently used.

An adapter that a service declares is loaded where a request by its name finds no room at an engine that has it. The
request waits meanwhile, in the queue of its adapter. While an engine has it, another loads it into a free place only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from typing import NamedTuple

from ..errors import adapter_not_loaded
from ..fleet.engine_adapters import EngineAdapters
from ..fleet.instance import Instance
from ..fleet.view import FleetView, Service
from .class_queue import Waiter
from .dispatch import Dispatcher
from .slot import due_at, slots_at

log = logging.getLogger(__name__)

FAULT_S = 30.0  # for so long an engine that could not load an adapter is not asked for it again


class _Fault(NamedTuple):
    until_s: float
    why: str


class AdapterLoader:
    """Make and use it inside a running event loop. Counts `loads`, `evictions` and `failures`."""

    def __init__(self, dispatcher: Dispatcher, fleet: FleetView, trust: ssl.SSLContext | None = None) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._engines = EngineAdapters(trust)
        self._faults: dict[tuple[str, str], _Fault] = {}  # by instance and adapter
        self._under_way: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by adapter: the instance that loads it
        self.loads = self.evictions = self.failures = 0

    def look(self) -> None:
        """Begins to load what requests wait for. Call it when one begins to wait for an adapter, and now and then."""
        now_s = time.monotonic()
        self._faults = {key: fault for key, fault in self._faults.items() if now_s < fault.until_s}
        self._fleet.unloadable = {name: fault.why for (_, name), fault in self._faults.items()}
        for waiter in self._dispatcher.adapters_wanted():
            service = self._fleet.services.get(waiter.call.service.name)
            name = waiter.call.adapter
            if service is not None and name in service.declared and name not in self._under_way:
                self._find_place(service, name, waiter, now_s)

    async def close(self) -> None:
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engines.close()

    def _find_place(self, service: Service, name: str, waiter: Waiter, now_s: float) -> None:
        lacking = service.unable(waiter.call.endpoint.engine_path)
        others = [i for i in service.choosable(lacking, now_s) if name not in i.adapters]
        able = [i for i in others if (i.uid, name) not in self._faults]
        somewhere = any(name in i.adapters for i in service.ready)
        if others and not able and not somewhere:
            self._refuse(service, name)
        loading = {uid for uid, _ in self._under_way.values()}
        rank = self._dispatcher.request_of(service, waiter.call).class_rank
        for instance in sorted(able, key=lambda i: (i.rank != rank, len(i.adapters) >= service.max_loras, i.parts)):
            full = len(instance.adapters) >= service.max_loras
            leaving = _least_recently_used(service, instance) if full else None
            if instance.uid in loading or (full and (somewhere or leaving is None)):
                continue
            task = asyncio.get_running_loop().create_task(self._load(service, name, instance, leaving))
            self._under_way[name] = instance.uid, task
            return

    async def _load(self, service: Service, name: str, instance: Instance, leaving: str | None) -> None:
        """Never raises. What leaves gets no more requests from here before its engine unloads it."""
        try:
            fault = ""
            if leaving is not None:
                self._now_has(instance, leaving, loaded=False)
                fault = await self._engines.unload(instance, leaving)
                self.evictions += not fault
            fault = fault or await self._engines.load(instance, name, service.declared[name])
            if fault:
                self._failed(instance, name, fault)
            else:
                self.loads += 1
                self._now_has(instance, name, loaded=True)
                log.info("instance %s has loaded the adapter '%s' and unloaded '%s'", instance.uid, name, leaving or "")
        except Exception:
            log.exception("the adapter '%s' is not loaded by instance %s", name, instance.uid)
            self._failed(instance, name, "the gateway failed")
        finally:
            del self._under_way[name]
        self._dispatcher.room(service.name)
        self.look()

    def _now_has(self, instance: Instance, name: str, *, loaded: bool) -> None:
        instance.ordered_adapter(name, loaded, time.monotonic())
        self._fleet.apply_again()

    def _failed(self, instance: Instance, name: str, why: str) -> None:
        self.failures += 1
        self._faults[instance.uid, name] = _Fault(time.monotonic() + FAULT_S, why)
        log.error("instance %s at %s does not load the adapter '%s': %s", instance.uid, instance.url, name, why)

    def _refuse(self, service: Service, name: str) -> None:
        """No engine can load it at present, and those that wait for it wait no longer."""
        for waiter in self._dispatcher.waiters(service.name):
            if waiter.call.adapter == name and not waiter.place.done():
                waiter.place.set_exception(adapter_not_loaded(service.name, name, FAULT_S))


def _least_recently_used(service: Service, instance: Instance) -> str | None:
    """Returns the adapter that can go: none that somebody loaded by hand, or that has requests. None: there is none."""
    busy = {slot.call.adapter for slot in (*slots_at(instance), *due_at(instance))}
    idle = sorted(name for name in instance.adapters if name in service.declared and name not in busy)
    return min(idle, key=lambda name: instance.adapters_used_s.get(name, -math.inf), default=None)
