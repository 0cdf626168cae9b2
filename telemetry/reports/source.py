"""The one reader of the ledger: settled windows as of a version, as a stream of lines; and the basis beside them.

As of version V a window's lines are those of its newest settlement up to V that are no reversals; what later
settlements say is not seen. Windows lie within UTC hours, so lines of an hour are sums of whole windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Max, Min, Q

from pools.models import Pool, Site, Tenant
from scheduler.core import tariffs
from telemetry import statements
from telemetry.models import Instrument, MeterMark, Settlement
from telemetry.window_sources import WINDOW_S

from .basis import Basis, DemandCharge, MeterBasis, PoolBasis, SiteBasis
from .lines import ReportLine, SloCount
from .market import Contract
from .period import Period

CHUNK_ROWS = 5_000
COVERED = 0.95  # of a month, from which on its demand charge is the report's

NEWEST_SQL = """
newest AS MATERIALIZED (
    SELECT DISTINCT ON (site_id, start_at) id, site_id, start_at, end_at, currency FROM telemetry_settlement
    WHERE id <= %(version)s AND start_at >= %(start)s AND start_at < %(end)s AND site_id = ANY(%(sites)s)
    ORDER BY site_id, start_at, revision DESC
)
"""

LINES_SQL = f"""
WITH {NEWEST_SQL}
SELECT extract(epoch FROM greatest(date_trunc('hour', n.start_at, 'UTC'), %(start)s))::bigint AS start_s,
       extract(epoch FROM least(date_trunc('hour', n.start_at, 'UTC') + interval '1 hour', %(end)s))::bigint AS end_s,
       n.site_id, l.kind, l.tenant_id, nullif(l.service, '') COLLATE "C" AS service, l.pool_id, n.currency,
       sum(l.energy_uj)::bigint, sum(l.facility_uj)::bigint, sum(l.gpu_us)::bigint,
       sum(l.carbon_ug)::bigint, sum(l.carbon_unknown_uj)::bigint,
       sum(l.embodied_ug)::bigint, sum(l.embodied_unknown_us)::bigint,
       sum(l.cost_nano)::bigint, sum(l.cost_unknown_uj)::bigint,
       sum(l.rental_nano)::bigint, sum(l.rental_unknown_us)::bigint,
       sum(l.requests)::bigint, sum(l.prompt_tokens)::bigint, sum(l.output_tokens)::bigint
FROM newest n JOIN telemetry_statementline l ON l.settlement_id = n.id AND l.entry <> 'reversal'
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
ORDER BY 1, n.site_id, l.pool_id NULLS LAST, l.kind, 6 NULLS LAST, l.tenant_id NULLS LAST, n.currency
"""

SITES_SQL = f"""
WITH {NEWEST_SQL}
SELECT n.site_id, min(n.currency), max(n.currency), sum(l.facility_uj)::bigint,
       bool_or(l.rental_unknown_us < l.gpu_us)
FROM newest n JOIN telemetry_statementline l ON l.settlement_id = n.id AND l.entry <> 'reversal' GROUP BY 1
"""

INTENSITY_SQL = f"""
WITH {NEWEST_SQL}
SELECT n.site_id, sum(l.carbon_ug), sum(l.energy_uj), sum(l.carbon_unknown_uj)
FROM newest n JOIN telemetry_statementline l ON l.settlement_id = n.id AND l.entry <> 'reversal' GROUP BY 1
"""

SLO_SQL = """
SELECT pool_id, tenant_id, service, count(*), count(slo_met), count(*) FILTER (WHERE slo_met),
       count(*) FILTER (WHERE status = 'ok' AND output_tokens IS NULL)
FROM telemetry_requestrecord WHERE started_at >= %(start)s AND started_at < %(end)s
GROUP BY 1, 2, 3 ORDER BY 1 NULLS LAST, 2 NULLS LAST, service COLLATE "C"
"""

METERS_SQL = f"""
WITH {NEWEST_SQL},
whole AS (
    SELECT e.gpu_id, sum(e.energy_uj) AS energy_uj FROM telemetry_energyentry e
    JOIN telemetry_metermark m ON m.gpu_id = e.gpu_id AND e.end_at <= m.at
    WHERE e.site_id = ANY(%(sites)s) GROUP BY 1
),
settled AS (
    SELECT e.gpu_id, sum(e.energy_uj) AS energy_uj FROM telemetry_energyentry e
    JOIN telemetry_metermark m ON m.gpu_id = e.gpu_id AND e.end_at <= m.at
    JOIN newest n ON n.site_id = e.site_id
         AND n.start_at = date_bin(make_interval(secs => {WINDOW_S}), e.start_at, to_timestamp(0))
    WHERE e.start_at >= %(start)s AND e.start_at < %(end)s AND e.site_id = ANY(%(sites)s) GROUP BY 1
)
SELECT g.uuid, c.site_id, extract(epoch FROM m.opened_at)::bigint, extract(epoch FROM m.at)::bigint,
       m.energy_uj - m.opened_energy_uj, coalesce(w.energy_uj, 0)::bigint, coalesce(s.energy_uj, 0)::bigint
FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id
JOIN pools_node d ON d.id = g.node_id JOIN pools_cluster c ON c.id = d.cluster_id
LEFT JOIN whole w ON w.gpu_id = g.id LEFT JOIN settled s ON s.gpu_id = g.id
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
    """The ledger's version now; None: nothing is settled yet."""
    found: int | None = Settlement.objects.aggregate(newest=Max("id"))["newest"]
    return found


def reach() -> tuple[datetime, datetime] | None:
    """From when to when anything is settled."""
    first = Settlement.objects.order_by("start_at").values_list("start_at", flat=True).first()
    last = Settlement.objects.order_by("-start_at").values_list("end_at", flat=True).first()
    return None if first is None or last is None else (first, last)


def lines(scope: Scope, basis: Basis) -> Iterator[ReportLine]:
    """By hour, site and pool. Streams from a cursor of the server: memory does not grow with the rows."""
    names = _Names.of(basis)
    for row in _stream(LINES_SQL, scope.params):
        start_s, end_s, site_id, kind, tenant_id, service, pool_id, currency, *amounts = row
        site = names.sites[site_id]
        pool = names.pool(pool_id)
        (energy, facility, gpu_us, carbon, no_carbon, embodied, no_embodied) = amounts[:7]
        (electricity, no_tariff, rental, no_rental, requests, prompt, output) = amounts[7:]
        yield ReportLine(
            start_s=start_s,
            end_s=end_s,
            site=site,
            kind=kind,
            tenant=None if tenant_id is None else names.tenant(tenant_id),
            service=service,
            pool=None if pool is None else pool.name,
            model=None if pool is None else pool.model or None,
            currency=currency,
            energy_uj=energy,
            facility_uj=facility,
            gpu_us=gpu_us,
            location_ug=carbon,
            location_missing_uj=no_carbon,
            embodied_ug=embodied,
            embodied_missing_us=no_embodied,
            electricity_nano=electricity,
            electricity_missing_uj=no_tariff,
            rental_nano=rental,
            rental_missing_us=no_rental if basis.sites[site].rented else 0,
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
        )


def site_bases(scope: Scope) -> dict[str, SiteBasis]:
    """The sites that have settled something in the period. Raises ValueError: the ledger is not as it must be."""
    sites = Site.objects.in_bulk(scope.site_ids)
    found = {}
    for site_id, currency, other, facility_uj, rented in _rows(SITES_SQL, scope.params):
        site = sites[site_id]
        if currency != other:
            raise ValueError(f"site {site.name} changed its currency from {currency} to {other} within the period")
        found[site.name] = SiteBasis(site.pk, site.label or site.name, currency, site.rank, rented, facility_uj)
    return dict(sorted(found.items()))


def pool_bases(site_ids: Sequence[int]) -> dict[str, PoolBasis]:
    """All pools of these sites by id."""
    pools = Pool.objects.filter(site__in=site_ids).select_related("site", "service__model_card", "request_class")
    found = {}
    for pool in pools.order_by("pk"):
        name = f"{pool.service.name}/{pool.site.name}/{pool.request_class.name}"
        found[str(pool.pk)] = PoolBasis(name, pool.site.name, pool.service.name, pool.service.model_card.name)
    return found


def tenant_bases() -> dict[str, tuple[str, str]]:
    return {str(tenant.pk): (tenant.name, tenant.label or tenant.name) for tenant in Tenant.objects.order_by("pk")}


def contracts(scope: Scope) -> tuple[Contract, ...]:
    """The instruments that hold at some time of the period and have not been replaced."""
    period = scope.period
    rows = Instrument.objects.filter(
        Q(replaced_by__isnull=True), site__in=scope.site_ids, valid_from__lt=period.end, valid_to__gt=period.start
    )
    return tuple(
        Contract(
            site=row.site.name,
            kind=row.kind,
            factor_g_per_kwh=f"{row.factor_g_per_kwh.normalize():f}",
            volume_wh=None if row.volume_kwh is None else int(row.volume_kwh * 1_000),
            start_s=int(row.valid_from.timestamp()),
            end_s=int(row.valid_to.timestamp()),
            source=row.source,
        )
        for row in rows.select_related("site").order_by("pk")
    )


