"""Single sites, pools, nodes and feeds over time, for their pages. What comes back is counted in buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from telemetry.selectors.frames import IntensityStep, TimeRange, Values
from telemetry.storage.sql.request_rollups import ENDED, ENDED_UTC

from . import intensity
from ._sql import METERED, at, bucket, day_of, rows, span
from .energy import METERED_SHARE
from .newest_samples import PowerNow, newest, power_now
from .service_level import LONGEST_S
from .time_steps import rollup_step_s

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Live:
    """A site by the newest samples (at most 15 s old); None: nobody reports."""

    power_w: float | None = None
    gpus: int = 0
    reporting: int = 0
    intensity_g_per_kwh: float | None = None


def sites_live(now_s: float, power: PowerNow | None = None) -> dict[int, Live]:
    """Returns power and intensity of each site now, by its key; a site of which neither is known has no entry.

    Two queries, or one where the power is given.
    """
    power = power or power_now(now_s)
    g_per_kwh = intensity.now(now_s)
    found = {
        pk: Live(drawn.power_w, drawn.gpus, drawn.reporting, g_per_kwh.get(pk)) for pk, drawn in power.sites.items()
    }
    return {pk: found.get(pk, Live(intensity_g_per_kwh=g_per_kwh.get(pk))) for pk in {*found, *g_per_kwh}}


CURVES_SQL = f"""
WITH newest AS (
    SELECT DISTINCT ON (p.feed_id, p.forecast, p.start_at) f.site_id, p.forecast, p.start_at, p.end_at,
           p.value_g_per_kwh, p.issued_at
    FROM telemetry_carbonpoint p JOIN telemetry_carbonfeed f ON f.id = p.feed_id AND f.signal = 'average'
    WHERE p.start_at >= %(start)s AND p.start_at < %(end)s
      AND (NOT p.forecast AND p.start_at < %(now)s OR p.forecast AND p.end_at > %(now)s)
      AND (%(site)s::bigint IS NULL OR f.site_id = %(site)s)
    ORDER BY p.feed_id, p.forecast, p.start_at, (p.model = f.forecast_model) DESC, p.issued_at DESC
)
SELECT site_id, forecast, {bucket("start_at")} AS i, avg(value_g_per_kwh) AS g_per_kwh,
       extract(epoch FROM max(issued_at)) AS issued_s
FROM newest GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """A site's intensity before now and its forecast after it, a value or None a bucket."""

    actual: Values
    forecast: Values
    issued_s: float | None  # of the newest forecast


def intensity_curves(time_range: TimeRange, now_s: float, site_id: int | None = None) -> dict[int, Curve]:
    """Returns each site's intensity over `time_range`, which may end later than now. One query."""
    values: dict[tuple[int, bool], dict[int, Any]] = defaultdict(dict)
    for row in rows(CURVES_SQL, {**span(time_range), "now": at(now_s), "site": site_id}):
        values[(row.site_id, row.forecast)][row.i] = row
    found = {}
    for pk in {pk for pk, _ in values}:
        actual, forecast = values[(pk, False)], values[(pk, True)]
        issued = [float(row.issued_s) for row in forecast.values()]
        found[pk] = Curve(
            tuple(actual[i].g_per_kwh if i in actual else None for i in range(time_range.count)),
            tuple(forecast[i].g_per_kwh if i in forecast else None for i in range(time_range.count)),
            max(issued, default=None),
        )
    return found


POOL_ENERGY_SQL = """
SELECT kind, floor(extract(epoch FROM start_at - %(start)s) / %(bucket_s)s)::int AS i,
       sum(energy_uj)::float8 / 1e6 AS energy_j
FROM {source} pool_id = ANY(%(pools)s) AND start_at >= %(start)s AND start_at < %(end)s GROUP BY 1, 2
"""
POOL_ROLLUP_SQL = POOL_ENERGY_SQL.format(source="telemetry_energyrollup WHERE step_s = %(step_s)s AND")
POOL_ENTRIES_SQL = POOL_ENERGY_SQL.format(source="telemetry_energyentry WHERE")

POOL_REQUESTS_SQL = f"""
SELECT {bucket(ENDED)} AS i, count(*) AS requests,
       (sum(output_tokens) FILTER (WHERE {METERED}))::float8 AS tokens,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY ttft_s) AS ttft_s,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY tpot_s) AS tpot_s
FROM telemetry_requestrecord
WHERE pool_id = %(pool)s AND status = 'ok' AND started_at >= %(day)s AND started_at < %(end)s
  AND {ENDED_UTC} >= %(start)s AT TIME ZONE 'UTC' AND {ENDED_UTC} < %(end)s AT TIME ZONE 'UTC'
GROUP BY 1
"""

