"""Does once what is due for all events of a turn of the event loop, or of a tick of its clock.

Every write wakes whoever reads at the other end, and a sleeper costs four times the write itself to wake. What a turn
has to send, sent together, finds the readers awake from the first write on. With few requests a turn has one event, and
nothing waits for anything.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 0.01


class EndOfTurn(Generic[T]):
    """Collects items during a turn of the running event loop, and gives them all to `take` at its end."""

    __slots__ = ("_items", "_take")

    def __init__(self, take: Callable[[list[T]], None]) -> None:
        self._take = take
        self._items: list[T] = []

    def add(self, item: T) -> None:
        if not self._items:
            asyncio.get_running_loop().call_soon(self._end)
        self._items.append(item)

    def _end(self) -> None:
        items, self._items = self._items, []
        self._take(items)


class Ticks:
    """Calls back after a delay, up to `TICK_S` late: one timer for all that is due in the same tick.

    A timer of its own for each request would cost more than choosing its instance does. What is cancelled is let go of
    at once: a request that is kept until its tick takes memory, and the processor's caches with it.
    """

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[int, dict[Callable[[], None], None]] = {}

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> int:
        """Returns the tick, for `cancel`."""
        tick = math.ceil((time.monotonic() + delay_s) / TICK_S)
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
            asyncio.get_running_loop().call_later(tick * TICK_S - time.monotonic(), self._tick, tick)
        due[callback] = None
        return tick

    def cancel(self, tick: int, callback: Callable[[], None]) -> None:
        """Does no harm when it has been called already."""
        due = self._due.get(tick)
        if due is not None:
            due.pop(callback, None)

    def _tick(self, tick: int) -> None:
        for callback in self._due.pop(tick):
            try:
                callback()
            except Exception:
                log.exception("a call after a delay failed")
