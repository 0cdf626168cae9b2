"""Counts Celery tasks by outcome, and the seconds they took, in one Redis hash: the web process shows them.

Workers are several processes each, which come and go; sums in Redis outlive them, as counters must. A task never waits
for its count for longer than Redis' time-out, and never fails for it.
"""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

import redis
from celery.signals import task_postrun, task_prerun
from redis.backoff import NoBackoff
from redis.retry import Retry

from pools import redis_address, wire

log = logging.getLogger(__name__)

TIMEOUT_S = 0.5
SECONDS = "seconds"
_began: dict[str, float] = {}  # task id -> monotonic time; a pool process runs one at a time


@lru_cache(maxsize=1)
def _client(url: str) -> redis.Redis:
    retry = Retry(NoBackoff(), 0)
    return redis_address.connect(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry)


@task_prerun.connect
def _starts(task_id: str, **_: Any) -> None:
    _began[task_id] = time.monotonic()


@task_postrun.connect
def _ends(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    from django.conf import settings

    took_s = time.monotonic() - _began.pop(task_id, time.monotonic())
    try:
        count(_client(settings.REDIS_URL), task.name, (state or "unknown").lower(), took_s)
    except redis.RedisError as error:
        log.debug("the run of %s was not counted: %s", task.name, error)


def count(client: redis.Redis, task: str, outcome: str, took_s: float) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.hincrby(wire.TASKS_KEY, f"{task}|{outcome}", 1)
        pipe.hincrbyfloat(wire.TASKS_KEY, f"{task}|{SECONDS}", took_s)
        pipe.execute()
