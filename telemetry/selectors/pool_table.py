"""The pool table: what each pool runs, draws and delivers just now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from pools.models import Pool, Slo
from telemetry.models.rollups import MINUTE_S
from telemetry.selectors.frames import PoolRow
from telemetry.storage.sql.request_rollups import ENDED, ENDED_UTC

from ._sql import METERED, at, day_of, rows
from .newest_samples import PowerNow, newest, pools_power
from .service_level import LONGEST_S

RECENT_S = 300.0  # latencies and energy per token
CALM = {"serving", "off", "asleep"}
LEDGER_LAG_S = 20.0  # the ledger posts whole intervals, a little late

# Of a pool's instances those of a mode and state together: what a row of the table shows are sums of these.
INSTANCES_SQL = f"""
WITH {
    newest(
        "telemetry_instancesample",
        "instance_id",
        "running, waiting, kv_usage, sm_clock_mhz",
        of="SELECT count(*) FROM pools_instance WHERE state <> 'stopped'",
    )
}
SELECT i.pool_id, i.gpu_type || '/TP' || i.tp AS mode, i.state, count(*) AS instances, sum(i.tp) AS gpus,
       count(*) FILTER (WHERE i.node_id IS NULL) AS registered,
       sum(newest.running) AS running, sum(newest.waiting) AS waiting, max(newest.kv_usage) AS kv_usage,
       sum(newest.sm_clock_mhz) AS clocks_mhz, count(newest.sm_clock_mhz) AS clocks
FROM pools_instance i LEFT JOIN newest ON newest.instance_id = i.id
WHERE i.state <> 'stopped' AND (%(pools)s::bigint[] IS NULL OR i.pool_id = ANY(%(pools)s))
GROUP BY 1, 2, 3 ORDER BY min(i.id)
"""

# Between which clocks a pool's instances can run: each as all of its GPUs can.
CLOCKS_SQL = """
SELECT pool_id, min(min_mhz) AS min_mhz, max(max_mhz) AS max_mhz
FROM (
    SELECT i.id, i.pool_id, max(g.min_mhz) AS min_mhz, min(g.max_mhz) AS max_mhz
    FROM pools_instance i JOIN pools_instancegpu h ON h.instance_id = i.id JOIN pools_gpu g ON g.id = h.gpu_id
    WHERE i.state <> 'stopped' AND i.pool_id = ANY(%(shown)s) GROUP BY 1
) instances GROUP BY 1
"""

REQUESTS_SQL = f"""
SELECT pool_id,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY ttft_s) FILTER (WHERE ended > %(since)s) AS ttft_s,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY tpot_s) FILTER (WHERE ended > %(since)s) AS tpot_s,
       sum(output_tokens) FILTER (
           WHERE ended > %(ledger_since)s AND ended <= %(ledger_until)s AND {METERED}
       ) AS tokens
FROM (
    SELECT *, {ENDED} AS ended
    FROM telemetry_requestrecord
    WHERE started_at >= %(day)s AND started_at <= %(now)s AND {ENDED_UTC} > %(ledger_since)s AT TIME ZONE 'UTC'
      AND pool_id = ANY(%(shown)s) AND status = 'ok'
) r GROUP BY 1
"""

# Sums of whole minutes: 16,000 GPUs' entries of five minutes would be half a million rows.
ENERGY_SQL = """
SELECT pool_id, sum(energy_uj)::float8 / 1e6 AS energy_j,
       CASE WHEN sum(unknown_uj) = 0 THEN sum(carbon_gco2e) END AS carbon_g