POOL_ENGINES_SQL = f"""
SELECT i, avg(clock) AS sm_clock_mhz, avg(running) AS running, avg(waiting) AS waiting, max(kv) AS kv_usage
FROM (
    SELECT {bucket("s.at")} AS i, date_trunc('second', s.at) AS moment, avg(s.sm_clock_mhz) AS clock,
           sum(s.running) AS running, sum(s.waiting) AS waiting, max(s.kv_usage) AS kv
    FROM telemetry_instancesample s
    WHERE s.instance_id = ANY(%(instances)s) AND s.at >= %(start)s AND s.at < %(end)s GROUP BY 1, 2
) moments GROUP BY 1
"""

# Each instance's means over its minutes, added up: of one that was heard for a part of a minute, that part.
POOL_ENGINE_MINUTES_SQL = f"""
SELECT i, avg(clock) AS sm_clock_mhz, avg(running) AS running, avg(waiting) AS waiting, max(kv) AS kv_usage
FROM (
    SELECT {bucket("start_at")} AS i, avg(sm_clock_mhz) AS clock, sum(running * samples) / max(samples) AS running,
           sum(waiting * samples) / max(samples) AS waiting, max(kv_usage_max) AS kv
    FROM telemetry_engineminute
    WHERE instance_id = ANY(%(instances)s) AND start_at >= %(start)s AND start_at < %(end)s GROUP BY start_at
) minutes GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class PoolFrame:
    """A pool over time. Power by the ledger's kinds; latencies are 99th percentiles of what ended in the bucket."""

    time_range: TimeRange
    power_w: dict[str, Values]
    energy_per_token_j: Values
    ttft_p99_s: Values
    tpot_p99_s: Values
    sm_clock_mhz: Values
    running: Values
    waiting: Values
    kv_usage: Values
    rps: Values


def pool_series(pool_id: int, instance_ids: Sequence[int], time_range: TimeRange) -> PoolFrame:
    """Returns power, energy per token, latencies, clocks and queues of a pool. Three queries."""
    energy = pools_energy([pool_id], time_range)
    asked = {**span(time_range), "pool": pool_id, "day": day_of(time_range.start_s - LONGEST_S)}
    requests = {row.i: row for row in rows(POOL_REQUESTS_SQL, asked)}
    engines_sql = POOL_ENGINE_MINUTES_SQL if rollup_step_s(time_range) else POOL_ENGINES_SQL
    engines = {row.i: row for row in rows(engines_sql, {**span(time_range), "instances": list(instance_ids)})}
    indexes = range(time_range.count)

    def of(found: dict[int, Any], name: str) -> Values:
        return tuple(_float(getattr(found[i], name)) if i in found else None for i in indexes)

    total = [sum(values.get(i, 0.0) for values in energy.values()) for i in indexes]
    tokens = of(requests, "tokens")
    return PoolFrame(
        time_range=time_range,
        power_w=power_of(energy, time_range),
        energy_per_token_j=tuple(e / t if e and t else None for e, t in zip(total, tokens, strict=True)),
        ttft_p99_s=of(requests, "ttft_s"),
        tpot_p99_s=of(requests, "tpot_s"),
        sm_clock_mhz=of(engines, "sm_clock_mhz"),
        running=of(engines, "running"),
        waiting=of(engines, "waiting"),
        kv_usage=of(engines, "kv_usage"),
        rps=tuple(n / time_range.bucket_s if n is not None else None for n in of(requests, "requests")),
    )


def pools_energy(pool_ids: Sequence[int], time_range: TimeRange) -> dict[str, dict[int, float]]:
    """Returns joules of some pools together in each bucket, by kind. One query."""
    step_s = rollup_step_s(time_range)
    sql = POOL_ROLLUP_SQL if step_s else POOL_ENTRIES_SQL
    energy: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows(sql, {**span(time_range), "pools": list(pool_ids), "step_s": step_s}):
        energy[row.kind][row.i] = row.energy_j
    return energy


