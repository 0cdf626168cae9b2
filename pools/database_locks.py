"""PostgreSQL's advisory locks: the one list of their names, and the ways to take one.

A lock says who of all processes of all control planes does something that one alone may do. It ends with its
transaction or with its connection, so that a process that dies keeps nobody out. PostgreSQL knows a lock by a number,
which `hashtext` makes of its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from django.db import connection


class Lock(StrEnum):
    """Names what one process at a time may do."""

    LEADER = "greenserve.leader"  # sends periodic tasks: greenserve.leadership, on a connection of its own
    MIGRATION = "greenserve.migration"  # brings the database up to date
    SETTLEMENT = "telemetry.settlement"
    PARTITIONS = "telemetry.partitions"
    ROLLUPS = "telemetry.rollups"
    CALIBRATION = "telemetry.calibration"
    ALERTS = "telemetry.alerts"
    NOTICES = "telemetry.notices"
    FEEDS = "telemetry.feeds"
    WEATHER = "telemetry.weather"
    REGISTERED_ENGINES = "telemetry.registered_engines"
    PLACEMENT = "scheduler.placement"
    SERVERS = "scheduler.servers"
    BATCHES = "scheduler.batches"


RETRY_S = 0.2


def take(lock: Lock) -> None:
    """Waits for the lock, and has it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [lock])


def try_to_take(lock: Lock) -> bool:
    """Takes the lock until the transaction ends, unless another has it; returns whether it did."""
    return _asked("SELECT pg_try_advisory_xact_lock(hashtext(%s))", lock)


@contextmanager
def held(lock: Lock, patience_s: float = 0.0) -> Iterator[bool]:
    """Holds the lock for a block, if it can be had within `patience_s`; yields whether it is.

    It is this connection's, and goes with it.
    """
    until_mono_s = time.monotonic() + patience_s
    while not (mine := keep(lock)) and time.monotonic() < until_mono_s:
        time.sleep(RETRY_S)
    try:
        yield mine
    finally:
        if mine and connection.connection is not None and not connection.connection.closed:
            _asked("SELECT pg_advisory_unlock(hashtext(%s))", lock)


def keep(lock: Lock) -> bool:
    """Takes the lock for as long as the connection lives, unless another has it; returns whether it is held.

    A connection may ask again and again for what it holds.
    """
    return _asked("SELECT pg_try_advisory_lock(hashtext(%s))", lock)


def _asked(question: str, lock: Lock) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(question, [lock])
        found: tuple[bool] = cursor.fetchone()
        return found[0]
