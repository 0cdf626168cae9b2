"""Reads what a report's figures rest on besides the meters: by the settlements that are in it, which remember it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Model

from pools.models import Service, Site
from telemetry.models import EmbodiedFactor, GpuRate, Pue, Tariff
from telemetry.models.rates import Version
from telemetry.report_values.inputs import (
    EMBODIED,
    GPU_RATE,
    INTENSITY,
    PUE,
    TARIFF,
    FactorUse,
    ReportInput,
    ReportInputs,
    SyntheticSpan,
)

from .ledger_source import HOURS_SQL, Scope, newest_sql

# Each rate that valued a window: its kind, the GPU type that it is for, and [id, figure, source, version].
RATES_SQL = f"""
WITH {newest_sql("sources")},
used AS (
    SELECT site_id, start_at, end_at, 'pue' AS kind, '' AS gpu_type, sources->'pue' AS named FROM newest
    UNION ALL SELECT site_id, start_at, end_at, 'tariff', '', sources->'tariff' FROM newest
    UNION ALL SELECT site_id, start_at, end_at, 'gpu_rate', r.key, r.value
              FROM newest, jsonb_each(sources->'gpu_rates') r
    UNION ALL SELECT site_id, start_at, end_at, 'embodied', r.key, r.value
              FROM newest, jsonb_each(sources->'embodied') r
)
SELECT site_id, kind, gpu_type, named, min(start_at), max(end_at) FROM used
WHERE jsonb_typeof(named) = 'array' GROUP BY 1, 2, 3, 4 ORDER BY 1, 2 DESC, 3, 5
"""
# The newest point of each window says where its intensity is from; the energy is what it valued.
INTENSITY_SQL = f"""
WITH {newest_sql("sources", "energy_uj")}
SELECT n.site_id, p.provider, p.zone, p.factor, f.provider, f.source, min(n.start_at), max(n.end_at),
       sum(n.energy_uj), coalesce(sum(n.energy_uj) FILTER (WHERE p.estimated), 0), max(p.issued_at)
FROM newest n
LEFT JOIN telemetry_carbonpoint p ON p.id = (n.sources->'carbon'->>0)::bigint
LEFT JOIN telemetry_carbonfeed f ON f.id = p.feed_id
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 7
"""
FACTORS_SQL = f"""
WITH {newest_sql("sources", "energy_uj")}
SELECT n.site_id, p.factor, sum(n.energy_uj)
FROM newest n JOIN telemetry_carbonpoint p ON p.id = (n.sources->'carbon'->>0)::bigint
GROUP BY 1, 2 ORDER BY 1, 2
"""
MEANS_SQL = f"""
WITH {HOURS_SQL}
SELECT site_id, sum(carbon_ug), sum(facility_uj), sum(energy_uj), sum(carbon_unknown_uj) FROM hours GROUP BY 1
"""
SYNTHETIC_SQL = """
SELECT e.site_id, min(e.start_at), max(e.start_at + interval '1 hour'), count(DISTINCT e.gpu_id), sum(e.energy_uj)
FROM telemetry_gpuenergy e JOIN pools_gpu g ON g.id = e.gpu_id JOIN pools_node d ON d.id = g.node_id
WHERE e.step_s = 3600 AND d.simulated AND e.site_id = ANY(%(sites)s)
  AND e.start_at >= date_trunc('hour', %(start)s::timestamptz, 'UTC') AND e.start_at < %(end)s
GROUP BY 1 ORDER BY 1
"""
UG_PER_UJ_IN_G_PER_KWH = 3_600_000.0  # a microgram for each microjoule is as many grams for each kWh


def report_inputs(scope: Scope) -> ReportInputs:
    """Returns the inputs of a period as of the scope's version of the ledger."""
    names = dict(Site.objects.filter(pk__in=scope.site_ids).values_list("pk", "name"))
    rates = (*_rates(scope, names), *_intensities(scope, names))
    return ReportInputs(rates, _allocations(scope), tuple(_synthetic(scope, names)), tuple(_factors(scope, names)))


# -- rates and factors -----------------------------------------------------------------------------


def _rates(scope: Scope, names: Mapping[int, str]) -> Iterator[ReportInput]:
    currencies = dict(Site.objects.filter(pk__in=scope.site_ids).values_list("pk", "currency"))
    for site_id, kind, gpu_type, named, start, end in _rows(RATES_SQL, scope):
        pk, figure, source, version = json.loads(named)
        row = _row(kind, pk)
        yield ReportInput(
            kind=KINDS[kind],
            site=names[site_id],
            value=_value(kind, gpu_type, figure, currencies[site_id], row),
            source=source,
            version=version,
            used_from_s=int(start.timestamp()),
            used_to_s=int(end.timestamp()),
            valid_from_s=_seconds(row.valid_from if row else None),
            valid_to_s=_seconds(row.valid_to if row else None),
        )