def power_of(energy: dict[str, dict[int, float]], time_range: TimeRange) -> dict[str, Values]:
    """Returns mean power by bucket and kind; the last bucket is left out until it is over. An absent kind is 0."""
    last = time_range.count - 1 if time_range.ends_s[-1] > time_range.end_s else time_range.count
    posted = {i for values in energy.values() for i in values}
    return {
        kind: tuple(
            values.get(i, 0.0) / time_range.bucket_s if i in posted and i < last else None
            for i in range(time_range.count)
        )
        for kind, values in sorted(energy.items())
    }


NODE_LAST_SQL = """
SELECT g.node_id, max(g.gpu_type) AS gpu_type, count(*) AS gpus, count(m.power_w) AS reporting,
       sum(m.power_w) AS power_w,
       avg(m.sm_clock_mhz) AS sm_clock_mhz, max(m.temperature_max_c) AS temperature_c, avg(m.utilisation) AS utilisation
FROM pools_gpu g LEFT JOIN telemetry_gpuminute m ON m.gpu_id = g.id AND m.start_at = %(minute)s
WHERE %(nodes)s::bigint[] IS NULL OR g.node_id = ANY(%(nodes)s) GROUP BY 1
"""
# One minute after the other, back from now: half an hour of a large fleet's is half a million rows.
NEWEST_MINUTE_SQL = """
SELECT minute AS start_at FROM generate_series(%(minute)s, %(since)s, interval '-1 minute') AS minute
CROSS JOIN LATERAL (SELECT 1 FROM telemetry_gpuminute m WHERE m.start_at = minute LIMIT 1) AS found LIMIT 1
"""


def newest_minute_s(now_s: float) -> float | None:
    """When the newest minute of the last half hour began that there are sums of GPU samples of. One query."""
    minute_s = now_s // MINUTE_S * MINUTE_S
    found = rows(NEWEST_MINUTE_SQL, {"minute": at(minute_s), "since": at(minute_s - 1_800)})
    return found[0].start_at.timestamp() if found else None


def nodes_in_minute(minute_s: float | None, node_ids: Sequence[int] | None = None) -> dict[int, Any]:
    """Sums over each node's GPUs for a minute, by the node's key; of some nodes, or of all. One query."""
    params = {"minute": at(minute_s or 0.0), "nodes": None if node_ids is None else list(node_ids)}
    return {row.node_id: row for row in rows(NODE_LAST_SQL, params)}


NODE_GPUS_SQL = f"""
WITH {
    newest(
        "telemetry_gpusample",
        "gpu_id",
        "at, power_w, sm_clock_mhz, utilisation, memory_used_bytes, temperature_c, instance_state, instance_id",
        of="SELECT count(*) FROM pools_gpu WHERE node_id = %(node)s",
        where="gpu_id IN (SELECT id FROM pools_gpu WHERE node_id = %(node)s)",
        back_s=120.0,
    )
}, day AS (
    SELECT gpu_id, sum(gaps)::int AS gaps, sum(heard_s) AS heard_s FROM telemetry_gpuminute
    WHERE start_at > %(now)s - interval '1 day' AND gpu_id IN (SELECT id FROM pools_gpu WHERE node_id = %(node)s)
    GROUP BY 1
)
SELECT g.id, g.uuid, g.index, g.gpu_type, g.memory_gb, g.min_mhz, g.max_mhz, g.tdp_w, n.at AS seen_at, n.power_w,
       n.sm_clock_mhz, n.utilisation, n.memory_used_bytes, n.temperature_c, n.instance_state, i.uid AS instance_uid,
       i.pool_id, day.gaps, day.heard_s
FROM pools_gpu g LEFT JOIN newest n ON n.gpu_id = g.id LEFT JOIN day ON day.gpu_id = g.id
LEFT JOIN pools_instance i ON i.id = n.instance_id
WHERE g.node_id = %(node)s ORDER BY g.index
"""


def node_gpus(node_id: int, now_s: float) -> list[Any]:
    """A node's GPUs with their newest samples and the gaps of their meters in the last day. One query."""
    return rows(NODE_GPUS_SQL, {"node": node_id, "now": at(now_s)})


NODE_SERIES_SQL = f"""
SELECT gpu_id, {bucket("{moment}")} AS i, avg(power_w) AS power_w, avg(sm_clock_mhz) AS sm_clock_mhz,
       max({{temperature}}) AS temperature_c, sum({{heard}}) AS heard_s
FROM {{table}} WHERE gpu_id IN (SELECT id FROM pools_gpu WHERE node_id = %(node)s)
  AND {{moment}} >= %(start)s AND {{moment}} < %(end)s GROUP BY 1, 2
"""
NODE_TABLES = (
    (86_400.0, {"table": "telemetry_gpuday", "moment": "start_at"}),
    (3_600.0, {"table": "telemetry_gpuhour", "moment": "start_at"}),
    (60.0, {"table": "telemetry_gpuminute", "moment": "start_at"}),
)
NODE_SAMPLES = {"table": "telemetry_gpusample", "moment": "at", "temperature": "temperature_c", "heard": "1"}


