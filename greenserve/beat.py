"""Beat's schedule: periods by a clock that nobody sets, and one sender of several control planes.

Celery's own schedules compare wall-clock times: a clock that was set back by two hours keeps them waiting for two
hours. Nothing is kept between two runs of beat, since a monotonic clock begins anew when the machine does.

Where several control planes share a database, the beat that leads sends (`greenserve.leadership`); the others stand by.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

import redis
from celery.beat import Scheduler
from celery.schedules import schedule
from django.conf import settings
from django.db import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from greenserve.leadership import LOOK_S, Leadership
from pools import redis_address, wire

log = logging.getLogger(__name__)

FIRST_WITHIN_S = 60.0  # of beat's start, whatever the period: hourly tasks run also where it restarts each half hour
HEARTBEAT_S = 5.0
TIMEOUT_S = 2.0


def monotonic_now() -> datetime:
    """Returns the seconds since the machine's start, as the moment that Celery's schedules calculate with."""
    return datetime.fromtimestamp(time.monotonic(), UTC)


def every(period_s: float) -> schedule:
    """Returns a schedule that is due each `period_s` seconds of monotonic time."""
    return schedule(period_s, nowfun=monotonic_now)


class Leading(Protocol):
    """Says whether this control plane sends. `fault`: why that cannot be found out; empty: it can."""

    fault: str

    def leads(self) -> bool: ...


def leadership() -> Leadership:
    """Returns who says whether this control plane leads, by a database connection of its own."""
    return Leadership(connection.copy(), settings.GREENSERVE_PLANE or "the control plane without a name")


class MonotonicScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends what is due by schedules that `every` makes, while its control plane leads.

    Its heartbeat says that the broker took a task from it, or that it stands by.
    """

    def __init__(self, *arguments: Any, leading: Leading | None = None, **options: Any) -> None:
        self._beat_mono_s = float("-inf")
        self._leading = leading or leadership()
        super().__init__(*arguments, **options)

    def tick(self, *arguments: Any, **options: Any) -> Any:
        """Sends the next task that is due; returns the seconds until another look."""
        if self._leading.leads():
            return super().tick(*arguments, **options)
        fault = self._leading.fault
        self._beat(f"sends nothing: PostgreSQL cannot be asked who leads ({fault})" if fault else "stands by")
        return LOOK_S

    def setup_schedule(self) -> None:
        super().setup_schedule()
        for entry in self.schedule.values():
            period_s = entry.schedule.run_every.total_seconds()
            entry.last_run_at = entry.default_now() - timedelta(seconds=max(0.0, period_s - FIRST_WITHIN_S))

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:
        """Sends a task. Raises SchedulingError where the broker does not take it."""
        result = super().apply_async(entry, producer=producer, advance=advance, **options)
        self._beat("leads")
        return result

    def _beat(self, detail: str) -> None:
        if time.monotonic() - self._beat_mono_s < HEARTBEAT_S:
            return
        self._beat_mono_s = time.monotonic()
        name = wire.process_name("beat", settings.GREENSERVE_PLANE)
        message = wire.encode(wire.Heartbeat(name, time.time(), HEARTBEAT_S, detail))
        try:
            _client(settings.REDIS_URL).set(wire.alive_key(name), message, ex=wire.HEARTBEAT_TTL_S)
        except redis.RedisError as error:
            log.warning("beat's heartbeat was not stored: %s", error)


@lru_cache(maxsize=1)
def _client(url: str) -> redis.Redis:
    retry = Retry(NoBackoff(), 0)
    return redis_address.connect(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry)