KINDS = {"pue": PUE, "tariff": TARIFF, "gpu_rate": GPU_RATE, "embodied": EMBODIED}
MODELS: Mapping[str, type[Version]] = {"pue": Pue, "tariff": Tariff, "gpu_rate": GpuRate, "embodied": EmbodiedFactor}


def _row(kind: str, pk: int | None) -> Any:
    """Returns the row that a settlement names; None: a default, which has none."""
    model: type[Model] = MODELS[kind]
    return None if pk is None else model._default_manager.filter(pk=pk).first()


def _value(kind: str, gpu_type: str, figure: float, currency: str, row: Any) -> str:
    if kind == "pue":
        return f"{figure:g}"
    if kind == "gpu_rate":
        return f"{gpu_type}: {figure:g} {currency}/h"
    if kind == "embodied":
        years = f" over {row.lifespan_years:g} years" if row else ""
        return f"{gpu_type or 'any GPU'}: {figure:g} kgCO2e{years}"
    windows = [f"{one['from']}-{one['to']} {one['price_per_kwh']:g}" for one in (row.windows if row else ())]
    demand = [f"{row.demand_per_kw:g} {currency}/kW of the month's peak"] if row and row.demand_per_kw else []
    return "; ".join([f"{figure:g} {currency}/kWh", *windows, *demand])


# -- intensities -----------------------------------------------------------------------------------


def _intensities(scope: Scope, names: Mapping[int, str]) -> Iterator[ReportInput]:
    """Yields a row for each source of a site's intensities, with the site's mean and the quality of it."""
    means = {site_id: sums for site_id, *sums in _rows(MEANS_SQL, scope)}
    for site_id, provider, zone, factor, fed_by, source, start, end, energy, estimated, issued in _rows(
        INTENSITY_SQL, scope
    ):
        used = int(start.timestamp()), int(end.timestamp())
        found = ReportInput(INTENSITY, names[site_id], "unknown", "no source", "", *used)
        carbon_ug, facility_uj, energy_uj, unknown_uj = means[site_id]
        if issued is not None:
            who = ", ".join(filter(None, (provider or fed_by, zone and f"zone {zone}", factor, source)))
            known = energy_uj - unknown_uj
            mean = float(carbon_ug) / float(facility_uj * known / energy_uj) * UG_PER_UJ_IN_G_PER_KWH if known else None
            words = "unknown" if mean is None else f"{mean:,.1f} gCO2e/kWh, the site's mean"
            found = replace(
                found, source=who, value=words, version=f"average, issued until {issued:%Y-%m-%d %H:%M} UTC"
            )
        yield replace(found, quality=_quality(energy, estimated, energy_uj, unknown_uj))


def _factors(scope: Scope, names: Mapping[int, str]) -> Iterator[FactorUse]:
    """Yields how much of a site's energy direct, lifecycle and undeclared intensities valued."""
    for site_id, factor, energy_uj in _rows(FACTORS_SQL, scope):
        yield FactorUse(names[site_id], factor, int(energy_uj))


def _quality(energy_uj: int, estimated_uj: int, site_uj: int, unknown_uj: int) -> str:
    estimated = f"{100 * estimated_uj / energy_uj:.1f} % of its energy by estimated values" if energy_uj else ""
    missing = f"{100 * unknown_uj / site_uj:.1f} % of the site's without a value" if site_uj else ""
    return ", ".join(filter(None, (estimated, missing)))


# -- reserved shares, synthetic data ---------------------------------------------------------------


def _allocations(scope: Scope) -> dict[str, dict[str, str]]:
    """Returns the shares that gateways keep for tenants, by service: those of the policy in force."""
    found = {}
    for service in Service.objects.filter(pools__site__in=scope.site_ids).distinct().order_by("name"):
        weights = service.policy_knobs().tenant_weights
        if weights:
            found[service.name] = {tenant: f"{weight:g}" for tenant, weight in sorted(weights.items())}
    return found


def _synthetic(scope: Scope, names: Mapping[int, str]) -> Iterator[SyntheticSpan]:
    for site_id, start, end, gpus, energy_uj in _rows(SYNTHETIC_SQL, scope):
        yield SyntheticSpan(names[site_id], int(start.timestamp()), int(end.timestamp()), gpus, int(energy_uj))


def _rows(sql: str, scope: Scope) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, scope.params)
        found: list[Any] = cursor.fetchall()
        return found


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
