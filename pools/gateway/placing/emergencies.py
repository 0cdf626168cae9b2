"""DynamoLLM's emergencies (IV-D) at the gateway: requests that wait and would be late for their first token.

For services whose policy has `emergencies`. What waits for an instance are the requests that were sent there and have
not begun, and its share of those in its class's queue. The ladder is the core's; here its commands are carried out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from core.controllers.request.emergency import EmergencyConfig, EmergencyObservation, EmergencyState, Mate, Waiting
from core.controllers.request.emergency import step as ladder
from core.engine.step_tables import StepTable, round_up, step_table
from core.types import Effects, ReorderQueue, ResteerRequests, SetSmClock, SquashRequests

from ..fleet.instance import Instance
from ..fleet.view import Service
from ..requests.call import Call
from .class_queue import Waiter
from .clock_requests import ClockRequests
from .dispatch import Dispatcher
from .slot import Recallable, slots_at


class Emergencies:
    """Looks after all instances once a second."""

    def __init__(self, dispatcher: Dispatcher, clocks: ClockRequests, config: EmergencyConfig | None = None) -> None:
        self._dispatcher = dispatcher
        self._clocks = clocks
        self._config = config or EmergencyConfig()
        self._states: dict[str, EmergencyState] = {}
        self.counts: dict[tuple[str, str], int] = defaultdict(int)  # (service, reason) of what was done

    def look(self, services: Iterable[Service], now_s: float) -> None:
        """Runs one period. `now_s` is monotonic."""
        seen: dict[str, EmergencyState] = {}
        for service in services:
            if service.policy.emergencies and service.limits.ttft_s is not None:
                by_class: dict[str, list[Instance]] = defaultdict(list)
                for instance in service.ready:
                    by_class[instance.request_class].append(instance)
                for class_name, instances in by_class.items():
                    seen |= self._look_at(service, instances, self._dispatcher.waiters(service.name, class_name), now_s)
        for uid in set(self._states) - set(seen):
            self._clocks.drop(uid)
        self._states = seen

    def _look_at(
        self, service: Service, instances: Sequence[Instance], queue: Sequence[Waiter], now_s: float
    ) -> dict[str, EmergencyState]:
        found = {}
        for n, instance in enumerate(instances):
            share = queue[n :: len(instances)]
            obs = _observation(service, instance, instances, share, now_s)
            if obs is None:
                continue
            before = self._states.get(instance.uid)
            state, effects = ladder(before, obs, self._config)
            found[instance.uid] = state
            self._carry_out(service, instance, share, effects)
            if before is not None and before.ramped and not state.ramped:
                self._clocks.drop(instance.uid)
            elif state.ramped:
                why = effects.rationale
                self._clocks.ask(instance, obs.top_mhz, str(why.reason), why.summary, now_s)
        return found

    def _carry_out(self, service: Service, instance: Instance, queue: Sequence[Waiter], effects: Effects) -> None:
        waiting = {waiter.call.request_id: waiter for waiter in queue}
        sent: Mapping[str, Recallable] = {
            slot.call.request_id: slot.owner for slot in slots_at(instance) if not slot.begun and slot.owner is not None
        }
        for command in effects.commands:
            if isinstance(command, ReorderQueue):
                self._dispatcher.reorder([waiting[name] for name in command.requests if name in waiting])
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


def _observation(
    service: Service, instance: Instance, mates: Sequence[Instance], waiters: Sequence[Waiter], now_s: float
) -> EmergencyObservation | None:
    """None: the engine model does not know the instance."""
    state = instance.state
    table = instance.candidate().table
    top = step_table(state.model, state.gpu_type, state.tp, state.engine, state.max_mhz)
    if table is None or top is None:
        return None
    limit_s = service.limits.ttft_s or 0.0
    calls = [slot.call for slot in slots_at(instance) if not slot.begun] + [waiter.call for waiter in waiters]
    queue = tuple(
        Waiting(
            call.request_id,
            call.request.received_s,
            call.request.received_s + (limit_s if call.limits is None else call.limits.ttft_s or limit_s),
            _prefill_s(table, call),
            _prefill_s(top, call),
        )
        for call in calls
    )
    others = tuple(Mate(i.uid, now_s + i.candidate().queue_s) for i in mates if i is not instance)
    mhz = state.sm_clock_mhz or state.max_mhz
    return EmergencyObservation(now_s, instance.uid, queue, now_s + table.decode(1)[0], mhz, state.max_mhz, others)


def _prefill_s(table: StepTable, call: Call) -> float:
    return table.prefill(round_up(call.prompt_tokens or 1), 0)[0]
