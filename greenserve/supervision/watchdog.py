"""Notices processes that run and get nowhere: beat, the epochs' worker, the ingester.

Each leaves a sign in Redis when it has done something. Only whether the sign changes counts, by the watchdog's own
monotonic clock: a wall clock that was set makes nobody look stuck, or well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from greenserve.process import StartError
from greenserve.servers import server_checks
from pools import wire

# Longer than a broker's time-outs; of the worker, than a task may take (CELERY_TASK_TIME_LIMIT); of the ingester, than
# its longest commit.
LIMITS_S: Mapping[str, float] = {"beat": 60.0, "epochs": 180.0, "ingester": 120.0}
STARTING = 3.0  # times its limit until a process that was started gives its first sign: machines are busy then
LONGEST_LIMIT_S = 1_800.0
CHECK_TIMEOUT_S = 2

Signs = Mapping[str, bytes | None]  # by process; None: there is none now


@dataclass(frozen=True, slots=True)
class Stall:
    """A process that has made no progress for `for_s`. `excuse`: why a restart would not help; empty: it may."""

    process: str
    for_s: float
    excuse: str = ""


@dataclass(slots=True)
class _Watched:
    sign: bytes | None
    since_mono_s: float  # what is counted from
    progress_mono_s: float = float("-inf")  # when its sign changed
    tries: int = 0  # restarts since then


@dataclass(slots=True)
class Watchdog:
    """`read` returns the signs, None where Redis does not answer; `excuse`, why nobody can make progress just now."""

    read: Callable[[], Signs | None]
    excuse: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    limits_s: Mapping[str, float] = field(default_factory=lambda: LIMITS_S)
    _watched: dict[str, _Watched] = field(default_factory=dict)

    def look(self, started: Mapping[str, float]) -> list[Stall]:
        """Returns the processes that are stuck; those without an excuse are to be restarted.

        A process has its limit from its last sign on, or from when Redis answers again; three times as long from its
        start to its first sign, and twice as long after each restart that did not help.

        Args:
            started: The processes that run, with their monotonic times of start.
        """
        now_s, signs = self.clock(), self.read()
        stalls = []
        for name in self.limits_s.keys() & started.keys():
            sign = None if signs is None else signs.get(name)
            watched = self._watched.setdefault(name, _Watched(sign, now_s))
            if sign is not None and sign != watched.sign:
                self._watched[name] = _Watched(sign, now_s, now_s)
                continue
            if signs is None:
                watched.since_mono_s = now_s
                continue
            starting = watched.progress_mono_s < started[name]
            limit_s = self.limits_s[name] * (STARTING if starting else 1.0) * 2.0**watched.tries
            for_s = now_s - max(watched.since_mono_s, started[name])
            if for_s < min(LONGEST_LIMIT_S, limit_s):
                continue
            excuse = self.excuse()
            watched.since_mono_s = now_s
            if not excuse:
                watched.tries += 1
            stalls.append(Stall(name, for_s, excuse))
        return stalls


def signs_from(client: redis.Redis, plane: str = "") -> Callable[[], Signs | None]:
    """Returns a reader of a control plane's signs in Redis; it takes no longer than the client's time-out."""

    def read() -> Signs | None:
        try:
            with client.pipeline(transaction=False) as pipe:
                pipe.get(wire.alive_key(wire.process_name("beat", plane)))
                pipe.get(wire.runs_key(plane))
                pipe.get(wire.alive_key(wire.process_name("ingester", plane)))
                beat, runs, ingester = pipe.execute()
        except redis.RedisError:
            client.close()
            return None
        found: dict[str, Any] = {"beat": beat, "epochs": runs, "ingester": ingester}
        return found

    return read


def database_excuse(url: str) -> Callable[[], str]:
    """Returns a check whether PostgreSQL answers: while it does not, nothing that waits for it is stuck by itself."""

    def excuse() -> str:
        try:
            server_checks.role_of(url, CHECK_TIMEOUT_S)
        except StartError:
            return "PostgreSQL does not answer"
        return ""

    return excuse
