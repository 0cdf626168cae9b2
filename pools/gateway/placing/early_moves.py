"""Moves a stream whose first token is overdue to an instance where it can still come in time.

For services whose policy has `early_moves`. The request moves and is not doubled: a second copy would take the energy
of a second prompt in every case, and the first one is given up by then because it is overdue by its projection.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..fleet.instance import Instance
from ..fleet.view import Service
from .dispatch import Dispatcher
from .hung_engines import awaits_first_byte
from .instance_choice import Router
from .slot import Slot, slots_at

OVERDUE = 2.0  # times the projected TTFT
LEAST_S = 0.25  # beyond it: projections know nothing of shorter delays


class EarlyMoves:
    """Looks after all instances. `moved`: requests that were taken elsewhere."""

    def __init__(self, dispatcher: Dispatcher, router: Router) -> None:
        self._dispatcher = dispatcher
        self._router = router
        self.moved = 0

    def look(self, services: Iterable[Service], now_s: float) -> None:
        """Moves those whose time it is, if it is called several times a second. `now_s` is monotonic."""
        for service in services:
            if service.policy.early_moves:
                for instance in service.ready:
                    if instance.unstarted:
                        self._look_at(service, instance, now_s)

    def _look_at(self, service: Service, instance: Instance, now_s: float) -> None:
        for slot in slots_at(instance):
            if not slot.call.stream or not awaits_first_byte(slot) or not _is_overdue(slot, now_s):
                continue
            limit_s = slot.call.limits(service).ttft_s
            if limit_s is None or slot.owner is None:
                continue
            left_s = slot.call.request.received_s + limit_s - now_s
            if left_s > 0.0 and self._is_in_time(service, slot, left_s, now_s):
                self.moved += slot.owner.move()

    def _is_in_time(self, service: Service, slot: Slot, left_s: float, now_s: float) -> bool:
        """Says whether another instance of its class has room, and is projected to begin it within the time left."""
        request = self._dispatcher.request_of(service, slot.call)
        alone = self._router.alone(service, request)
        if alone is None:
            return False
        unable = service.unable(*slot.call.needs)
        others = [
            i for i in service.in_rotation(slot.instance.rank, now_s) if i is not slot.instance and i.uid not in unable
        ]
        return any(i.unstarted < service.engine_queue and i.candidate().queue_s + alone[0] <= left_s for i in others)


def _is_overdue(slot: Slot, now_s: float) -> bool:
    ttft_s = slot.choice.ttft_s
    return ttft_s is not None and now_s - slot.sent_s > max(OVERDUE * ttft_s, ttft_s + LEAST_S)
