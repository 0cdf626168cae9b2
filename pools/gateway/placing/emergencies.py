"""DynamoLLM's emergencies (IV-D) at the gateway: requests that wait and would be late for their first token.

For services whose policy has `emergencies`. What waits for an instance are the requests that were sent there and have
not begun, and its share of those in the queues of the classes that are served there. The ladder is the core's; here
its commands are carried out.

An engine orders what waits inside it by numbers (`engine_priority`) that no message can change: whoever is to go before
or behind others is taken back, which ends it there, and is sent again with another number. That is done only where the
order changes by it, to as few as possible, to those that the engine has not begun to compute by its last report, and to
each a few times at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from core.algorithms.queue.renumbering import Place, renumbered
from core.controllers.request.emergency import EmergencyConfig, EmergencyObservation, EmergencyState, Mate, Waiting
from core.controllers.request.emergency import step as ladder
from core.controllers.request.routing import class_order
from core.engine.step_tables import StepTable, round_up, step_table
from core.observations.request.request_configs import emergency_config
from core.types import Effects, ReorderQueue, ResteerRequests, SetSmClock, SquashRequests

from ..fleet.instance import Instance
from ..fleet.view import Service
from ..requests.call import Call
from .class_queue import Waiter
from .clock_requests import ClockRequests
from .dispatch import Dispatcher
from .slot import Recallable, Slot, slots_at

MOST_TIMES = 2  # that a request is sent again: each time it is read and tokenized anew
_EARLY_S = 0.05  # a look may come by so much too early


class Emergencies:
    """Looks after all instances: those of a service once in the period of its tuning, if `look` is called so often."""

    def __init__(self, dispatcher: Dispatcher, clocks: ClockRequests) -> None:
        self._dispatcher = dispatcher
        self._clocks = clocks
        self._states: dict[str, EmergencyState] = {}
        self._looked_s: dict[str, float] = {}  # by service
        self.counts: dict[tuple[str, str], int] = defaultdict(int)  # (service, reason) of what was done
        self.sent_again = 0  # requests, for another place in their engine's queue

    def look(self, services: Iterable[Service], now_s: float) -> None:
        """Runs one period of each service whose turn it is. `now_s` is monotonic."""
        seen: dict[str, EmergencyState] = {}
        for service in services:
            policy = service.policy
            if not policy.emergencies:
                continue
            config = emergency_config(policy.emergencies_up_to, policy.tuning.ladder)
            if now_s < self._looked_s.get(service.name, -inf) + config.period_s - _EARLY_S:
                seen |= {i.uid: self._states[i.uid] for i in service.ready if i.uid in self._states}
                continue
            self._looked_s[service.name] = now_s
            by_rank: dict[int, list[Instance]] = defaultdict(list)
            for instance in service.ready:
                by_rank[instance.rank].append(instance)
            queues = self._queues(service, by_rank)
            for rank, instances in by_rank.items():
                seen |= self._look_at(service, instances, queues[rank], config, now_s)
        for uid in set(self._states) - set(seen):
            self._clocks.drop(uid)
        self._states = seen

    def _queues(self, service: Service, ranks: Collection[int]) -> dict[int, list[Waiter]]:
        """Returns those that wait, by the class whose instances are to serve them, of `ranks`: where a class has none,
        those of the next one that has, so that nobody waits unseen."""
        found: dict[int, list[Waiter]] = defaultdict(list)
        for waiter in self._dispatcher.waiters(service.name) if ranks else ():
            own = self._dispatcher.request_of(service, waiter.call).class_rank
            found[own if own in ranks else min(ranks, key=lambda rank: class_order(rank, own))].append(waiter)
        return found

    def _look_at(
        self,
        service: Service,
        instances: Sequence[Instance],
        queue: Sequence[Waiter],
        config: EmergencyConfig,
        now_s: float,
    ) -> dict[str, EmergencyState]:
        found = {}
        for n, instance in enumerate(instances):
            share = queue[n :: len(instances)]
            obs = _observation(service, instance, instances, share, now_s)
            if obs is None:
                continue
            before = self._states.get(instance.uid)
            state, effects = ladder(before, obs, config)
            found[instance.uid] = state
            self._carry_out(service, instance, share, effects, config.most_moves)
            if before is not None and before.ramped and not state.ramped:
                self._clocks.drop(instance.uid)
            elif state.ramped:
                why = effects.rationale
                self._clocks.ask(instance, obs.top_mhz, str(why.reason), why.summary, now_s)
        return found

    def _carry_out(
        self, service: Service, instance: Instance, queue: Sequence[Waiter], effects: Effects, most_moves: int
    ) -> None:
        waiting = {waiter.call.request_id: waiter for waiter in queue}
        sent: Mapping[str, Recallable] = {
            slot.call.request_id: slot.owner for slot in slots_at(instance) if not slot.begun and slot.owner is not None
        }
        for command in effects.commands:
            if isinstance(command, ReorderQueue):
                self._dispatcher.reorder([waiting[name] for name in command.requests if name in waiting])
                self.sent_again += _reorder_inside(service, instance, command.requests, most_moves)
            elif isinstance(command, ResteerRequests):
                for name, _ in command.moves:  # the router, which sees more, says where to
                    if name in sent:
                        sent[name].call_back()
            elif isinstance(command, SquashRequests):
                for name in command.requests:
                    if name in sent:
                        sent[name].call_back(command.retry_after_s)
                    elif name in waiting:
                        waiting[name].squash(command.retry_after_s)
        if any(not isinstance(command, SetSmClock) for command in effects.commands):
            self.counts[service.name, str(effects.rationale.reason)] += 1


def _unbegun(service: Service, instance: Instance) -> list[Slot]:
    """Returns what was sent there and has not begun, in the order in which the engine serves it."""
    found = [slot for slot in slots_at(instance) if not slot.begun]
    return sorted(found, key=_place) if service.policy.engine_priority else found


def _place(slot: Slot) -> Place:
    return slot.call.engine_priority or 0, slot.sent_s


def _reorder_inside(service: Service, instance: Instance, wanted: Sequence[str], most: int) -> int:
    """Sends requests again that wait inside the engine, the first of `wanted` first; returns how many."""
    inside = instance.state.waiting or 0
    if not inside or not service.policy.engine_priority:
        return 0
    waiting = {slot.call.request_id: slot for slot in _unbegun(service, instance)[-inside:]}  # the others are computed
    slots = [waiting[name] for name in wanted if name in waiting]
    sent = 0
    for n, number in renumbered([_place(slot) for slot in slots]).items():
        owner = slots[n].owner
        if owner is not None and sent < most and _may_be_sent_again(slots[n]):
            sent += owner.send_again(number)
    return sent


def _may_be_sent_again(slot: Slot) -> bool:
    call = slot.call
    by_number = call.engine_work is None or not slot.instance.state.laxity  # else it goes by its laxity
    return by_number and slot.part is None and call.sent_again < MOST_TIMES


def _observation(
    service: Service, instance: Instance, mates: Sequence[Instance], waiters: Sequence[Waiter], now_s: float
) -> EmergencyObservation | None:
    """Makes what the ladder looks at: calls without a TTFT limit are never late, and are left out.

    None: the engine model does not know the instance.
    """
    state = instance.state
    table = instance.candidate().table
    top = step_table(state.engine_model_name, state.gpu_type, state.tp, state.engine, state.max_mhz)
    if table is None or top is None:
        return None
    calls = [slot.call for slot in _unbegun(service, instance)] + [waiter.call for waiter in waiters]
    queue = tuple(
        Waiting(
            call.request_id,
            call.request.received_s,
            call.request.received_s + limit_s,
            _prefill_s(table, call),
            _prefill_s(top, call),
        )
        for call in calls
        if (limit_s := call.limits(service).ttft_s) is not None
    )
    others = tuple(Mate(i.uid, now_s + i.candidate().queue_s) for i in mates if i is not instance)
    mhz = state.sm_clock_mhz or state.max_mhz
    return EmergencyObservation(now_s, instance.uid, queue, now_s + table.decode(1)[0], mhz, state.max_mhz, others)


def _prefill_s(table: StepTable, call: Call) -> float:
    return table.prefill(round_up(call.prompt_tokens or 1), 0)[0]
