"""Reads the settled ledger, as of now or as of a version of then.

Versions are ids of settlements (`settlement.version`). What is valid as of a version is the sum of all lines of
settlements up to it: a restated window's reversal takes its earlier lines out of that sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.db import connection

from core.accounting import tariffs
from core.units import US_PER_S
from pools.models import Site
from telemetry.ledger.rates import Rates
from telemetry.ledger.settlement import version
from telemetry.models import RequestRecord

QUARTERS_SQL = """
SELECT to_timestamp(floor(extract(epoch FROM s.start_at) / %(step_s)s) * %(step_s)s) AS at,
       sum(l.facility_uj)::bigint AS uj
FROM telemetry_settlement s JOIN telemetry_statementline l ON l.settlement_id = s.id
WHERE s.site_id = %(site)s AND s.start_at >= %(start)s AND s.start_at < %(end)s AND s.id <= %(version)s
GROUP BY 1 ORDER BY uj DESC, at LIMIT 1
"""
QUARTER_USE_SQL = """
SELECT l.tenant_id, sum(l.facility_uj)::bigint
FROM telemetry_settlement s JOIN telemetry_statementline l ON l.settlement_id = s.id
WHERE s.site_id = %(site)s AND s.start_at >= %(start)s AND s.start_at < %(end)s AND s.id <= %(version)s
  AND l.kind = 'serving'
GROUP BY 1 HAVING sum(l.facility_uj) > 0 ORDER BY 1 NULLS LAST
"""
# A request's line is its adapter's; in windows that were settled before lines said it, that of no adapter.
SHARES_SQL = """
SELECT sum(h.prefill_uj)::bigint, sum(h.decode_uj)::bigint, sum(h.gpu_us)::bigint,
       sum((h.prefill_uj + h.decode_uj) * l.carbon_ug::float8 / nullif(l.energy_uj - l.carbon_unknown_uj, 0)),
       sum((h.prefill_uj + h.decode_uj) * l.cost_nano::float8 / nullif(l.energy_uj - l.cost_unknown_uj, 0)),
       bool_or(l.carbon_unknown_uj > 0 OR l.energy_uj IS NULL), bool_or(l.cost_unknown_uj > 0 OR l.energy_uj IS NULL)
FROM telemetry_requestshare h
JOIN LATERAL (
    SELECT s.id, s.shares_id FROM telemetry_settlement s
    WHERE s.start_at = h.start_at AND s.site_id = %(site)s AND s.id <= %(version)s ORDER BY s.revision DESC LIMIT 1
) newest ON newest.shares_id = h.settlement_id
LEFT JOIN LATERAL (
    SELECT * FROM telemetry_statementline
    WHERE settlement_id = newest.id AND entry <> 'reversal' AND kind = 'serving' AND pool_id = %(pool)s
      AND service = %(service)s AND tenant_id IS NOT DISTINCT FROM %(tenant)s AND adapter IN (%(adapter)s, '')
    ORDER BY adapter = %(adapter)s DESC LIMIT 1
) l ON true
WHERE h.started_at = %(started_at)s AND h.request_id = %(request)s
  AND h.start_at > %(started_at)s - interval '5 minutes'
  AND h.start_at <= %(started_at)s + interval '20 minutes'
"""


@dataclass(frozen=True, slots=True)
class RequestUse:
    """What a request used. `measured`: its share of the meters; else what routing predicted before it ran.

    Carbon and cost are at its line's mean over each window of five minutes; None where a part of it is not known.
    """

    measured: bool
    energy_j: float
    prefill_j: float | None = None
    decode_j: float | None = None
    gpu_s: float | None = None
    carbon_gco2e: float | None = None
    cost: float | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """A site's highest quarter of an hour in a local month, and what the tariff charges for it."""

    start_at: datetime
    power_w: float  # at the site's meter, PUE included
    charge: float | None  # None: no tariff was in force
    currency: str


def of_request(record: RequestRecord, as_of: int | None = None) -> RequestUse | None:
    """Returns a request's energy, carbon and cost; before it is settled its prediction; None: neither is known."""
    if record.pool is not None:
        params: Mapping[str, Any] = {
            "site": record.pool.site_id,
            "pool": record.pool_id,
            "service": record.service,
            "tenant": record.tenant_id,
            "adapter": record.adapter or "",
            "started_at": record.started_at,
            "request": record.request_id,
            "version": version() if as_of is None else as_of,
        }
        with connection.cursor() as cursor:
            cursor.execute(SHARES_SQL, params)
            prefill, decode, gpu_us, carbon_ug, cost_nano, no_carbon, no_cost = cursor.fetchone()
        if prefill is not None:
            return RequestUse(
                measured=True,
                energy_j=(prefill + decode) / 1e6,
                prefill_j=prefill / 1e6,
                decode_j=decode / 1e6,
                gpu_s=gpu_us / US_PER_S,
                carbon_gco2e=None if no_carbon else carbon_ug / 1e6,
                cost=None if no_cost else cost_nano / 1e9,
                currency=record.pool.site.currency,
            )
    return None if record.predicted_energy_j is None else RequestUse(False, record.predicted_energy_j)


def peak(site: Site, month: date, as_of: int | None = None) -> Peak | None:
    """Returns the month's peak by the site's calendar, of the quarters of an hour that are settled; None: none is."""
    start_s, end_s = tariffs.month_s(site.time_zone, month)
    params: dict[str, Any] = {
        "site": site.pk,
        "start": datetime.fromtimestamp(start_s).astimezone(),
        "end": datetime.fromtimestamp(end_s).astimezone(),
        "version": version() if as_of is None else as_of,
        "step_s": tariffs.DEMAND_S,
    }
    with connection.cursor() as cursor:
        cursor.execute(QUARTERS_SQL, params)
        found = cursor.fetchone()
    if found is None:
        return None
    start_at, facility_uj = found
    power_w, terms = facility_uj / 1e6 / tariffs.DEMAND_S, Rates.of(site).at(start_at).terms
    return Peak(start_at, power_w, None if terms is None else tariffs.demand_charge(terms, power_w), site.currency)


def quarter_use(site: Site, start_at: datetime, as_of: int) -> list[tuple[int | None, int]]:
    """Returns what each tenant's requests took in a quarter of an hour, in microjoules at the site's meter, by id."""
    end_at = start_at + timedelta(seconds=tariffs.DEMAND_S)
    with connection.cursor() as cursor:
        cursor.execute(QUARTER_USE_SQL, {"site": site.pk, "start": start_at, "end": end_at, "version": as_of})
        return list(cursor.fetchall())