FROM telemetry_energyrollup
WHERE step_s = %(step_s)s AND start_at >= %(ledger_since)s AND start_at < %(ledger_until)s AND pool_id = ANY(%(shown)s)
GROUP BY 1
"""


PLAN = (
    *("pk", "workers", "service__name", "service__partition_id", "site__name", "site__label", "request_class__name"),
    *("request_class__rank", "request_class__partition_id", "request_class__partition__name"),
)


def pool_table(
    now_s: float,
    *,
    every: bool = False,
    power: PowerNow | None = None,
    pool_ids: Collection[int] | None = None,
    asleep: Collection[str] = (),
) -> tuple[PoolRow, ...]:
    """The pools of the partitions in force that want or run something; `every` pool if asked. Seven queries.

    Args:
        power: What GPUs draw now, where it is known already: six queries then.
        pool_ids: Of these only.
        asleep: The services that sleep, by name.
    """
    return measured(pool_rows(now_s, every=every, pool_ids=pool_ids, asleep=asleep), now_s, power)


def first_pools(
    now_s: float,
    most: int,
    *,
    every: bool = False,
    power: PowerNow | None = None,
    pool_ids: Collection[int] | None = None,
    asleep: Collection[str] = (),
) -> tuple[tuple[PoolRow, ...], int]:
    """As `pool_table`, but at most so many, and how many there are in all.

    Where there are more than `most`, those come first that do not serve as they are wanted to, then those in which
    most requests wait.
    """
    found = pool_rows(now_s, every=every, pool_ids=pool_ids, asleep=asleep)
    shown = sorted(found, key=_urgency)[:most] if len(found) > most else found
    return measured(shown, now_s, power), len(found)


def pool_rows(
    now_s: float, *, every: bool = False, pool_ids: Collection[int] | None = None, asleep: Collection[str] = ()
) -> tuple[PoolRow, ...]:
    """As `pool_table`, without what is metered. Two queries."""
    pools = Pool.objects.filter(**({} if pool_ids is None else {"pk__in": pool_ids}))
    params = {"now": at(now_s), "pools": None if pool_ids is None else list(pool_ids)}
    live: dict[int, list[Any]] = defaultdict(list)
    for row in rows(INSTANCES_SQL, params):
        live[row.pool_id].append(row)
    plans = pools.values_list(*PLAN, named=True)
    found = (_row(plan, live[plan.pk], asleep=plan.service__name in asleep) for plan in plans)
    return tuple(row for row in found if every or row.active)


def measured(pools: Sequence[PoolRow], now_s: float, power: PowerNow | None = None) -> tuple[PoolRow, ...]:
    """Returns the pools with their latencies, power, energy per token, objectives and limits of clocks. Five queries.

    `power`: what GPUs draw now, where it is known already: four queries then.
    """
    shown = [pool.id for pool in pools]
    params = _params(now_s) | {"shown": shown}
    if power is None:
        drawn = pools_power(now_s, shown)
    else:
        drawn = {pk: power.pools[pk].power_w for pk in shown if pk in power.pools}
    clocks = {row.pool_id: row for row in rows(CLOCKS_SQL, params)}
    requests = {row.pool_id: row for row in rows(REQUESTS_SQL, params)}
    energy = {row.pool_id: row for row in rows(ENERGY_SQL, params)}
    objectives = {(name, kind): s for name, kind, s in Slo.objects.values_list("service__name", "kind", "objective_s")}
    return tuple(
        replace(
            pool,
            power_w=drawn.get(pool.id),
            ttft_objective_s=objectives.get((pool.service, "ttft")),
            tpot_objective_s=objectives.get((pool.service, "tpot")),
            **_clocks(clocks.get(pool.id)),
            **_delivered(requests.get(pool.id), energy.get(pool.id)),
        )
        for pool in pools
    )


def powered(pools: Sequence[PoolRow], power: PowerNow) -> tuple[PoolRow, ...]:
    """Returns the pools with what their GPUs draw; where none of them says, None."""
    return tuple(
        replace(pool, power_w=power.pools[pool.id].power_w) if pool.id in power.pools else pool for pool in pools
    )


def _clocks(row: Any | None) -> dict[str, Any]:
    return {} if row is None else {"clock_min_mhz": row.min_mhz, "clock_max_mhz": row.max_mhz}


def _delivered(requests: Any | None, energy: Any | None) -> dict[str, Any]:
    """Returns latencies of a pool's requests, and what a token took where both sides of it are known."""
    if requests is None:
        return {}
    found = {"ttft_p99_s": requests.ttft_s, "tpot_p99_s": requests.tpot_s}
    if energy is None or not requests.tokens:
        return found
    carbon_g = None if energy.carbon_g is None else energy.carbon_g / requests.tokens * 1_000.0
    return found | {"energy_per_token_j": energy.energy_j / requests.tokens, "carbon_per_1k_tokens_g": carbon_g}


def _params(now_s: float) -> dict[str, Any]:
    ledger_until_s = (now_s - LEDGER_LAG_S) // MINUTE_S * MINUTE_S
    ledger_since_s = ledger_until_s - RECENT_S
    return {
        "now": at(now_s),
        "since": at(now_s - RECENT_S),
        "step_s": MINUTE_S,
        "ledger_since": at(ledger_since_s),
        "ledger_until": at(ledger_until_s),
        "day": day_of(ledger_since_s - LONGEST_S),
    }


def _urgency(pool: PoolRow) -> tuple[bool, int]:
    """Returns the key to sort by: what needs attention most comes first."""
    return pool.state in CALM, -(pool.waiting or 0)


def _row(plan: Any, live: Sequence[Any], *, asleep: bool) -> PoolRow:
    wanted = {mode: int(count) for mode, count in plan.workers.items() if count}
    states, modes = Counter[str](), Counter[str]()
    for part in live:
        if part.state != "sleeping":  # the warm pool is nobody's yet
            states[part.state] += part.instances
            modes[part.mode] += part.instances
    clocks = sum(part.clocks for part in live)
    return PoolRow(
        id=plan.pk,
        state=pool_state(sum(wanted.values()) + sum(part.registered for part in live), states, asleep=asleep),
        request_class=plan.request_class__name,
        class_rank=plan.request_class__rank,
        partition=plan.request_class__partition__name,
        active=bool(live) or (bool(wanted) and plan.request_class__partition_id == plan.service__partition_id),
        service=plan.service__name,
        site=plan.site__name,
        site_label=plan.site__label or plan.site__name,
        wanted=wanted,
        instances=dict(modes),
        ready=states["ready"],
        gpus=sum(part.gpus for part in live),
        clock_mhz=sum(part.clocks_mhz or 0.0 for part in live) / clocks if clocks else None,
        running=_sum([i.running for i in live]),
        waiting=_sum([i.waiting for i in live]),
        kv_usage=max((i.kv_usage for i in live if i.kv_usage is not None), default=None),
    )


def pool_state(wanted: int, states: Counter[str], *, asleep: bool = False) -> str:
    """Returns one word for a pool: failed | off | asleep | waiting | starting | partial | draining | serving.

    `asleep`: its service sleeps, so that nothing is started until a request comes.
    """
    live = sum(states.values())
    if states["failed"]:
        return "failed"
    if not live:
        return "off" if not wanted else "asleep" if asleep else "waiting"
    if not wanted or asleep:
        return "draining"
    if not states["ready"]:
        return "starting"
    return "serving" if states["ready"] >= wanted else "partial"


def _sum(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
