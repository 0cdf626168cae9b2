"""The basis of a report beside its lines (`settled_lines`): the ledger as of a version, and what it goes by now.

As of version V a window's lines are those of its newest settlement up to V that are no reversals; what later
settlements say is not seen. Windows lie within UTC hours, so lines of an hour are sums of whole windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Max, Min

from core.accounting import tariffs
from pools.models import Pool, Site, Tenant
from telemetry.ledger import settled_reader
from telemetry.ledger.rates import Rates
from telemetry.ledger.window_sources import WINDOW_S
from telemetry.models import MeterMark, Settlement
from telemetry.report_values.basis import DemandCharge, MeterBasis, PoolBasis, SiteBasis
from telemetry.report_values.lines import SloCount
from telemetry.report_values.period import Period

COVERED = 0.95  # of a month, from which on its demand charge is the report's


def newest_sql(*columns: str) -> str:
    """Returns the newest settlement of each window as of the version, with these columns of it."""
    return f"""
newest AS MATERIALIZED (
    SELECT DISTINCT ON (site_id, start_at) {", ".join(("id", "site_id", "start_at", "end_at", *columns))}
    FROM telemetry_settlement
    WHERE id <= %(version)s AND start_at >= %(start)s AND start_at < %(end)s AND site_id = ANY(%(sites)s)
    ORDER BY site_id, start_at, revision DESC
)
"""


NEWEST_SQL = newest_sql("currency")

SUMMED = (
    *("energy_uj", "facility_uj", "gpu_us", "carbon_ug", "carbon_unknown_uj", "embodied_ug", "embodied_unknown_us"),
    *("cost_nano", "cost_unknown_uj", "rental_nano", "rental_unknown_us", "requests", "prompt_tokens", "output_tokens"),
    *("host_uj", "host_known_uj"),
)
# Hours that lie in the period as a whole, and of which nothing was settled after the version, have their sums already.
HOURS_SQL = f"""
{NEWEST_SQL},
summed AS MATERIALIZED (
    SELECT site_id, date_trunc('hour', start_at, 'UTC') AS start_at FROM telemetry_settlement
    WHERE start_at >= %(start)s AND start_at < %(end)s AND site_id = ANY(%(sites)s) GROUP BY 1, 2
    HAVING max(id) <= %(version)s AND date_trunc('hour', min(start_at), 'UTC') >= %(start)s
       AND date_trunc('hour', min(start_at), 'UTC') + interval '1 hour' <= %(end)s
),
hours AS (
    SELECT h.start_at, h.start_at + interval '1 hour' AS end_at, h.site_id, h.kind, h.tenant_id,
           nullif(h.service, '') COLLATE "C" AS service, h.pool_id, nullif(h.adapter, '') COLLATE "C" AS adapter,
           h.currency,
           {", ".join(f"h.{name}" for name in SUMMED)}
    FROM summed s JOIN telemetry_statementhour h ON h.site_id = s.site_id AND h.start_at = s.start_at AND h.lines > 0
    UNION ALL
    SELECT greatest(date_trunc('hour', n.start_at, 'UTC'), %(start)s),
           least(date_trunc('hour', n.start_at, 'UTC') + interval '1 hour', %(end)s), n.site_id, l.kind, l.tenant_id,
           nullif(l.service, '') COLLATE "C", l.pool_id, nullif(l.adapter, '') COLLATE "C", n.currency,
           {", ".join(f"sum(l.{name})::bigint" for name in SUMMED)}
    FROM newest n JOIN telemetry_statementline l ON l.settlement_id = n.id AND l.entry <> 'reversal'
    WHERE (n.site_id, date_trunc('hour', n.start_at, 'UTC')) NOT IN (SELECT site_id, start_at FROM summed)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
)
"""

SITES_SQL = f"""
WITH {HOURS_SQL}
SELECT site_id, min(currency), max(currency), sum(facility_uj)::bigint, bool_or(rental_unknown_us < gpu_us)
FROM hours GROUP BY 1
"""

INTENSITY_SQL = f"""
WITH {HOURS_SQL}
SELECT site_id, sum(carbon_ug), sum(energy_uj), sum(carbon_unknown_uj) FROM hours GROUP BY 1
"""

SLO_SQL = """
SELECT pool_id, tenant_id, service, adapter, count(*), count(slo_met), count(*) FILTER (WHERE slo_met),
       count(*) FILTER (WHERE status = 'ok' AND output_tokens IS NULL),
       count(*) FILTER (WHERE status NOT IN ('rejected', 'client_error'))
