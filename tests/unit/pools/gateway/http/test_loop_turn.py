"""What is put off to the end of a turn of the loop or to a tick: none lost, none early, one failure harms no other."""

from __future__ import annotations

import asyncio
import time
import weakref

import pytest

from pools.gateway.http.loop_turn import EndOfTurn, Ticks
from tests.unit.pools.gateway.conftest import until

EARLY_S = 0.002  # uvloop counts whole milliseconds, from when its turn began


async def test_items_of_a_turn_are_given_together_when_it_ends() -> None:
    taken: list[list[int]] = []
    batch = EndOfTurn[int](taken.append)
    batch.add(1)
    batch.add(2)
    assert not taken
    await asyncio.sleep(0)
    batch.add(3)
    await asyncio.sleep(0)
    assert taken == [[1, 2], [3]]


async def test_an_item_goes_with_the_next_turn_when_it_is_added_at_the_end_of_one() -> None:
    taken: list[list[int]] = []

    def take(items: list[int]) -> None:
        taken.append(items)
        if items == [1]:
            batch.add(2)

    batch = EndOfTurn[int](take)
    batch.add(1)
    await asyncio.sleep(0)
    assert taken == [[1]]
    await asyncio.sleep(0)
    assert taken == [[1], [2]]


async def test_calls_come_in_time_and_by_one_timer_when_they_are_due_in_the_same_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[tuple[str, float]] = []
    ticks = Ticks()
    began_s = time.monotonic()

    def fail() -> None:
        raise ValueError("on purpose")

    ticks.call_later(0.03, lambda: called.append(("late", time.monotonic() - began_s)))
    ticks.call_later(0.0, fail)
    ticks.call_later(0.0, lambda: called.append(("soon", time.monotonic() - began_s)))
    await until(lambda: len(called) == 2)
    assert [name for name, _ in called] == ["soon", "late"]
    assert called[1][1] >= 0.03 - EARLY_S
    assert "a call after a delay failed" in caplog.text


async def test_what_is_cancelled_is_neither_called_nor_kept() -> None:
    called: list[str] = []

    class Caller:
        def call(self) -> None:
            called.append("cancelled")

    ticks, caller = Ticks(), Caller()
    tick = ticks.call_later(0.0, caller.call)
    ticks.call_later(0.0, lambda: called.append("kept"))
    gone = weakref.ref(caller)
    ticks.cancel(tick, caller.call)
    del caller
    assert gone() is None
    await until(lambda: bool(called))
    ticks.cancel(tick, lambda: None)
    assert called == ["kept"]