def slo_counts(
    scope: Scope, pools: Mapping[str, PoolBasis], tenants: Mapping[str, tuple[str, str]], every: bool
) -> tuple[SloCount, ...]:
    """Requests that began in the period. `every`: those too that never came to a pool, and so to no site."""
    found = []
    for pool_id, tenant_id, service, requests, judged, met, without in _rows(SLO_SQL, scope.params):
        pool = pools.get(str(pool_id))
        if pool is None and not every:
            continue
        tenant = tenants.get(str(tenant_id), (f"tenant-{tenant_id}", ""))[0] if tenant_id is not None else None
        site, name, model = (pool.site, pool.name, pool.model) if pool else (None, None, None)
        found.append(SloCount(site, tenant, service or None, name, model, requests, judged, met, without))
    return tuple(found)


def meters(scope: Scope) -> tuple[MeterBasis, ...]:
    """Every GPU's counter and the ledger's entries of it. Takes its time: all entries of these GPUs are added up."""
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


def demand_charges(scope: Scope) -> tuple[DemandCharge, ...]:
    """Of the local months that the period covers, but for an hour or so where its zone is not the site's."""
    period, found = scope.period, []
    for site in Site.objects.filter(pk__in=scope.site_ids).order_by("name"):
        first = period.start.astimezone(ZoneInfo(site.time_zone)).date().replace(day=1)
        months = [first]
        while months[-1] <= period.end.date():
            months.append((months[-1] + timedelta(days=32)).replace(day=1))
        for month in months:
            start_s, end_s = (round(at_s) for at_s in tariffs.month_s(site.time_zone, month))
            shared_s = min(end_s, period.end_s) - max(start_s, period.start_s)
            peak = statements.peak(site, month, scope.version) if shared_s >= COVERED * (end_s - start_s) else None
            if peak is not None and peak.charge != 0:
                charge = None if peak.charge is None else round(peak.charge * 1e9)
                words = f"{month:%Y-%m}"
                found.append(DemandCharge(site.name, words, start_s, end_s, peak.power_w, charge, peak.currency))
    return tuple(found)


def first_reading_s(scope: Scope) -> int:
    """When the first GPU of these sites was first metered; the period's end where none ever was."""
    opened = MeterMark.objects.filter(gpu__node__cluster__site__in=scope.site_ids).aggregate(first=Min("opened_at"))
    first = opened["first"]
    return scope.period.end_s if first is None else int(first.timestamp())


def intensities_ug_per_uj(scope: Scope) -> dict[str, float | None]:
    """By site, location-based micrograms for each microjoule at its GPUs in the period; None where some are unknown."""
    sites = {site.pk: site.name for site in Site.objects.filter(pk__in=scope.site_ids)}
    return {
        sites[site_id]: float(carbon_ug / energy_uj) if energy_uj and not unknown_uj else None
        for site_id, carbon_ug, energy_uj, unknown_uj in _rows(INTENSITY_SQL, scope.params)
    }


@dataclass(frozen=True, slots=True)
class _Names:
    sites: Mapping[int, str]
    pools: Mapping[int, PoolBasis]
    tenants: Mapping[int, str]

    @classmethod
    def of(cls, basis: Basis) -> _Names:
        return cls(
            {site.pk: name for name, site in basis.sites.items()},
            {int(pk): pool for pk, pool in basis.pools.items()},
            {int(pk): tenant[0] for pk, tenant in basis.tenants.items()},
        )

    def pool(self, pool_id: int | None) -> PoolBasis | None:
        if pool_id is None:
            return None
        return self.pools.get(pool_id) or PoolBasis(f"pool-{pool_id}", "", "", "")

    def tenant(self, tenant_id: int) -> str:
        return self.tenants.get(tenant_id, f"tenant-{tenant_id}")


def _rows(sql: str, params: Mapping[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found: list[Any] = cursor.fetchall()
        return found


def _stream(sql: str, params: Mapping[str, Any]) -> Iterator[Any]:
    """Rows from a cursor that the server holds; it needs no transaction, so that progress is seen meanwhile."""
    connection.ensure_connection()
    with connection.connection.cursor(name=f"report_{uuid4().hex}", withhold=True) as cursor:
        cursor.itersize = CHUNK_ROWS
        cursor.execute(sql, params)
        yield from cursor
