"""SLO attainment and fairness over time: from the sums of request records where a window is made of whole ones.

A request belongs to the bucket in which it ended: one that still runs has no record yet, so buckets by arrival would
show the newest ones better than they are (the quick requests end first).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from core.fairness import Table, jain_by_row, jain_of_tenants_by_row
from telemetry.models.rollups import REQUEST_STEPS_S, STEPS_S
from telemetry.selectors.frames import JainFrame, SloFrame, SloSeries, TimeRange, Values
from telemetry.storage.sql.length_rollups import ANSWERED, LENGTH
from telemetry.storage.sql.request_rollups import ENDED as ENDED_AT
from telemetry.storage.sql.request_rollups import ENDED_UTC, JUDGED

from ._sql import at, bucket, day_of, packed, rows, span, unpacked

ROLLING_S = 120.0  # at three requests a second the least in which a p99 means anything
QUARTILES = 4  # FREESH C.2: K = 4 groups by output length
LONGEST_S = 900.0  # no request runs longer; it bounds the partitions that a query opens

# Requests by the time they ended, in this window or in the rolling one before its first bucket; by an index over it.
ENDED = f"""
ended AS (
    SELECT r.*, {bucket(ENDED_AT)} AS i
    FROM telemetry_requestrecord r
    WHERE r.started_at >= %(day)s AND r.started_at < %(until)s
      AND {ENDED_UTC} >= %(since)s AT TIME ZONE 'UTC' AND {ENDED_UTC} < %(until)s AT TIME ZONE 'UTC'
)"""

# As telemetry.storage.sql.request_rollups sums them up.
SLO_SQL = f"""
WITH {ENDED}
SELECT r.service, k.kind, i, count(*) AS judged,
       count(*) FILTER (WHERE CASE k.kind WHEN '' THEN r.slo_met
           ELSE r.status = 'ok' AND NOT k.kind = ANY (string_to_array(r.slo_failed, ',')) END) AS within,
       extract(epoch FROM max({ENDED_AT}))::float8 AS until_s
FROM ended r
CROSS JOIN LATERAL (VALUES ('', 0), ('ttft', r.ttft_s), ('tpot', r.tpot_s), ('e2e', r.e2e_s)) AS k (kind, value)
WHERE {JUDGED}
GROUP BY 1, 2, 3
"""
SLO_ROLLUP_SQL = f"""
SELECT service, kind, {bucket("start_at")} AS i, sum(judged)::int AS judged, sum(within)::int AS within,
       extract(epoch FROM max(until))::float8 AS until_s
FROM telemetry_slorollup
WHERE step_s = %(step_s)s AND start_at >= %(since)s AND start_at < %(until)s GROUP BY 1, 2, 3
HAVING sum(judged) > 0
"""

OBJECTIVES_SQL = """
SELECT s.name AS service, o.kind, o.objective_s, o.percentile
FROM pools_slo o JOIN pools_service s ON s.id = o.service_id ORDER BY s.name, o.kind DESC
"""

RECORDS_OF_TENANTS_SQL = f"""
WITH {ENDED}
SELECT tenant_id, i, timely_tokens AS timely, output_tokens AS output
FROM ended WHERE timely_tokens IS NOT NULL AND output_tokens > 0 AND tenant_id IS NOT NULL
"""
SUMS_OF_TENANTS_SQL = f"""
SELECT tenant_id, {bucket("start_at")} AS i, timely_tokens AS timely, output_tokens AS output
FROM telemetry_tenantrollup
WHERE step_s = %(step_s)s AND start_at >= %(since)s AND start_at < %(until)s AND output_tokens > 0
"""
# `_buckets` adds up those of a bucket, in a tenth of the database's time.
TENANTS_SQL = f"""
SELECT {packed("tenant_id")} AS tenant, {packed("i")} AS i, {packed("timely")} AS timely, {packed("output")} AS output
FROM ({{tenants}}) tenants
"""

# By length of the answer, so that each rolling window's quartiles of length can be cut from counts.
LENGTHS_SQL = f"""
WITH {ENDED}
SELECT service, request_class, i, {LENGTH} AS length, count(*) AS requests, sum(timely_tokens) AS timely
FROM ended WHERE {ANSWERED} GROUP BY 1, 2, 3, 4
"""
LENGTHS_ROLLUP_SQL = f"""
SELECT service, request_class, {bucket("start_at")} AS i, length, requests, timely_tokens AS timely
FROM telemetry_lengthrollup
WHERE step_s = %(step_s)s AND start_at >= %(since)s AND start_at < %(until)s AND requests > 0
"""
CLASSES_SQL = f"""
SELECT service, request_class, {packed("i")} AS i, {packed("length")} AS length, {packed("requests")} AS requests,
       {packed("timely")} AS timely