FROM telemetry_requestrecord WHERE started_at >= %(start)s AND started_at < %(end)s
GROUP BY 1, 2, 3, 4
ORDER BY 1 NULLS LAST, 2 NULLS LAST, service COLLATE "C", adapter COLLATE "C" NULLS LAST
"""

METERS_SQL = f"""
WITH {NEWEST_SQL},
whole AS (
    SELECT gpu_id, sum(energy_uj) AS energy_uj FROM telemetry_gpuenergy
    WHERE step_s = 86400 AND site_id = ANY(%(sites)s) GROUP BY 1
),
hours AS MATERIALIZED (
    SELECT site_id, date_trunc('hour', start_at, 'UTC') AS start_at FROM newest
    GROUP BY 1, 2 HAVING count(*) = {round(3_600 / WINDOW_S)}
),
settled AS (
    SELECT e.gpu_id, e.energy_uj FROM hours h
    JOIN telemetry_gpuenergy e ON e.step_s = 3600 AND e.site_id = h.site_id AND e.start_at = h.start_at
    UNION ALL
    SELECT e.gpu_id, e.energy_uj FROM newest n
    JOIN telemetry_energyentry e ON e.site_id = n.site_id AND e.start_at >= n.start_at AND e.start_at < n.end_at
    WHERE (n.site_id, date_trunc('hour', n.start_at, 'UTC')) NOT IN (SELECT site_id, start_at FROM hours)
),
period AS (SELECT gpu_id, sum(energy_uj) AS energy_uj FROM settled GROUP BY 1)
SELECT g.uuid, c.site_id, extract(epoch FROM m.opened_at)::bigint, extract(epoch FROM m.at)::bigint,
       m.energy_uj - m.opened_energy_uj, coalesce(w.energy_uj, 0)::bigint, coalesce(p.energy_uj, 0)::bigint
FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id
JOIN pools_node d ON d.id = g.node_id JOIN pools_cluster c ON c.id = d.cluster_id
LEFT JOIN whole w ON w.gpu_id = g.id LEFT JOIN period p ON p.gpu_id = g.id
WHERE c.site_id = ANY(%(sites)s) AND m.opened_at < %(end)s ORDER BY c.site_id, g.uuid
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """What to read: a period of some sites as of a version of the ledger."""

    period: Period
    version: int
    site_ids: tuple[int, ...]

    @property
    def params(self) -> dict[str, Any]:
        period = self.period
        return {"start": period.start, "end": period.end, "version": self.version, "sites": list(self.site_ids)}


def newest_version() -> int | None:
    """Returns the ledger's version now; None: nothing is settled yet."""
    found: int | None = Settlement.objects.aggregate(newest=Max("id"))["newest"]
    return found


def settled_period() -> tuple[datetime, datetime] | None:
    """Returns the first settled moment and the last one; None: nothing is settled yet."""
    first = Settlement.objects.order_by("start_at").values_list("start_at", flat=True).first()
    last = Settlement.objects.order_by("-start_at").values_list("end_at", flat=True).first()
    return None if first is None or last is None else (first, last)


def site_bases(scope: Scope) -> dict[str, SiteBasis]:
    """Returns the sites that have settled something in the period. Raises ValueError for a changed currency."""
    sites = Site.objects.in_bulk(scope.site_ids)
    found = {}
    for site_id, currency, other, facility_uj, rented in _rows(SITES_SQL, scope.params):
        site = sites[site_id]
        if currency != other:
            raise ValueError(f"site {site.name} changed its currency from {currency} to {other} within the period")
        label = site.label or site.name
        basis = (site.pk, label, currency, site.rank, rented, facility_uj, site.colour, site.market)
        found[site.name] = SiteBasis(*basis)
    return dict(sorted(found.items()))


def pool_bases(site_ids: Sequence[int]) -> dict[str, PoolBasis]:
    """Returns all pools of these sites by id."""
    pools = Pool.objects.filter(site__in=site_ids).select_related("site", "service__model_card", "request_class")
    found = {}
    for pool in pools.order_by("pk"):
        name = f"{pool.service.name}/{pool.site.name}/{pool.request_class.name}"
        found[str(pool.pk)] = PoolBasis(name, pool.site.name, pool.service.name, pool.service.model_card.name)
    return found


def tenant_bases() -> dict[str, tuple[str, str]]:
    return {str(tenant.pk): (tenant.name, tenant.label or tenant.name) for tenant in Tenant.objects.order_by("pk")}


