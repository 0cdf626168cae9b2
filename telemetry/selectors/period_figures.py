"""The figures of a past period, of the names that a simulated run's figures have: what both have stands side by side.

Energy and GPU time are the ledger's, cut at the period's ends in proportion to time. Requests are those that came in
the period; percentiles are of those that ended well.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from core.units import j_to_wh

from ._sql import rows

EMPTY = "empty"  # GPUs that are powered and have no engine; the ledger's `idle` of no instance
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

_SHARE = """(extract(epoch FROM least(end_at, %(end)s) - greatest(start_at, %(start)s))
             / extract(epoch FROM end_at - start_at))::float8"""
ENERGY_SQL = f"""
SELECT CASE WHEN kind = 'idle' AND instance_id IS NULL THEN '{EMPTY}' ELSE kind END AS kind,
       sum(energy_uj * {_SHARE}) / 1e6 AS energy_j, sum(gpu_us * {_SHARE}) / 1e6 AS gpu_s,
       sum(carbon_gco2e * {_SHARE}) AS carbon_g,
       coalesce(sum(energy_uj * {_SHARE}) FILTER (WHERE carbon_gco2e IS NULL), 0) / 1e6 AS unknown_j
FROM telemetry_energyentry
WHERE start_at < %(end)s AND end_at > %(start)s AND (%(sites)s::bigint[] IS NULL OR site_id = ANY(%(sites)s))
GROUP BY 1
"""
CLOCK_SQL = """
SELECT avg(s.sm_clock_mhz) AS mhz FROM telemetry_gpusample s
JOIN pools_gpu g ON g.id = s.gpu_id JOIN pools_node n ON n.id = g.node_id JOIN pools_cluster c ON c.id = n.cluster_id
WHERE s.at >= %(start)s AND s.at < %(end)s AND s.instance_id IS NOT NULL
  AND (%(sites)s::bigint[] IS NULL OR c.site_id = ANY(%(sites)s))
"""
REQUESTS_SQL = f"""
SELECT count(*) AS requests, count(*) FILTER (WHERE status = 'ok') AS finished,
       count(*) FILTER (WHERE status = 'rejected') AS rejected,
       avg((slo_met)::int) FILTER (WHERE slo_met IS NOT NULL)::float8 AS slo_attainment,
       {
    ", ".join(
        f"percentile_cont(ARRAY[{', '.join(map(str, QUANTILES.values()))}]) WITHIN GROUP (ORDER BY {name}) "
        f"FILTER (WHERE status = 'ok') AS {name}, avg({name}) FILTER (WHERE status = 'ok') AS mean_{name}"
        for name in ("ttft_s", "tpot_s", "e2e_s")
    )
}
FROM telemetry_requestrecord r LEFT JOIN pools_pool p ON p.id = r.pool_id
WHERE started_at >= %(start)s AND started_at < %(end)s AND (%(service)s = '' OR service = %(service)s)
  AND (%(sites)s::bigint[] IS NULL OR p.site_id = ANY(%(sites)s))
"""


def period_figures(
    start: datetime, end: datetime, service: str = "", site_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """Returns the figures of [start, end), JSON-able; None where nothing is known. Three queries.

    Args:
        service: Whose requests; empty: all. Energy is the fleet's at the sites.
        site_ids: None: all sites.
    """
    params = {
        "start": start,
        "end": end,
        "service": service,
        "sites": None if site_ids is None else list(site_ids),
    }
    energy = {row.kind: row for row in rows(ENERGY_SQL, params)}
    (clock,) = rows(CLOCK_SQL, params)
    (seen,) = rows(REQUESTS_SQL, params)
    occupied_s = sum(row.gpu_s for kind, row in energy.items() if kind != EMPTY)
    carbon = [row.carbon_g for row in energy.values()]
    return {
        "from": start.isoformat(),
        "to": end.isoformat(),
        "requests": seen.requests,
        "finished": seen.finished,
        "rejected": seen.rejected,
        "energy_wh": j_to_wh(sum(row.energy_j for row in energy.values())) if energy else None,
        "energy_wh_by": {kind: j_to_wh(row.energy_j) for kind, row in sorted(energy.items())},
        "carbon_g": None if None in carbon or any(row.unknown_j for row in energy.values()) else sum(carbon),
        "carbon_missing_wh": j_to_wh(sum(row.unknown_j for row in energy.values())),
        "gpu_hours": occupied_s / 3600.0 if energy else None,
        "empty_gpu_hours": energy[EMPTY].gpu_s / 3600.0 if EMPTY in energy else 0.0,
        "clock_mhz": clock.mhz,
        "slo_attainment": seen.slo_attainment,
        **{
            name: _latency(getattr(seen, name), getattr(seen, f"mean_{name}")) for name in ("ttft_s", "tpot_s", "e2e_s")
        },
    }


def _latency(quantiles: Sequence[float] | None, mean: float | None) -> dict[str, float | None]:
    values = quantiles or (None,) * len(QUANTILES)
    return {**dict(zip(QUANTILES, values, strict=True)), "mean": mean}
