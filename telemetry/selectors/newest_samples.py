"""The newest samples: what GPUs draw and engines do just now.

Agents report each second, so nearly all of a fleet's newest samples lie within the last few; only for those that are
missing there the rest of what counts as now is read, which is several times as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ._sql import at, rows

NOW_S = 15.0  # an older sample says nothing of now
FRESH_S = 3.0


def newest(table: str, key: str, columns: str, *, of: str, where: str = "true", back_s: float = NOW_S) -> str:
    """Returns SQL for the CTE `newest`: the columns of the newest row at most `back_s` old, of each `key`.

    Args:
        of: a query for how many keys there are: with all of them found nothing more is read.
        where: what rows are looked at.
    """
    read = f"SELECT DISTINCT ON ({key}) {key}, {columns} FROM {table} WHERE {where} AND at > %(now)s - interval"
    return f"""
fresh AS MATERIALIZED (
    {read} '{FRESH_S:g} seconds' AND at <= %(now)s ORDER BY {key}, at DESC
), late AS MATERIALIZED (
    {read} '{back_s:g} seconds' AND at <= %(now)s - interval '{FRESH_S:g} seconds'
        AND (SELECT count(*) FROM fresh) < ({of}) AND {key} NOT IN (SELECT {key} FROM fresh)
    ORDER BY {key}, at DESC
), newest AS (SELECT * FROM fresh UNION ALL SELECT * FROM late)"""


# Added up by node and instance before these are looked up: else that is done for each GPU.
POWER_SQL = f"""
WITH {newest("telemetry_gpusample", "gpu_id", "power_w, instance_id", of="SELECT count(*) FROM pools_gpu")}, drawn AS (
    SELECT g.node_id, newest.instance_id, count(*) AS gpus, count(newest.power_w) AS reporting,
           sum(newest.power_w) AS power_w
    FROM pools_gpu g LEFT JOIN newest ON newest.gpu_id = g.id GROUP BY 1, 2
)
SELECT c.site_id, i.pool_id, sum(drawn.gpus)::int AS gpus, sum(drawn.reporting)::int AS reporting,
       sum(drawn.power_w) AS power_w
FROM drawn JOIN pools_node n ON n.id = drawn.node_id JOIN pools_cluster c ON c.id = n.cluster_id
LEFT JOIN pools_instance i ON i.id = drawn.instance_id GROUP BY 1, 2
"""
ALLOCATED = """
FROM pools_instancegpu h JOIN pools_instance i ON i.id = h.instance_id
WHERE h.released_at IS NULL AND i.pool_id = ANY(%(pools)s)"""
# IS TRUE: looked up in a hash, and never joined row by row, for how many samples are new no statistics tell.
POOLS_POWER_SQL = f"""
WITH {
    newest(
        "telemetry_gpusample",
        "gpu_id",
        "power_w, instance_id",
        of=f"SELECT count(*) {ALLOCATED}",
        where=f"(gpu_id IN (SELECT h.gpu_id {ALLOCATED})) IS TRUE",
    )
}
SELECT i.pool_id, sum(newest.power_w) AS power_w FROM newest JOIN pools_instance i ON i.id = newest.instance_id
WHERE i.pool_id = ANY(%(pools)s) GROUP BY 1
"""

# Each only where the one before it found nothing: an hour of a large fleet's samples takes seconds to read. Of the last
# second any sample will do, since more than seconds are not asked for.
NEWEST_SQL = "SELECT extract(epoch FROM coalesce({})) AS at_s".format(
    ", ".join(
        f"(SELECT {what} FROM telemetry_gpusample WHERE at > %(now)s - interval '{back_s:g} seconds'{least})"
        for back_s, what, least in (
            (1.0, "at", " LIMIT 1"),
            *((back_s, "max(at)", "") for back_s in (FRESH_S, NOW_S, 300.0, 3_600.0)),
        )
    )
)


@dataclass(frozen=True, slots=True)
class Power:
    """Of some GPUs: how many there are, how many of them say what they draw, and how much that is together.

    `power_w` None: nobody says.
    """

    gpus: int
    reporting: int
    power_w: float | None


@dataclass(frozen=True, slots=True)
class PowerNow:
    """By the newest samples, by the keys of sites and of the pools whose instances the GPUs ran."""

    sites: Mapping[int, Power]
    pools: Mapping[int, Power]


def power_now(now_s: float) -> PowerNow:
    """Adds up what every GPU draws by its newest sample, at most 15 s old. One query."""
    sites: dict[int, list[Power]] = defaultdict(list)
    pools: dict[int, list[Power]] = defaultdict(list)
    for row in rows(POWER_SQL, {"now": at(now_s)}):
        part = Power(row.gpus, row.reporting, row.power_w)
        sites[row.site_id].append(part)
        if row.pool_id is not None:
            pools[row.pool_id].append(part)
    return PowerNow(*({pk: _sum(parts) for pk, parts in found.items()} for found in (sites, pools)))


def _sum(parts: list[Power]) -> Power:
    known = [part.power_w for part in parts if part.power_w is not None]
    return Power(sum(part.gpus for part in parts), sum(part.reporting for part in parts), sum(known) if known else None)


def pools_power(now_s: float, pool_ids: Collection[int]) -> dict[int, float | None]:
    """Returns the watts by pool of the GPUs that these pools' instances have and were running on. One query."""
    found = rows(POOLS_POWER_SQL, {"now": at(now_s), "pools": list(pool_ids)})
    return {row.pool_id: row.power_w for row in found}


def newest_sample_s(now_s: float) -> float | None:
    """Returns when the newest GPU sample of the last hour was taken, to the second: the ingester's delay. One query."""
    (row,) = rows(NEWEST_SQL, {"now": at(now_s)})
    return None if row.at_s is None else float(row.at_s)
