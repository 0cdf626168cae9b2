"""Keeps one partition per UTC day for each partitioned table, ahead of time and on demand.

The tables' owner does it, by functions of the database (`telemetry.storage.sql.partition_keeping`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from django.db import connection

from pools import database_locks
from pools.database_locks import Lock

SAMPLES = ("telemetry_gpusample", "telemetry_instancesample", "telemetry_hostsample")
MINUTES = ("telemetry_gpuminute", "telemetry_engineminute")
TABLES = (*SAMPLES, *MINUTES, "telemetry_requestrecord", "telemetry_requestshare")


def ensure(days: Iterable[date], tables: Iterable[str] = TABLES) -> None:
    """Creates the partitions of these UTC days unless they exist; safe when several processes do so at once."""
    with connection.cursor() as cursor:
        for day in sorted(set(days)):
            for table in tables:
                name = f"{table}_{day:%Y%m%d}"
                cursor.execute("SELECT to_regclass(%s)", [name])
                if cursor.fetchone()[0] is not None:
                    continue
                # One creator at a time: CREATE TABLE IF NOT EXISTS alone can collide in the catalogue.
                with database_locks.held(Lock.PARTITIONS, math.inf):
                    cursor.execute("SELECT telemetry_make_partition(%s, %s)", [table, day])


def keep(retention_days: int, now: datetime | None = None) -> list[str]:
    """Makes today's to the day after tomorrow's partitions and drops samples past retention. Returns what it dropped.

    Request records and shares are kept: reports need them.
    """
    today = (now or datetime.now(UTC)).date()
    ensure(today + timedelta(days=offset) for offset in range(-1, 3))
    oldest = today - timedelta(days=retention_days)
    return drop_before(SAMPLES, oldest)


def drop_before(tables: Iterable[str], oldest: date) -> list[str]:
    """Drops the days before `oldest`. Returns the partitions that are gone, table by table, oldest first."""
    dropped = []
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(
                "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
                "WHERE i.inhparent = %s::regclass ORDER BY c.relname",
                [table],
            )
            for (name,) in cursor.fetchall():
                day = datetime.strptime(name.rsplit("_", 1)[1], "%Y%m%d").date()
                if day < oldest:
                    cursor.execute("SELECT telemetry_drop_partition(%s, %s)", [table, day])
                    dropped.append(name)
    return dropped
