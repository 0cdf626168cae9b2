"""Keeps those that wait for an instance, in a queue for each class of a service."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from core.algorithms.queue.fair_queue import FairQueue, Waiting

from ..errors import squashed
from ..requests.call import Call
from .slot import Slot

RATE_WEIGHT = 0.1  # of the newest gap between departures in a queue's mean


@dataclass(slots=True, eq=False)
class Waiter:
    """A call that waits. `place` is done with a Slot, or with an ApiError."""

    call: Call
    row: Waiting
    place: asyncio.Future[Slot]

    def give_back(self) -> None:
        """Nobody will use the place, should it have been given in this very moment."""
        if self.place.done() and not self.place.cancelled() and self.place.exception() is None:
            self.place.result().end()

    def squash(self, retry_after_s: float) -> None:
        """Sends it back to its client, to be tried again."""
        if not self.place.done():
            self.place.set_exception(squashed(retry_after_s))


@dataclass(slots=True)
class ClassQueue:
    """The queue of one class of a service, and how fast it moves."""

    waiters: FairQueue[Waiter]
    weights: dict[str, float] | None  # of tenants, as the queue has them
    gap_s: float | None = None  # mean time between departures
    left_at_s: float = field(default_factory=time.monotonic)

    def departed(self, now_s: float) -> None:
        gap_s = now_s - self.left_at_s
        self.gap_s = gap_s if self.gap_s is None else self.gap_s + RATE_WEIGHT * (gap_s - self.gap_s)
        self.left_at_s = now_s

    def drained_in_s(self) -> int:
        """Returns in how many seconds (1 to 60) those that wait now will have gone and a client may try again."""
        return max(1, min(60, math.ceil(len(self.waiters) * (self.gap_s or 1.0))))
