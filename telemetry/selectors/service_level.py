"""SLO attainment and fairness over time, from the request records.

A request belongs to the bucket in which it ended: one that still runs has no record yet, so buckets by arrival would
show the newest ones better than they are (the quick requests end first).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from scheduler.core.fairness import jain
from telemetry.frames import JainFrame, SloFrame, SloSeries, Values, Window

from ._sql import bucket, rows, span

ROLLING_S = 120.0  # at three requests a second the least in which a p99 means anything
QUARTILES = 4  # FREESH C.2: K = 4 groups by output length
LONGEST_S = 900.0  # no request runs longer; it bounds the partitions that a query opens

# Requests by the time they ended, in this window or in the rolling one before its first bucket.
ENDED = f"""
ended AS (
    SELECT r.*, {bucket("r.started_at + coalesce(r.e2e_s, 0) * interval '1 second'")} AS i
    FROM telemetry_requestrecord r
    WHERE r.started_at >= %(start)s - make_interval(secs => %(before_s)s) AND r.started_at < %(end)s
)"""

SLO_SQL = f"""
WITH {ENDED}
SELECT r.service, k.kind, i, count(*) AS judged,
       count(*) FILTER (WHERE r.status = 'ok' AND NOT k.kind = ANY (string_to_array(r.slo_failed, ','))) AS within
FROM ended r CROSS JOIN LATERAL (VALUES ('ttft', r.ttft_s), ('tpot', r.tpot_s), ('e2e', r.e2e_s)) AS k (kind, value)
WHERE r.slo_met IS NOT NULL AND (r.status <> 'ok' OR k.value IS NOT NULL) AND i BETWEEN -%(roll)s + 1 AND %(last)s
GROUP BY 1, 2, 3
"""

OBJECTIVES_SQL = """
SELECT s.name AS service, o.kind, o.objective_s, o.percentile
FROM pools_slo o JOIN pools_service s ON s.id = o.service_id ORDER BY s.name, o.kind DESC
"""

MET_SQL = f"""
WITH {ENDED}
SELECT count(*) AS judged, count(*) FILTER (WHERE slo_met) AS met,
       extract(epoch FROM max(started_at + coalesce(e2e_s, 0) * interval '1 second')) AS last_end_s
FROM ended WHERE slo_met IS NOT NULL AND i BETWEEN 0 AND %(last)s
"""

TENANTS_SQL = f"""
WITH {ENDED}
SELECT tenant_id, i, sum(timely_tokens) AS timely, sum(output_tokens) AS output
FROM ended
WHERE timely_tokens IS NOT NULL AND output_tokens > 0 AND tenant_id IS NOT NULL
  AND i BETWEEN -%(roll)s + 1 AND %(last)s
GROUP BY 1, 2
"""

# Each record stands in the `roll` windows that contain it; within each, a class is cut into quartiles of length.
CLASSES_SQL = f"""
WITH {ENDED},
windowed AS (
    SELECT r.request_class, r.i + ahead AS i, r.timely_tokens, r.output_tokens,
           ntile({QUARTILES}) OVER (PARTITION BY r.request_class, r.i + ahead
                                    ORDER BY r.output_tokens, r.request_id) AS quartile
    FROM ended r CROSS JOIN generate_series(0, %(roll)s - 1) AS ahead
    WHERE r.timely_tokens IS NOT NULL AND r.output_tokens > 0 AND r.request_class IS NOT NULL
      AND r.i + ahead BETWEEN 0 AND %(last)s
)
SELECT request_class, i, quartile, sum(timely_tokens)::float AS timely
FROM windowed GROUP BY 1, 2, 3
"""


def _rolling(window: Window) -> tuple[int, dict[str, object]]:
    """How many buckets a rolling window has, and the queries' parameters."""
    roll = max(1, math.ceil(ROLLING_S / window.bucket_s))
    return roll, {**span(window), "roll": roll, "before_s": roll * window.bucket_s + LONGEST_S}


def _rolled(counts: dict[int, int], roll: int, count: int) -> list[int]:
    """Sums over the last `roll` buckets, ending at each of 0 .. count-1."""
    total = sum(counts.get(i, 0) for i in range(-roll + 1, 0))
    sums = []
    for i in range(count):
        total += counts.get(i, 0) - counts.get(i - roll, 0)
        sums.append(total)
    return sums


def slo(window: Window) -> SloFrame:
    """Attainment of each objective of each service. Failures count as missed. Three queries."""
    roll, params = _rolling(window)
    judged: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    within: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for row in rows(SLO_SQL, params):
        judged[(row.service, row.kind)][row.i] = row.judged
        within[(row.service, row.kind)][row.i] = row.within
    series = []
    for row in rows(OBJECTIVES_SQL, {}):
        n, good = judged[(row.service, row.kind)], within[(row.service, row.kind)]
        rolled_n, rolled_good = _rolled(n, roll, window.count), _rolled(good, roll, window.count)
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
    (total,) = rows(MET_SQL, params)
    last_end_s = float(total.last_end_s) if total.last_end_s is not None else None
    return SloFrame(window, roll * window.bucket_s, tuple(series), total.judged, total.met, last_end_s)


def _tenant_index(shares: Iterable[tuple[int, int]]) -> float | None:
    """Jain's index over x_k = timely tokens / output tokens of each tenant that was served anything."""
    values = [timely / output for timely, output in shares if output > 0]
    return jain(values) if values else None


def fairness(window: Window) -> JainFrame:
    """Jain's index across tenants, and within each class across quartiles of output length. Two queries."""
    roll, params = _rolling(window)
    timely, output = _tenants(params)
    t = [_rolled(timely[tenant], roll, window.count) for tenant in timely]
    o = [_rolled(output[tenant], roll, window.count) for tenant in timely]
    tenants = tuple(_tenant_index((ts[i], os[i]) for ts, os in zip(t, o, strict=True)) for i in range(window.count))
    overall = _overall(timely, output)
    seen = [i for buckets in output.values() for i in buckets if i >= 0]
    last_end_s = window.start_s + (max(seen) + 1) * window.bucket_s if seen else None
    return JainFrame(window, roll * window.bucket_s, tenants, overall, _classes(params, window.count), last_end_s)


def tenant_fairness(window: Window) -> float | None:
    """Jain's index across tenants over all of `window`. One query."""
    _, params = _rolling(window)
    return _overall(*_tenants(params))


Counts = dict[int, dict[int, int]]  # tenant -> bucket -> tokens


def _tenants(params: dict[str, object]) -> tuple[Counts, Counts]:
    timely: Counts = defaultdict(dict)
    output: Counts = defaultdict(dict)
    for row in rows(TENANTS_SQL, params):
        timely[row.tenant_id][row.i] = int(row.timely)
        output[row.tenant_id][row.i] = int(row.output)
    return timely, output


def _overall(timely: Counts, output: Counts) -> float | None:
    return _tenant_index((_total(timely[tenant]), _total(output[tenant])) for tenant in timely)


def _total(counts: dict[int, int]) -> int:
    return sum(count for i, count in counts.items() if i >= 0)


def _classes(params: dict[str, object], count: int) -> dict[str, Values]:
    """As `core.fairness.freesh_timely_jain`, per class and bucket; None for fewer requests than quartiles."""
    totals: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(CLASSES_SQL, params):
        totals[row.request_class][row.i].append(row.timely)

    def index(values: Sequence[float]) -> float | None:
        return jain(values) if len(values) == QUARTILES else None

    return {name: tuple(index(totals[name].get(i, ())) for i in range(count)) for name in sorted(totals)}
