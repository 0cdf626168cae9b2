"""Rolls samples up to minutes, those of GPUs to hours and days too: each made anew, whole, when a sample came for it.

Whoever writes samples appends the minutes they fall in to a list, in the same transaction. A roll-up takes what is on
the list and makes these minutes again from the samples, then their hours from the minutes and their days from the
hours. So a late batch updates the right minutes, the same batch twice changes nothing, and a roll-up that dies is done
over. Gaps are counted, never filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection, transaction
from numpy.typing import NDArray

from core.units import US_PER_S
from pools import database_locks
from pools.database_locks import Lock
from telemetry.models.rollups import DAY_S, HOUR_S, MINUTE_S, RollupDue
from telemetry.storage import copying, time_partitions
from telemetry.storage.sql import engine_minutes

MAX_GAP_S = 5.0  # readings further apart than this are a gap, as in the ledger
SETTLE_S = 2.0
MINUTES_AT_ONCE = 240
_VALUES = (
    *("samples", "heard_s", "gaps", "power_w", "power_max_w", "sm_clock_mhz", "utilisation"),
    *("memory_max_bytes", "temperature_max_c"),
)
_UPSERT = (
    f"(gpu_id, start_at, {', '.join(_VALUES)}) {{query}} ON CONFLICT (gpu_id, start_at) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _VALUES)
)
TAKE_SQL = f"""
DELETE FROM {RollupDue._meta.db_table} WHERE id IN (
    SELECT id FROM {RollupDue._meta.db_table} WHERE start_at < %s ORDER BY start_at LIMIT 20000
) RETURNING start_at
"""

# Of each reading the part of the minute that it vouches for: back to the reading before and on to the next one, unless
# that is further than a gap. Both neighbours are looked for beyond the minute's borders.
MINUTES_SQL = """
WITH readings AS (
    SELECT *, lag(at) OVER w AS before, lead(at) OVER w AS after FROM telemetry_gpusample
    WHERE at >= %(start)s - %(gap)s AND at < %(end)s + %(gap)s AND energy_j IS NOT NULL
    WINDOW w AS (PARTITION BY gpu_id ORDER BY at)
), cut AS (
    SELECT *, date_trunc('minute', at) AS minute,
           CASE WHEN at - before <= %(gap)s THEN greatest(before, date_trunc('minute', at)) ELSE at END AS since,
           CASE WHEN after - at <= %(gap)s AND after >= date_trunc('minute', at) + interval '1 minute'
                THEN date_trunc('minute', at) + interval '1 minute' ELSE at END AS until
    FROM readings
)
SELECT gpu_id, minute, count(*), sum(extract(epoch FROM until - since))::float8,
       count(*) FILTER (WHERE after IS NULL OR after - at > %(gap)s), avg(power_w), max(power_w), avg(sm_clock_mhz),
       avg(utilisation), max(memory_used_bytes), max(temperature_c)
FROM cut WHERE minute >= %(start)s AND minute < %(end)s AND minute = ANY(%(minutes)s) GROUP BY 1, 2
"""

COARSER_SQL = """
SELECT gpu_id, date_trunc('{unit}', start_at, 'UTC') AS start_at, sum(samples), sum(heard_s), sum(gaps),
       sum(power_w * samples) / sum(samples) FILTER (WHERE power_w IS NOT NULL), max(power_max_w),
       sum(sm_clock_mhz * samples) / sum(samples) FILTER (WHERE sm_clock_mhz IS NOT NULL),
       sum(utilisation * samples) / sum(samples) FILTER (WHERE utilisation IS NOT NULL),
       max(memory_max_bytes), max(temperature_max_c)
FROM {source} WHERE start_at >= %(start)s AND start_at < %(end)s GROUP BY 1, 2
"""


def touched_minutes(at_us: NDArray[np.int64]) -> list[int]:
    """The minutes (Unix seconds) that samples of these moments change: their own, and one whose gap they may close."""
    gap_us = round(MAX_GAP_S * US_PER_S)
    minute_us = MINUTE_S * US_PER_S
    found = {
        minute for shift_us in (-gap_us, 0, gap_us) for minute in copying.distinct((at_us + shift_us) // minute_us)
    }
    return [minute * MINUTE_S for minute in sorted(found)]


def roll_up(now: datetime) -> int:
    """Makes the minutes that are due and over. Returns how many minutes were made; call again while there are some.

    One at a time: a second one finds nothing to do until the first has committed.
    """
    over = now - timedelta(seconds=MINUTE_S + MAX_GAP_S + SETTLE_S)
    with transaction.atomic(), connection.cursor() as cursor:
        if not database_locks.try_to_take(Lock.ROLLUPS):
            return 0
        cursor.execute(TAKE_SQL, [over])
        minutes = sorted({start for (start,) in cursor.fetchall()})
        if not minutes:
            return 0
        if len(minutes) > MINUTES_AT_ONCE:
            later, minutes = minutes[MINUTES_AT_ONCE:], minutes[:MINUTES_AT_ONCE]
            RollupDue.objects.bulk_create([RollupDue(start_at=start) for start in later])
        time_partitions.ensure({start.date() for start in minutes}, time_partitions.MINUTES)
        for run in _runs(minutes):
            params: dict[str, Any] = {
                "start": run[0],
                "end": run[-1] + timedelta(seconds=MINUTE_S),
                "gap": timedelta(seconds=MAX_GAP_S),
                "minutes": run,
            }
            cursor.execute(f"INSERT INTO telemetry_gpuminute {_UPSERT.format(query=MINUTES_SQL)}", params)
            cursor.execute(engine_minutes.FILL, params)
        for unit, step_s, source, target in (
            ("hour", HOUR_S, "telemetry_gpuminute", "telemetry_gpuhour"),
            ("day", DAY_S, "telemetry_gpuhour", "telemetry_gpuday"),
        ):
            query = _UPSERT.format(query=COARSER_SQL.format(unit=unit, source=source))
            for start in sorted({_floor(minute, step_s) for minute in minutes}):
                end = start + timedelta(seconds=step_s)
                cursor.execute(f"INSERT INTO {target} {query}", {"start": start, "end": end})
    return len(minutes)


def drop_old(minute_days: int, now: datetime) -> list[str]:
    """Drops the minutes' partitions past retention; hours and days are kept. Returns what it dropped."""
    return time_partitions.drop_before(time_partitions.MINUTES, (now - timedelta(days=minute_days)).date())


def _runs(minutes: Iterable[datetime]) -> list[list[datetime]]:
    """Minutes that follow each other, read together."""
    runs: list[list[datetime]] = []
    for minute in minutes:
        if runs and minute - runs[-1][-1] <= timedelta(seconds=MINUTE_S):
            runs[-1].append(minute)
        else:
            runs.append([minute])
    return runs


def _floor(at: datetime, step_s: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // step_s * step_s, UTC)
