"""Beat's schedule by a clock that nobody sets: periods go on when the wall clock is set forward or back.

Celery's own schedules compare wall-clock times: a clock that was set back by two hours keeps them waiting for two
hours. Nothing is kept between two runs of beat, since a monotonic clock begins anew when the machine does.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import redis
from celery.beat import Scheduler
from celery.schedules import schedule
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from pools import wire

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


class MonotonicScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends what is due by schedules that `every` makes. Its heartbeat says that the broker took a task from it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._beat_mono_s = float("-inf")
        super().__init__(*arguments, **options)

    def setup_schedule(self) -> None:
        super().setup_schedule()
        for entry in self.schedule.values():
            period_s = entry.schedule.run_every.total_seconds()
            entry.last_run_at = entry.default_now() - timedelta(seconds=max(0.0, period_s - FIRST_WITHIN_S))

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:
        """Sends a task. Raises SchedulingError where the broker does not take it."""
        result = super().apply_async(entry, producer=producer, advance=advance, **options)
        if time.monotonic() - self._beat_mono_s >= HEARTBEAT_S:
            self._beat_mono_s = time.monotonic()
            message = wire.Heartbeat("beat", time.time(), HEARTBEAT_S)
            try:
                _client(settings.REDIS_URL).set(wire.alive_key("beat"), wire.encode(message), ex=wire.HEARTBEAT_TTL_S)
            except redis.RedisError as error:
                log.warning("beat's heartbeat was not stored: %s", error)
        return result


@lru_cache(maxsize=1)
def _client(url: str) -> redis.Redis:
    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry)