def slo_counts(
    scope: Scope, pools: Mapping[str, PoolBasis], tenants: Mapping[str, tuple[str, str]], every: bool
) -> tuple[SloCount, ...]:
    """Counts requests that began in the period. `every`: those too that never came to a pool, and so to no site."""
    found = []
    for pool_id, tenant_id, service, adapter, requests, judged, met, without, worked in _rows(SLO_SQL, scope.params):
        pool = pools.get(str(pool_id))
        if pool is None and not every:
            continue
        tenant = _tenant(tenant_id, tenants)
        site, name, model = (pool.site, pool.name, pool.model) if pool else (None, None, None)
        counted = (requests, judged, met, without, worked)
        found.append(SloCount(site, tenant, service or None, name, model, *counted, adapter or None))
    return tuple(found)


def _tenant(pk: int | None, tenants: Mapping[str, tuple[str, str]]) -> str | None:
    """Returns a tenant's name, also of one that is gone; None is nobody's."""
    return None if pk is None else tenants.get(str(pk), (f"tenant-{pk}", ""))[0]


def meters(scope: Scope) -> tuple[MeterBasis, ...]:
    """Returns every GPU's counter and the ledger's entries of it.

    Entries are added up by the hour and day as they come (`GpuEnergy`); single ones are read only in hours of which
    some windows are not settled.
    """
    sites = {site.pk: site.name for site in Site.objects.filter(pk__in=scope.site_ids)}
    return tuple(
        MeterBasis(gpu, sites[site_id], opened_s, mark_s, metered_uj, entered_uj, period_uj)
        for gpu, site_id, opened_s, mark_s, metered_uj, entered_uj, period_uj in _rows(METERS_SQL, scope.params)
    )


def settled_until_s(scope: Scope) -> int:
    """How far every site is settled, at most to the period's end. A site that never settled anything does not count."""
    ends = (
        Settlement.objects.filter(pk__lte=scope.version, site__in=scope.site_ids)
        .values_list("site")
        .annotate(end=Max("end_at"))
        .values_list("end", flat=True)
    )
    until = min((int(end.timestamp()) for end in ends), default=scope.period.start_s)
    return max(scope.period.start_s, min(scope.period.end_s, until))


def demand_charges(scope: Scope, tenants: Mapping[str, tuple[str, str]]) -> tuple[DemandCharge, ...]:
    """Returns charges of the local months that the period covers, but for an hour or so where its zone is another."""
    period, found = scope.period, []
    for site in Site.objects.filter(pk__in=scope.site_ids).order_by("name"):
        rates = Rates.of(site)
        first = period.start.astimezone(ZoneInfo(site.time_zone)).date().replace(day=1)
        months = [first]
        while months[-1] <= period.end.date():
            months.append((months[-1] + timedelta(days=32)).replace(day=1))
        for month in months:
            start_s, end_s = (round(at_s) for at_s in tariffs.month_s(site.time_zone, month))
            shared_s = min(end_s, period.end_s) - max(start_s, period.start_s)
            if shared_s < COVERED * (end_s - start_s) or _free_of_demand(rates, start_s):
                continue
            peak = settled_reader.peak(site, month, scope.version)
            if peak is not None and peak.charge != 0:
                charge = None if peak.charge is None else round(peak.charge * 1e9)
                words = f"{month:%Y-%m}"
                used = settled_reader.quarter_use(site, peak.start_at, scope.version)
                quarter = tuple((_tenant(pk, tenants), facility_uj) for pk, facility_uj in used)
                found.append(
                    DemandCharge(site.name, words, start_s, end_s, peak.power_w, charge, peak.currency, quarter)
                )
    return tuple(found)


def _free_of_demand(rates: Rates, start_s: int) -> bool:
    """Says whether no tariff charges for peaks and one is always valid: then quarters of an hour need not be summed."""
    always_valid = any(row.valid_to is None and row.valid_from.timestamp() <= start_s for row in rates.tariffs)
    return always_valid and not any(row.demand_per_kw for row in rates.tariffs)


def first_reading_s(scope: Scope) -> int:
    """Returns when the first GPU of these sites was first metered; the period's end where none ever was."""
    opened = MeterMark.objects.filter(gpu__node__cluster__site__in=scope.site_ids).aggregate(first=Min("opened_at"))
    first = opened["first"]
    return scope.period.end_s if first is None else int(first.timestamp())


def intensities_ug_per_uj(scope: Scope) -> dict[str, float | None]:
    """Returns by site micrograms (location-based) for each microjoule at its GPUs; None: some are unknown."""
    sites = {site.pk: site.name for site in Site.objects.filter(pk__in=scope.site_ids)}
    return {
        sites[site_id]: float(carbon_ug / energy_uj) if energy_uj and not unknown_uj else None
        for site_id, carbon_ug, energy_uj, unknown_uj in _rows(INTENSITY_SQL, scope.params)
    }


def _rows(sql: str, params: Mapping[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found: list[Any] = cursor.fetchall()
        return found
