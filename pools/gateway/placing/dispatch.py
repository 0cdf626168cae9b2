"""Decides which requests go now and where to, in the one place that does, with a queue for each request class.

A request goes at once when nobody of its class waits and an instance can take it. Else it waits in its class's queue,
in the order of the service's policy, until an instance has room: after each first token, each end, and each new report.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from core.algorithms.queue.deadlines import due_by_limits
from core.algorithms.queue.fair_queue import FairQueue, Waiting, due_s, priority
from core.algorithms.queue.queueing import Order, OrderConfig
from core.controllers.request.hand_on import HandOn
from core.controllers.request.routing import RouteRequest

from ..accounts.use_elsewhere import UseElsewhere
from ..classify.classifier import Classifier
from ..errors import ApiError, none_ready, still_asleep
from ..fleet.instance import Instance
from ..fleet.view import FleetView, Service
from ..http.loop_turn import Ticks
from ..requests.call import Call
from ..requests.engine_order import EngineWork
from ..token_bucket import TokenBucket
from .class_queue import ClassQueue, Waiter
from .instance_choice import Routed, Router
from .measured_aging import MeasuredAging
from .slot import Part, Slot

TIER_HEAD_START_S = {"priority": 30.0, "flex": -60.0}  # OpenAI's service tiers; others: none
PRIORITY_HEAD_START_S = 10.0  # of each step of a request's own `priority`, lower first as in vLLM
MOST_STEPS = 10
WAKING_PERIOD_S = 5.0  # between signs of life to a client whose service wakes


class Gate(Protocol):
    """Says which instances may take a request now, and hears which one did."""

    def narrows(self, service: Service, call: Call) -> bool:
        """Says whether `narrow` may leave any out."""

    def narrow(self, service: Service, choosable: Sequence[Instance], call: Call) -> Sequence[Instance]: ...

    def placed(self, service: Service, instance: Instance) -> None: ...


class RetryBudget:
    """Retries are at most `SHARE` of all requests, and a few a second besides: failing engines get no storm on top."""

    SHARE = 0.2
    PER_S = 3.0
    MOST = 100.0

    def __init__(self) -> None:
        self._left = TokenBucket(self.PER_S, self.MOST)
        self._earned = 0  # new requests since the last retry

    def earn(self) -> None:
        """A new request has come."""
        self._earned += 1

    def spend(self, now_s: float) -> bool:
        """Takes a retry from the budget; returns whether there was one."""
        self._left.give(self.SHARE * self._earned)
        self._earned = 0
        return self._left.take(now_s)


class Dispatcher:
    """All requests between their arrival and an instance. `gate` narrows the instances that may take a request."""

    def __init__(
        self, fleet: FleetView, router: Router, classifier: Classifier | None = None, gate: Gate | None = None
    ) -> None:
        self._fleet = fleet
        self._classifier = classifier
        self._router = router
        self._gate = gate
        self.retries = RetryBudget()
        self.ticks = Ticks()
        self._aging = MeasuredAging()
        self._queues: dict[tuple[str, str | None], ClassQueue] = {}
        self.use = UseElsewhere()
        self.wish: Callable[[], None] = lambda: None  # called when a request begins to wait for a service that sleeps
        self.wants_adapter: Callable[[], None] = lambda: None  # called when a request begins to wait for an adapter
        self._again: set[str] = set()  # services for which `_try_again` is to be called
        self._hand_on: dict[str, HandOn] = defaultdict(HandOn)  # by service

    @property
    def waiting(self) -> int:
        return sum(len(queue.waiters) for queue in self._queues.values())

    def waiters(self, service_name: str) -> list[Waiter]:
        """Returns those that wait, of all classes, by arrival."""
        found = [w for (name, _), queue in self._queues.items() if name == service_name for w in queue.waiters.items()]
        return sorted(found, key=lambda waiter: waiter.row.arrival_s)

    def adapters_wanted(self) -> list[Waiter]:
        """Returns the next one of each queue of an adapter."""
        found = [queue.waiters.peek() for queue in self._queues.values()]
        return [waiter for waiter in found if waiter is not None and waiter.call.adapter]

    def lost_adapter(self, instance: Instance, name: str) -> None:
        """An engine answers that it has not an adapter which it had: another gateway has had it unloaded."""
        instance.ordered_adapter(name, False, time.monotonic())
        self._fleet.apply_again()

    def reorder(self, first: Sequence[Waiter]) -> None:
        """These go before all others of their queues, in this order."""
        for key in {(waiter.call.service.name, waiter.call.line) for waiter in first}:
            queue = self._queues.get(key)
            if queue is not None:
                queue.waiters.reorder(first)

    async def place(
        self, call: Call, tried: Collection[str] = (), waking: Callable[[], None] = lambda: None
    ) -> Slot | None:
        """Returns a place for the call, after a wait if need be; None: no instance is left that it could go to.

        A call that was elsewhere before (`tried`) has waited already: it goes before all others. While no instance is
        ready, and one comes up, a call waits for as long as its TTFT allows; for a service that sleeps as long as the
        policy allows, and `waking` is called now and then.

        Raises:
            ApiError: 429, the queue is full or has not moved for `max_wait_s`; 503, no instance has come up in time.
        """
        service = self._current(call)
        if call.texts:
            await self._refine(service, call)
        self._order_inside(service, call)
        queue = self._queues.get((service.name, call.line))
        if tried or queue is None or not len(queue.waiters):
            left_out = _left_out(service, call, tried)
            can_load = call.adapter in service.declared and bool(service.ready)
            hoped = service.coming or service.wakes or can_load
            if not service.choosable(left_out, time.monotonic()) and (tried or not hoped):
                return None
            slot = self._try(service, call, tried)
            if slot is not None:
                return slot
        return await self._wait(service, call, waking)

    def place_now(self, call: Call) -> Slot | None:
        """A place for a call that has been nowhere yet, if it need not wait for one; else see `place`."""
        if call.texts:
            return None
        service = self._current(call)
        if self._queues:
            queue = self._queues.get((service.name, call.line))
            if queue is not None and len(queue.waiters):
                return None
        if service.policy.engine_priority:
            self._order_inside(service, call)
        return self._try(service, call)

    def has_another(self, call: Call, tried: Collection[str]) -> bool:
        """Whether an instance is in rotation to which the call has not been sent yet, busy as it may be."""
        now_s, service = time.monotonic(), self._current(call)
        left_out = _left_out(service, call, tried)
        return any(i.uid not in left_out and i.health.usable(now_s) for i in service.ready)

    def take(self, call: Call, routed: Routed, part: Part | None = None) -> Slot:
        """Returns a place at an instance that somebody else has chosen. `part`: None: all of the call is done there."""
        return Slot(self, call, routed, part)

    def room(self, service_name: str) -> None:
        """An instance of the service has room: whoever is next goes, as long as there is any."""
        if self._queues:
            service = self._fleet.services.get(service_name)
            queues = [queue for (name, _), queue in self._queues.items() if name == service_name and len(queue.waiters)]
            if service is not None and queues:
                self._serve(service, queues)

    def look_around(self) -> None:
        """Called now and then: a new snapshot may have made room, or another policy be in force."""
        self._queues = {key: queue for key, queue in self._queues.items() if len(queue.waiters)}
        for name in {name for name, _ in self._queues}:
            self.room(name)

    def request_of(self, service: Service, call: Call) -> RouteRequest:
        """Returns what routing needs to know. Whether its class hands a call on is decided the first time."""
        limits = call.limits(service)
        known = call.classified
        if known is None:
            return RouteRequest(0, 1, 0, limits)
        rank = service.ranks.get(known.class_name, 0) if known.class_name else 0
        if service.hands_on:
            if call.pool_rank is None:
                call.pool_rank = self._hand_on[service.name].enter(rank, service.hands_on)
            rank = call.pool_rank
        return RouteRequest(known.prompt_tokens, known.predicted_tokens, rank, limits)

    async def _refine(self, service: Service, call: Call) -> None:
        """Waits for what others know of the call's prompt."""
        if self._classifier is not None and call.features is not None and call.classified is not None:
            call.classified = await self._classifier.refine(service, call.features, call.texts, call.classified)
            call.pool_rank = None  # its class may be another one now
        call.texts = ()

    # -- placing -----------------------------------------------------------------------------------

    def _current(self, call: Call) -> Service:
        """The call's service as it is now: snapshots are replaced while calls wait."""
        service = call.service
        return self._fleet.services.get(service.name, service)

    def _try(self, service: Service, call: Call, tried: Collection[str] = ()) -> Slot | None:
        """A place now, or None: every instance has as much as it should have, or there is none."""
        now_s, most, gate = time.monotonic(), service.engine_queue, self._gate
        request, left_out = self.request_of(service, call), _left_out(service, call, tried)

        def everybody() -> Sequence[Instance]:
            return [i for i in service.choosable(left_out, now_s) if i.unstarted < most]

        if gate is not None and gate.narrows(service, call):
            choosable = everybody()
            open_ones = gate.narrow(service, choosable, call) if choosable else choosable
            if choosable and not open_ones:
                self._try_again_later(service)
            routed = None
            if open_ones:
                routed = self._router.route(service, open_ones, request, call.prompt_start, None, call.prefix_owner)
        else:  # mostly one of the request's own class takes it: the others need not be looked at
            own = [
                i
                for i in service.in_rotation(request.class_rank, now_s)
                if i.unstarted < most and i.uid not in left_out
            ]
            routed = self._router.route(service, own, request, call.prompt_start, everybody, call.prefix_owner)
        if routed is None:
            return None
        slot = Slot(self, call, routed)
        if call.adapter:
            slot.instance.adapters_used_s[call.adapter] = now_s
        if gate is not None:
            gate.placed(service, slot.instance)
        return slot

    def _try_again_later(self, service: Service) -> None:
        """Those that wait are looked at again though nothing else happens: projections change with time."""
        if service.name not in self._again:
            self._again.add(service.name)
            self.ticks.call_later(service.policy.tuning.throttle_retry_s, partial(self._try_again, service.name))

    def charge(self, used: Mapping[str, Mapping[str, int]]) -> None:
        """Adds to the accounts of tenants that wait here what other gateways gave them, by queue."""
        for (service_name, class_name), queue in self._queues.items():
            for tenant, tokens in used.get(_name(service_name, class_name), {}).items():
                queue.waiters.charge(tenant, tokens)

    def _try_again(self, service_name: str) -> None:
        self._again.discard(service_name)
        self.room(service_name)

    def _serve(self, service: Service, queues: list[ClassQueue]) -> None:
        """Whoever is most urgent of all classes goes first; a class whose next one cannot go holds up no other."""
        for queue in queues:
            queue.waiters.advance(time.time())
        while queues:
            queue = min(queues, key=lambda own: own.waiters.urgency())
            waiter = queue.waiters.peek()
            slot = self._try(service, waiter.call) if waiter is not None else None
            if slot is None or waiter is None:
                queues.remove(queue)
                continue
            queue.waiters.pop()
            queue.departed(time.monotonic())
            self.use.note_queued(_name(service.name, waiter.call.line), waiter.call.key.tenant, waiter.row.tokens)
            if waiter.place.done():  # its client has just left
                slot.end()
            else:
                waiter.place.set_result(slot)

    # -- waiting -----------------------------------------------------------------------------------

    async def _wait(self, service: Service, call: Call, waking: Callable[[], None]) -> Slot:
        queue = self._queue(service, call.line)
        row = self.row_of(service, call, queue.waiters.config)
        self._check_bounds(service, queue, row)
        waiter = Waiter(call, row, asyncio.get_running_loop().create_future())
        queue.waiters.push(waiter, row)
        began_s = time.monotonic()
        if call.adapter:
            self.wants_adapter()
        try:
            async with asyncio.timeout(service.policy.max_wait_s):
                if not service.ready:
                    await self._come_up(waiter, waking)
                return await waiter.place
        except TimeoutError:
            waiter.give_back()
            if not self._current(call).ready:
                raise self._did_not_come_up(service) from None
            raise ApiError(
                429,
                f"No instance of '{service.name}' had room within {service.policy.max_wait_s:g} s.",
                kind="rate_limit_error",
                code="queue_timeout",
                retry_after_s=queue.drained_in_s(),
            ) from None
        except asyncio.CancelledError:
            waiter.give_back()
            raise
        finally:
            call.queue_s = (call.queue_s or 0.0) + time.monotonic() - began_s
            queue.waiters.remove(waiter)

    async def _come_up(self, waiter: Waiter, waking: Callable[[], None]) -> None:
        """Waits until the call has a place or its patience is over. Raises TimeoutError if then no instance is ready.

        Its patience is its TTFT, or what the policy grants a service that sleeps.
        """
        call, sleeps = waiter.call, waiter.call.service.wakes
        limit_s = call.service.policy.wake_patience_s if sleeps else call.limits(call.service).ttft_s
        if limit_s is None:
            return
        if sleeps:
            self.wish()
        until_s = call.request.received_s + limit_s
        next_s = time.monotonic() if sleeps else until_s
        while not waiter.place.done() and (now_s := time.monotonic()) < until_s:
            if now_s >= next_s:
                next_s = now_s + WAKING_PERIOD_S
                if not self._current(call).ready:
                    waking()
            await asyncio.wait([waiter.place], timeout=min(until_s, next_s) - now_s)
        if not waiter.place.done() and not self._current(call).ready:
            raise TimeoutError

    @staticmethod
    def _did_not_come_up(service: Service) -> ApiError:
        patience_s = service.policy.wake_patience_s
        if patience_s is None:
            return none_ready(service.name)
        return still_asleep(service.name, min(patience_s, service.policy.max_wait_s))

    def _queue(self, service: Service, class_name: str | None) -> ClassQueue:
        key = (service.name, class_name)
        config, weights = self._order_config(service), service.policy.tenant_weights
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ClassQueue(FairQueue(config, weights), weights)
        elif (queue.waiters.config, queue.weights) != (config, weights):
            # The policy has changed: those that wait keep waiting, in the new order.
            fresh = FairQueue[Waiter](config, weights)
            for waiter in sorted(queue.waiters.items(), key=lambda w: w.row.arrival_s):
                waiter.row = self.row_of(service, waiter.call, config)
                fresh.push(waiter, waiter.row)
            queue.waiters, queue.weights = fresh, weights
        return queue

    def row_of(self, service: Service, call: Call, config: OrderConfig) -> Waiting:
        """Returns what the order goes by, in Unix seconds, so that keys of several gateways can be compared."""
        arrival_s, request = call.request.started_at_s, self.request_of(service, call)
        alone = self._router.alone(service, request)
        work_s = alone[1] if alone is not None else 0.0
        due_at_s = None
        if config.order is Order.EDF and service.class_limits:
            due_at_s = due_by_limits(arrival_s, float(request.predicted_output_tokens), request.limits)
        steps = max(-MOST_STEPS, min(MOST_STEPS, call.priority))
        head_start_s = TIER_HEAD_START_S.get(call.tier or "", 0.0) - steps * PRIORITY_HEAD_START_S
        return Waiting(
            arrival_s,
            call.prompt_tokens or 0,
            call.predicted_tokens or 1,
            work_s,
            due_s(arrival_s, work_s, config) if due_at_s is None else float(due_at_s),
            call.key.tenant,
            head_start_s,
        )

    def _order_inside(self, service: Service, call: Call) -> None:
        """Sets the call's place in an engine's own queue, where the policy asks for one."""
        if service.policy.aging_measured and call.engine_priority is None:  # it has just come
            self._aging.note(service, call.predicted_tokens or 1)
        call.engine_priority = call.engine_work = None
        if not service.policy.engine_priority:
            return
        config = self._order_config(service)
        row = self.row_of(service, call, config)
        call.engine_priority = priority(row, config)
        if config.order is Order.LLF:
            alone = self._router.alone(service, self.request_of(service, call))
            if alone is not None:
                call.engine_work = EngineWork(row.due_s, row.work_s, alone[0], row.predicted_tokens)

    def _order_config(self, service: Service) -> OrderConfig:
        policy, aging = service.policy, service.policy.aging_tokens_per_s
        if policy.aging_measured:
            aging = self._aging.tokens_per_s(service, time.monotonic())
        return OrderConfig(Order(policy.order), aging, policy.tuning.queue_window_factor)

    def _check_bounds(self, service: Service, queue: ClassQueue, row: Waiting) -> None:
        policy, waiters = service.policy, queue.waiters
        if len(waiters) < policy.max_queued_requests and waiters.tokens + row.tokens <= policy.max_queued_tokens:
            return
        raise ApiError(
            429,
            f"'{service.name}' has {len(waiters)} requests ({waiters.tokens} tokens) waiting, as many as it may have.",
            kind="rate_limit_error",
            code="queue_full",
            retry_after_s=queue.drained_in_s(),
        )


def _left_out(service: Service, call: Call, tried: Collection[str]) -> Collection[str]:
    """Returns the instances, by uid, to which a call is not sent: it was there, or what it needs is not."""
    unable = service.unable(*call.needs)
    return {*tried, *unable} if unable else tried


def _name(service_name: str, class_name: str | None) -> str:
    """Names a queue for all gateways."""
    return f"{service_name}/{class_name or ''}"