FROM ({{lengths}}) lengths GROUP BY 1, 2 ORDER BY 1, 2
"""


def _rolling(time_range: TimeRange) -> tuple[int, dict[str, object]]:
    """How many buckets a rolling window has, and the queries' parameters."""
    roll = max(1, math.ceil(ROLLING_S / time_range.bucket_s))
    since_s = time_range.start_s - (roll - 1) * time_range.bucket_s
    return roll, {
        **span(time_range),
        "roll": roll,
        "since": at(since_s),
        "day": day_of(since_s - LONGEST_S),
        "until": at(time_range.start_s + time_range.count * time_range.bucket_s),
        "step_s": _step_s(time_range),
    }


def _step_s(time_range: TimeRange) -> int:
    """Returns the longest step of sums of which `time_range` has whole ones; 0: none, so the records are read."""
    fits = (
        step_s
        for step_s in reversed(REQUEST_STEPS_S)
        if not (time_range.bucket_s % step_s or time_range.start_s % step_s)
    )
    return next(fits, 0)


def _rolled(counts: dict[int, int], roll: int, count: int) -> list[int]:
    """Sums over the last `roll` buckets, ending at each of 0 .. count-1."""
    total = sum(counts.get(i, 0) for i in range(-roll + 1, 0))
    sums = []
    for i in range(count):
        total += counts.get(i, 0) - counts.get(i - roll, 0)
        sums.append(total)
    return sums


def slo(time_range: TimeRange) -> SloFrame:
    """Returns the attainment of each objective of each service. Failures count as missed. Two queries."""
    roll, params = _rolling(time_range)
    judged: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    within: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    total = met = 0
    last_end_s: float | None = None
    for row in rows(SLO_ROLLUP_SQL if params["step_s"] else SLO_SQL, params):
        if row.kind:
            judged[(row.service, row.kind)][row.i] = row.judged
            within[(row.service, row.kind)][row.i] = row.within
        elif row.i >= 0:
            total, met, last_end_s = total + row.judged, met + row.within, max(last_end_s or 0.0, row.until_s)
    series = []
    for row in rows(OBJECTIVES_SQL, {}):
        n, good = judged[(row.service, row.kind)], within[(row.service, row.kind)]
        rolled_n, rolled_good = _rolled(n, roll, time_range.count), _rolled(good, roll, time_range.count)
        series.append(
            SloSeries(
                service=row.service,
                kind=row.kind,
                objective_s=row.objective_s,
                target=row.percentile / 100.0,
                attained=tuple(g / c if c else None for g, c in zip(rolled_good, rolled_n, strict=True)),
                judged=tuple(rolled_n),
                total_judged=sum(c for i, c in n.items() if i >= 0),
                total_within=sum(c for i, c in good.items() if i >= 0),
            )
        )
    return SloFrame(time_range, roll * time_range.bucket_s, tuple(series), total, met, last_end_s)


def fairness(time_range: TimeRange) -> JainFrame:
    """Returns the Jain index of tenants, and that of lengths of each class of a service. Two queries."""
    roll, params = _rolling(time_range)
    timely, output = _tenants(params, roll, time_range.count)
    seen = np.flatnonzero(output[roll:].any(axis=1))
    return JainFrame(
        time_range,
        roll * time_range.bucket_s,
        jain_of_tenants_by_row(_over(timely, roll), _over(output, roll)),
        _overall(timely, output, roll),
        _classes(params, roll, time_range.count),
        time_range.start_s + float(seen[-1] + 1) * time_range.bucket_s if len(seen) else None,
    )


