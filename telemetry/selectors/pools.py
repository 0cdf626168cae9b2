"""The pool table: what each pool runs, draws and delivers just now."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from pools.models import Pool, Slo
from telemetry.frames import PoolRow

from ._sql import at, rows

RECENT_S = 300.0  # latencies and energy per token
LEDGER_LAG_S = 20.0  # the ledger posts whole cells, a little late; tokens are counted over the same span

INSTANCES_SQL = """
WITH newest AS (
    SELECT DISTINCT ON (instance_id) instance_id, running, waiting, kv_usage, sm_clock_mhz
    FROM telemetry_instancesample WHERE at > %(now)s - interval '15 seconds' AND at <= %(now)s
    ORDER BY instance_id, at DESC
), clocks AS (
    SELECT h.instance_id, max(g.min_mhz) AS min_mhz, min(g.max_mhz) AS max_mhz
    FROM pools_instancegpu h JOIN pools_gpu g ON g.id = h.gpu_id GROUP BY 1
)
SELECT i.pool_id, i.gpu_type || '/TP' || i.tp AS mode, i.tp, i.state, newest.*, clocks.min_mhz, clocks.max_mhz
FROM pools_instance i LEFT JOIN newest ON newest.instance_id = i.id LEFT JOIN clocks ON clocks.instance_id = i.id
WHERE i.state <> 'stopped' ORDER BY i.id
"""

POWER_SQL = """
WITH newest AS (
    SELECT DISTINCT ON (gpu_id) gpu_id, power_w, instance_id FROM telemetry_gpusample
    WHERE at > %(now)s - interval '15 seconds' AND at <= %(now)s ORDER BY gpu_id, at DESC
)
SELECT i.pool_id, sum(newest.power_w) AS power_w
FROM newest JOIN pools_instance i ON i.id = newest.instance_id GROUP BY 1
"""

REQUESTS_SQL = """
SELECT pool_id,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY ttft_s) FILTER (WHERE ended > %(since)s) AS ttft_s,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY tpot_s) FILTER (WHERE ended > %(since)s) AS tpot_s,
       sum(output_tokens) FILTER (WHERE ended > %(ledger_since)s AND ended <= %(ledger_until)s) AS tokens
FROM (
    SELECT *, started_at + coalesce(e2e_s, 0) * interval '1 second' AS ended
    FROM telemetry_requestrecord
    WHERE started_at > %(since)s - interval '15 minutes' AND started_at <= %(now)s
      AND pool_id IS NOT NULL AND status = 'ok'
) r GROUP BY 1
"""

ENERGY_SQL = """
SELECT pool_id, sum(energy_j) AS energy_j,
       CASE WHEN bool_and(carbon_gco2e IS NOT NULL) THEN sum(carbon_gco2e) END AS carbon_g
FROM telemetry_energyentry
WHERE start_at >= %(ledger_since)s AND start_at < %(ledger_until)s AND pool_id IS NOT NULL GROUP BY 1
"""


def pool_table(now_s: float, *, every: bool = False) -> tuple[PoolRow, ...]:
    """The pools of the partitions in force that want or run something; `every` pool if asked. Six queries."""
    params = {
        "now": at(now_s),
        "since": at(now_s - RECENT_S),
        "ledger_since": at(now_s - RECENT_S - LEDGER_LAG_S),
        "ledger_until": at(now_s - LEDGER_LAG_S),
    }
    pools = Pool.objects.select_related("service", "site", "request_class__partition")
    instances: dict[int, list[Any]] = defaultdict(list)
    for row in rows(INSTANCES_SQL, params):
        instances[row.pool_id].append(row)
    power = {row.pool_id: row.power_w for row in rows(POWER_SQL, params)}
    requests = {row.pool_id: row for row in rows(REQUESTS_SQL, params)}
    energy = {row.pool_id: row for row in rows(ENERGY_SQL, params)}
    objectives = {(o.service_id, o.kind): o.objective_s for o in Slo.objects.all()}
    table = (
        _row(pool, instances[pool.pk], power.get(pool.pk), requests.get(pool.pk), energy.get(pool.pk), objectives)
        for pool in pools
    )
    return tuple(row for row in table if every or row.active)


def _row(
    pool: Pool,
    live: list[Any],
    power_w: float | None,
    requests: Any | None,
    energy: Any | None,
    objectives: dict[tuple[int, str], float],
) -> PoolRow:
    partition = pool.request_class.partition
    wanted = {mode: int(count) for mode, count in pool.workers.items() if count}
    tokens = requests.tokens if requests else None
    per_token = energy.energy_j / tokens if energy and tokens else None
    in_force = partition.pk == pool.service.partition_id
    return PoolRow(
        id=pool.pk,
        state=pool_state(sum(wanted.values()), Counter(i.state for i in live)),
        request_class=pool.request_class.name,
        class_rank=pool.request_class.rank,
        partition=partition.name,
        active=bool(live) or (in_force and bool(wanted)),
        service=pool.service.name,
        site=pool.site.name,
        site_label=pool.site.label or pool.site.name,
        wanted=wanted,
        instances=dict(Counter(i.mode for i in live)),
        ready=sum(i.state == "ready" for i in live),
        gpus=sum(i.tp for i in live),
        clock_mhz=_mean([i.sm_clock_mhz for i in live]),
        clock_min_mhz=min((i.min_mhz for i in live if i.min_mhz is not None), default=None),
        clock_max_mhz=max((i.max_mhz for i in live if i.max_mhz is not None), default=None),
        power_w=power_w,
        running=_sum([i.running for i in live]),
        waiting=_sum([i.waiting for i in live]),
        kv_usage=max((i.kv_usage for i in live if i.kv_usage is not None), default=None),
        ttft_p99_s=requests.ttft_s if requests else None,
        ttft_objective_s=objectives.get((pool.service_id, "ttft")),
        tpot_p99_s=requests.tpot_s if requests else None,
        tpot_objective_s=objectives.get((pool.service_id, "tpot")),
        energy_per_token_j=per_token,
        carbon_per_1k_tokens_g=energy.carbon_g / tokens * 1_000.0
        if energy and tokens and energy.carbon_g is not None
        else None,
    )


def pool_state(wanted: int, states: Counter[str]) -> str:
    """One word for a pool: failed | off | waiting | starting | partial | draining | serving."""
    live = sum(states.values())
    if states["failed"]:
        return "failed"
    if not live:
        return "waiting" if wanted else "off"
    if not wanted:
        return "draining"
    if not states["ready"]:
        return "starting"
    return "serving" if states["ready"] >= wanted else "partial"


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _sum(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
