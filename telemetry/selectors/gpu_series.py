"""Single GPUs over time, and how well their meters were heard, from the samples' roll-ups."""

from __future__ import annotations

import math
from typing import Any

from telemetry.models.rollups import DAY_S, HOUR_S, MINUTE_S
from telemetry.selectors.frames import GpuFrame, MeterGaps, TimeRange, Values

from ._sql import at, bucket, rows, span

TABLES = ((DAY_S, "telemetry_gpuday"), (HOUR_S, "telemetry_gpuhour"), (MINUTE_S, "telemetry_gpuminute"))
SERIES_SQL = f"""
SELECT {bucket("start_at")} AS i, sum(power_w * samples) / sum(samples) FILTER (WHERE power_w IS NOT NULL) AS power_w,
       max(power_max_w) AS power_max_w,
       sum(sm_clock_mhz * samples) / sum(samples) FILTER (WHERE sm_clock_mhz IS NOT NULL) AS sm_clock_mhz,
       max(temperature_max_c) AS temperature_max_c, sum(heard_s) AS heard_s, sum(gaps)::int AS gaps
FROM {{table}} WHERE gpu_id = %(gpu)s AND start_at >= %(start)s AND start_at < %(end)s GROUP BY 1
"""
# Whole days from the days' sums, what is before and after them from the hours' and the minutes'.
GAPS_SQL = """
WITH heard AS (
    SELECT gpu_id, sum(heard_s) AS heard_s, sum(gaps)::int AS gaps FROM (
        SELECT gpu_id, heard_s, gaps FROM telemetry_gpuday WHERE start_at >= %(day0)s AND start_at < %(day1)s
        UNION ALL
        SELECT gpu_id, heard_s, gaps FROM telemetry_gpuhour
        WHERE start_at >= %(hour0)s AND start_at < %(day0)s OR start_at >= %(day1)s AND start_at < %(hour1)s
        UNION ALL
        SELECT gpu_id, heard_s, gaps FROM telemetry_gpuminute
        WHERE start_at >= %(start)s AND start_at < %(hour0)s OR start_at >= %(hour1)s AND start_at < %(end)s
    ) parts GROUP BY gpu_id
)
SELECT g.uuid, n.name AS node, coalesce(nullif(s.label, ''), s.name) AS site_label,
       greatest(0, extract(epoch FROM %(end)s - greatest(m.opened_at, %(start)s)))::float8 AS span_s,
       coalesce(heard.heard_s, 0) AS heard_s, coalesce(heard.gaps, 0) AS gaps
FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id JOIN pools_node n ON n.id = g.node_id
JOIN pools_cluster c ON c.id = n.cluster_id JOIN pools_site s ON s.id = c.site_id
LEFT JOIN heard ON heard.gpu_id = m.gpu_id
ORDER BY n.name, g.index
"""


def gpu_series(gpu_id: int, gpu: str, time_range: TimeRange) -> GpuFrame:
    """A GPU's power, clock and temperature, from the coarsest roll-up whose steps fit the buckets. One query.

    Raises ValueError for buckets that are not of whole minutes: there the samples themselves are to be read.
    """
    borders_s = (time_range.bucket_s, time_range.start_s)
    table = next((name for step_s, name in TABLES if not any(at_s % step_s for at_s in borders_s)), None)
    if table is None:
        raise ValueError(f"buckets of {time_range.bucket_s:g} s from {time_range.start_s:g} s are not of whole minutes")
    found = {row.i: row for row in rows(SERIES_SQL.format(table=table), {**span(time_range), "gpu": gpu_id})}

    def values(name: str) -> Values:
        return tuple(getattr(found[i], name) if i in found else None for i in range(time_range.count))

    def missing(i: int) -> float:
        length_s = min(time_range.end_s, time_range.starts_s[i] + time_range.bucket_s) - time_range.starts_s[i]
        return max(0.0, length_s - (found[i].heard_s if i in found else 0.0))

    return GpuFrame(
        time_range=time_range,
        gpu=gpu,
        power_w=values("power_w"),
        power_max_w=values("power_max_w"),
        sm_clock_mhz=values("sm_clock_mhz"),
        temperature_max_c=values("temperature_max_c"),
        missing_s=tuple(missing(i) for i in range(time_range.count)),
        gaps=tuple(found[i].gaps if i in found else 0 for i in range(time_range.count)),
    )


def meter_gaps(start_s: float, end_s: float) -> tuple[MeterGaps, ...]:
    """How long each GPU's meter was heard in the whole minutes of [start_s, end_s), since it was first. One query."""
    start_s, end_s = math.ceil(start_s / MINUTE_S) * MINUTE_S, end_s // MINUTE_S * MINUTE_S
    hour0, hour1 = _inside(start_s, end_s, HOUR_S)
    day0, day1 = _inside(hour0, hour1, DAY_S)
    borders = {"start": start_s, "hour0": hour0, "day0": day0, "day1": day1, "hour1": hour1, "end": end_s}
    found: list[Any] = rows(GAPS_SQL, {name: at(border_s) for name, border_s in borders.items()})
    return tuple(
        MeterGaps(row.uuid, row.node, row.site_label, row.heard_s, max(0.0, row.span_s - row.heard_s), row.gaps)
        for row in found
    )


def _inside(start_s: float, end_s: float, step_s: float) -> tuple[float, float]:
    """The whole steps within [start_s, end_s), empty at its start when there is none."""
    low, high = math.ceil(start_s / step_s) * step_s, end_s // step_s * step_s
    return (low, high) if low < high else (start_s, start_s)