@dataclass(frozen=True, slots=True)
class GpuLines:
    power_w: Values
    sm_clock_mhz: Values
    temperature_c: Values


@dataclass(frozen=True, slots=True)
class NodeFrame:
    """A node's GPUs over time, by key. `silent`: buckets in which a GPU's meter was not heard for a tenth or more."""

    time_range: TimeRange
    gpus: dict[int, GpuLines]
    silent: tuple[bool, ...]


def node_series(node_id: int, time_range: TimeRange) -> NodeFrame:
    """Returns power, clock and temperature of each GPU, from the coarsest roll-up that fits the buckets. One query."""
    fits = (t for step_s, t in NODE_TABLES if not (time_range.bucket_s % step_s or time_range.start_s % step_s))
    table = next(({"temperature": "temperature_max_c", "heard": "heard_s"} | t for t in fits), NODE_SAMPLES)
    by_gpu: dict[int, dict[int, Any]] = defaultdict(dict)
    for row in rows(NODE_SERIES_SQL.format(**table), {**span(time_range), "node": node_id}):
        by_gpu[row.gpu_id][row.i] = row
    indexes = range(time_range.count)

    def of(found: dict[int, Any], name: str) -> Values:
        return tuple(getattr(found[i], name) if i in found else None for i in indexes)

    begun = min((i for found in by_gpu.values() for i in found), default=time_range.count)
    done = [
        min(time_range.end_s, end_s) - start_s
        for start_s, end_s in zip(time_range.starts_s, time_range.ends_s, strict=True)
    ]
    return NodeFrame(
        time_range,
        {
            gpu: GpuLines(of(found, "power_w"), of(found, "sm_clock_mhz"), of(found, "temperature_c"))
            for gpu, found in sorted(by_gpu.items())
        },
        tuple(
            begun <= i < time_range.count - 1
            and any(i not in found or found[i].heard_s < METERED_SHARE * done[i] for found in by_gpu.values())
            for i in indexes
        ),
    )


FEED_SQL = """
WITH actual AS (
    SELECT DISTINCT ON (start_at) start_at, end_at, coalesce(value_g_per_kwh, price_per_kwh) AS value, issued_at
    FROM telemetry_carbonpoint
    WHERE feed_id = %(feed)s AND NOT forecast AND start_at >= %(start)s AND start_at < %(end)s
    ORDER BY start_at, issued_at DESC
), said AS (
    SELECT DISTINCT ON (start_at) start_at, end_at, coalesce(value_g_per_kwh, price_per_kwh) AS value, issued_at
    FROM telemetry_carbonpoint
    WHERE feed_id = %(feed)s AND forecast AND start_at >= %(start)s AND start_at < %(horizon)s
      AND model = %(model)s AND issued_at <= start_at
    ORDER BY start_at, issued_at DESC
)
SELECT false AS forecast, extract(epoch FROM start_at)::float8 AS start_s, extract(epoch FROM end_at)::float8 AS end_s,
       value, extract(epoch FROM issued_at)::float8 AS issued_s FROM actual
UNION ALL
SELECT true, extract(epoch FROM start_at)::float8, extract(epoch FROM end_at)::float8, value,
       extract(epoch FROM issued_at)::float8 FROM said
ORDER BY 1, 2
"""


def feed_steps(
    feed_id: int, model: str, time_range: TimeRange, horizon_s: float
) -> tuple[tuple[IntensityStep, ...], tuple[IntensityStep, ...]]:
    """What a feed's values were, and what was last said of each beforehand, on to `horizon_s`. One query.

    The values are g/kWh, or the feed's currency per kWh for prices. `model`: who forecasts; empty: the provider.
    """
    params = {**span(time_range), "feed": feed_id, "model": model, "horizon": at(horizon_s)}
    found: tuple[list[IntensityStep], list[IntensityStep]] = ([], [])
    for row in rows(FEED_SQL, params):
        found[row.forecast].append(IntensityStep(row.start_s, row.end_s, row.value, row.issued_s))
    return tuple(found[0]), tuple(found[1])


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
