"""Reads meter and engine while something runs, and answers what their counters stood at at any moment of it."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from core.ports import EngineMetrics, EngineReading, GpuMeter, RetryableError

from .calls import Calls

PERIOD_S = 0.2
_TRIES = 3

T = TypeVar("T")


@dataclass(slots=True)
class CounterSeries:
    """A counter over time, both rising; linear between what was read."""

    at_s: list[float] = field(default_factory=list)  # monotonic
    value: list[float] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        self.at_s.append(at_s)
        self.value.append(value)

    def value_at(self, at_s: float) -> float | None:
        """Returns the value at a moment; None: before the first reading or after the last."""
        return _between(self.at_s, self.value, at_s)

    def time_of(self, value: float) -> float | None:
        """Returns when it first stood there."""
        return _between(self.value, self.at_s, value)


def _between(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    if not xs or not xs[0] <= x <= xs[-1]:
        return None
    n = bisect_left(xs, x)
    if xs[n] == x:
        return ys[n]
    share = (x - xs[n - 1]) / (xs[n] - xs[n - 1])
    return ys[n - 1] + share * (ys[n] - ys[n - 1])


@dataclass(slots=True)
class Log:
    """The readings of a span. `waiting` and `running` are pairs of (time, requests)."""

    energy_j: CounterSeries = field(default_factory=CounterSeries)
    generated_tokens: CounterSeries = field(default_factory=CounterSeries)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)


class Watch:
    """Reads the GPUs `uuids` of a meter (none: all) and the engine at `url`, each `PERIOD_S`."""

    def __init__(
        self, calls: Calls, meter: GpuMeter | None, uuids: Sequence[str], metrics: EngineMetrics, url: str
    ) -> None:
        self._calls = calls
        self._meter = meter
        self._uuids = frozenset(uuids)
        self._metrics = metrics
        self._url = url

    @asynccontextmanager
    async def log(self) -> AsyncIterator[Log]:
        """Reads for as long as the body runs, before and after it at once. Raises what the ports raise."""
        log = Log()
        await self._read(log)
        task = asyncio.create_task(self._go_on(log))
        try:
            yield log
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._read(log)

    async def _go_on(self, log: Log) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self._read(log)
            except RetryableError:
                continue  # a busy engine answers late: the next reading stands for this one

    async def _read(self, log: Log) -> None:
        if self._meter is not None:
            at_s, readings = await self._timed(self._meter.read)
            mine = [one.energy_j for one in readings if not self._uuids or one.uuid in self._uuids]
            known = [joules for joules in mine if joules is not None]
            if mine and len(known) == len(mine):
                log.energy_j.add(at_s, sum(known))
        at_s, reading = await self._timed(self._scrape)
        if reading.generation_tokens_total is not None:
            log.generated_tokens.add(at_s, reading.generation_tokens_total)
        if reading.waiting is not None:
            log.waiting.append((at_s, reading.waiting))
        if reading.running is not None:
            log.running.append((at_s, reading.running))

    def _scrape(self) -> EngineReading:
        return self._metrics.scrape("profiled", self._url)

    async def _timed(self, call: Callable[[], T]) -> tuple[float, T]:
        """Returns a call's answer and the middle of the time that it took.

        Tries again, since a busy machine answers late.
        """

        def timed() -> tuple[float, T]:
            began_s = time.monotonic()
            found = call()
            return (began_s + time.monotonic()) / 2.0, found

        for _ in range(_TRIES - 1):
            try:
                return await self._calls(timed)
            except RetryableError:
                await asyncio.sleep(PERIOD_S)
        return await self._calls(timed)
