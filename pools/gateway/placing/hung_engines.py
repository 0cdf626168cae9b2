"""Finds engines that hang, and takes requests without a first byte away from engines that are out of rotation.

An engine hangs when a request there is overdue by far, and nothing at all has come from it for as long: not a token of
any request that this gateway has there. A long prompt takes its time: how long is what the engine model projects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..fleet.instance import NO_NODE, Instance
from .dispatch import Dispatcher
from .slot import Slot, slots_at

LEAST_S = 3.0  # of silence: engines compile, collect garbage and load adapters for a second or two
OVERDUE = 3.0  # times what was projected
UNKNOWN_TTFT_S = 10.0  # where nothing is projected and no objective is set
SUSPECT_S = 1.5  # of silence: then its `/health` is asked
# A gateway that did not run for so long hears late what came meanwhile: that is no engine's silence.
OWN_PAUSE_S = 1.5


@dataclass(slots=True)
class Progress:
    """Holds what had come from an instance, and since when nothing has. `doubted_s`: when one beside it was ejected."""

    seen: tuple[int, int]  # whole answers, and events of the streams that are under way
    since_s: float
    doubted_s: float = -math.inf

    def is_suspect(self, instance: Instance, slots: Sequence[Slot], now_s: float) -> bool:
        """Says whether it gives no sign of life, neither an answer nor its `/health`, and should have by now."""
        alive_s = max(self.since_s, instance.answered_s)
        if alive_s < self.doubted_s:
            return True
        return bool(slots) and now_s - max(alive_s, slots[0].sent_s) >= SUSPECT_S


class HungEngines:
    """Looks after all instances. `found`: how often one hung; `moved`: requests that were taken elsewhere."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._progress: dict[str, Progress] = {}  # by instance
        self._ejections: dict[str, int] = {}  # at the last look
        self._looked_s = -math.inf
        self.found = 0
        self.moved = 0

    def look(self, instances: Collection[Instance], now_s: float) -> None:
        """Finds engines that hang, if it is called about twice a second. `now_s` is monotonic.

        Give it all that have requests, also those that drain, or that their agents cannot ask any more.
        """
        if now_s - self._looked_s > OWN_PAUSE_S:
            self._progress.clear()
        self._looked_s = now_s
        progress, ejections = self._progress, self._ejections
        self._progress, self._ejections = {}, {}
        in_doubt = set[str]()  # nodes
        for instance in instances:
            self._look_at(instance, progress.get(instance.uid), now_s)
            out = instance.health.ejections
            before = ejections.get(instance.uid, 0)
            if out > before:
                self._take_back(instance)
                if not before and instance.node != NO_NODE:
                    in_doubt.add(instance.node)
            if out:
                self._ejections[instance.uid] = out
        if in_doubt:  # what has stopped one engine may have stopped those beside it, that nobody waits for
            for instance in instances:
                if instance.node in in_doubt and not instance.health.ejections:
                    mate = self._progress[instance.uid]
                    mate.doubted_s = now_s
                    instance.suspect = mate.since_s < now_s

    def _look_at(self, instance: Instance, progress: Progress | None, now_s: float) -> None:
        slots = slots_at(instance)
        seen = instance.health.successes, sum(slot.meter.events for slot in slots if slot.meter is not None)
        if progress is None or progress.seen != seen:
            progress = Progress(seen, now_s)
        self._progress[instance.uid] = progress
        instance.suspect = progress.is_suspect(instance, slots, now_s)
        unstarted = [slot for slot in slots if awaits_first_byte(slot)]
        if not unstarted:
            return
        patience_s = max(LEAST_S, OVERDUE * max(_first_byte_s(slot) for slot in unstarted))
        if now_s - progress.since_s >= patience_s and any(_is_overdue(slot, patience_s, now_s) for slot in unstarted):
            self.found += 1
            progress.since_s = now_s  # what stays there is given as long again
            instance.health.failed(now_s, hangs=True)

    def _take_back(self, instance: Instance) -> None:
        for slot in slots_at(instance):
            if slot.owner is not None and awaits_first_byte(slot) and slot.owner.move():
                self.moved += 1


def awaits_first_byte(slot: Slot) -> bool:
    """Says whether nothing has come of it. An answer that is no stream comes whole: until then nothing has."""
    return slot.owner is not None and not (slot.call.stream and slot.begun)


def _first_byte_s(slot: Slot) -> float:
    """Returns how long its prompt should take there, with those before it."""
    if slot.choice.ttft_s is not None:
        return slot.choice.ttft_s
    limit_s = slot.call.limits(slot.call.service).ttft_s
    return UNKNOWN_TTFT_S if limit_s is None else limit_s


def _is_overdue(slot: Slot, patience_s: float, now_s: float) -> bool:
    """A stream is overdue by its first token. An answer that is no stream may take as long as it may be."""
    call, tpot_s = slot.call, slot.choice.tpot_s
    if not call.stream:
        if call.max_tokens is None or tpot_s is None:
            return False
        patience_s += OVERDUE * call.max_tokens * tpot_s
    return now_s - slot.sent_s >= patience_s