def tenant_fairness(time_range: TimeRange) -> float | None:
    """Returns the Jain index of tenants over all of `time_range`. One query."""
    roll, params = _rolling(time_range)
    return _overall(*_tenants(params, roll, time_range.count), roll)


def _tenants(params: dict[str, object], roll: int, count: int) -> tuple[Table, Table]:
    """Returns the timely tokens and all tokens of tenants, as `_buckets`."""
    tenants = SUMS_OF_TENANTS_SQL if params["step_s"] else RECORDS_OF_TENANTS_SQL
    (row,) = rows(TENANTS_SQL.format(tenants=tenants), params)
    timely, output = _buckets(row.tenant, row.i, (row.timely, row.output), roll, count)
    return timely, output


def _overall(timely: Table, output: Table, roll: int) -> float | None:
    return jain_of_tenants_by_row(*(table[roll:].sum(axis=0, keepdims=True) for table in (timely, output)))[0]


def _classes(params: dict[str, object], roll: int, count: int) -> dict[tuple[str, str], Values]:
    """Returns the Jain index of lengths (FREESH eq. 9, over quartiles) per service and class, and bucket.

    It is None for fewer requests than quartiles. Where a quartile ends among answers of about one length, they count
    by their mean.
    """
    lengths = LENGTHS_ROLLUP_SQL if params["step_s"] in STEPS_S else LENGTHS_SQL
    return {
        (row.service, row.request_class): _timely_jain(
            *(_over(table, roll) for table in _buckets(row.length, row.i, (row.requests, row.timely), roll, count))
        )
        for row in rows(CLASSES_SQL.format(lengths=lengths), params)
    }


def _buckets(
    keys: bytes | None, i: bytes | None, columns: Iterable[bytes | None], roll: int, count: int
) -> list[Table]:
    """Sums each of `columns` by bucket, a row for each of -roll .. count-1, and by key, a column for each, the least
    first. What is given is packed."""
    found, column = np.unique(unpacked(keys), return_inverse=True)
    cell = (unpacked(i) + roll) * len(found) + column
    shape = roll + count, len(found)
    sums = (np.bincount(cell, unpacked(values), minlength=shape[0] * shape[1]) for values in columns)
    return [np.asarray(each, dtype=np.float64).reshape(shape) for each in sums]


def _over(buckets: Table, roll: int) -> Table:
    """Sums over rolling windows: a row for each of 0 .. count-1."""
    sums = buckets.cumsum(axis=0)
    return np.asarray(sums[roll:] - sums[: len(sums) - roll])


def _timely_jain(requests: Table, timely: Table) -> Values:
    """Returns Jain's index for each row, from counts of answers and their timely tokens by length."""
    until, tokens = (np.pad(table.cumsum(axis=1), ((0, 0), (1, 0))) for table in (requests, timely))
    least, more = np.divmod(until[:, -1], QUARTILES)
    ends = [k * least + np.minimum(k, more) for k in range(QUARTILES + 1)]  # the first ones have one more
    delivered = np.diff(np.column_stack([_interpolated(end, until, tokens) for end in ends]))
    enough = (least >= 1.0).tolist()
    return tuple(jain if many else None for jain, many in zip(jain_by_row(delivered), enough, strict=True))


def _interpolated(wanted: NDArray[np.float64], x: Table, y: Table) -> NDArray[np.float64]:
    """Returns each row's y where its x is `wanted` (rows,), between its points `x`, which rise from 0, and `y`."""
    row = np.arange(len(x))
    left = np.minimum((x <= wanted[:, np.newaxis]).sum(axis=1), x.shape[1] - 1) - 1
    step = x[row, left + 1] - x[row, left]
    share = np.divide(wanted - x[row, left], step, out=np.zeros_like(step), where=step > 0.0)
    return np.asarray(y[row, left] + share * (y[row, left + 1] - y[row, left]))
