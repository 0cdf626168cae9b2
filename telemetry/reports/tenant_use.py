"""What tenants and services used, from the settled ledger's hours: sums that reports of the same whole hours have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Max

from telemetry.models import Settlement
from telemetry.report_values.line_blocks import AMOUNTS
from telemetry.report_values.totals import IDLE_KINDS, Totals

from .ledger_source import SUMMED

HOUR_S = 3_600
PARTS: Mapping[str, str] = {  # what sums may be parted by, in SQL
    "tenant": "tenant_id",
    "site": "site_id",
    "service": "nullif(service, '')",
    "adapter": "nullif(adapter, '')",
    "day": "floor(extract(epoch FROM start_at - %(days_from)s) / 86400)::int",
}
SUMS = ", ".join(f"sum({stored}) AS {name}" for name, stored in zip(AMOUNTS, SUMMED, strict=True))
HOURS = """
FROM telemetry_statementhour
WHERE lines > 0 AND start_at >= %(start)s AND start_at < %(end)s AND site_id = ANY(%(sites)s)
"""
USE_SQL = f"""
SELECT {{parts}} site_id, currency, count(*) AS lines, {SUMS},
       coalesce(sum(energy_uj) FILTER (WHERE kind = ANY(%(idle)s)), 0) AS idle_uj
{HOURS} AND (%(tenant)s::bigint IS NULL OR tenant_id = %(tenant)s)
  AND (%(service)s = '' OR service = %(service)s) AND (%(adapter)s = '' OR adapter = %(adapter)s) {{nobody}}
GROUP BY {{groups}}
"""
# As in a report: where a site has no rate for GPU-hours at all, they are no part of its cost, and so not missing.
RENTED_SQL = """
SELECT s.id FROM unnest(%(sites)s::bigint[]) AS s (id)
WHERE EXISTS (
    SELECT FROM telemetry_statementhour
    WHERE lines > 0 AND rental_unknown_us < gpu_us AND site_id = s.id AND start_at >= %(start)s AND start_at < %(end)s
)
"""
UNSETTLED_SQL = f"""
SELECT (SELECT coalesce(sum(energy_uj), 0) FROM telemetry_siteenergy
        WHERE step_s = {HOUR_S} AND start_at >= %(start)s AND start_at < %(end)s AND site_id = ANY(%(sites)s))
     - (SELECT coalesce(sum(energy_uj), 0) FROM (
            SELECT DISTINCT ON (site_id, start_at) energy_uj FROM telemetry_settlement
            WHERE start_at >= %(start)s AND start_at < %(end)s AND site_id = ANY(%(sites)s)
            ORDER BY site_id, start_at, revision DESC) AS newest)
"""


@dataclass(frozen=True, slots=True)
class Use:
    """The sums of one group. `key` has a value for each part that was asked for; sites and tenants by their id.

    `served`: requests that instances took. Those of `totals` are counted by reports alone, refused ones too.
    """

    key: tuple[Any, ...]
    currency: str
    totals: Totals
    served: int


@dataclass(frozen=True, slots=True)
class HourSpan:
    """Whole UTC hours of some sites.

    `tenant_id` None: of all tenants, and not of nobody. `service`: of its requests alone, those without a tenant too;
    empty: of all. `adapter`: of those that asked for it; empty: of all.
    """

    start: datetime
    end: datetime
    site_ids: tuple[int, ...]
    tenant_id: int | None = None
    service: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        if self.start.timestamp() % HOUR_S or self.end.timestamp() % HOUR_S:
            raise ValueError("a span of settled hours begins and ends with whole hours")


def rented(span: HourSpan) -> frozenset[int]:
    """Returns the sites at which GPU-hours had a rate in the span, whoever used them. One query."""
    return frozenset(site_id for (site_id,) in _rows(RENTED_SQL, _params(span)))


def use(
    span: HourSpan,
    by: Sequence[str] = (),
    days_from: datetime | None = None,
    rented_sites: frozenset[int] | None = None,
) -> list[Use]:
    """Returns the sums of each group, in the order of the parts. Two queries.

    Args:
        by: Of `PARTS`; `day` counts days of 24 hours from `days_from` on, the span's start where it is None.
        rented_sites: Those of a longer span, of which this one is a part; None: those of the span.
    """
    params = {
        **_params(span),
        "tenant": span.tenant_id,
        "service": span.service,
        "adapter": span.adapter,
        "idle": list(IDLE_KINDS),
        "days_from": days_from or span.start,
    }
    parts = "".join(f"{PARTS[name]} AS part_{n}, " for n, name in enumerate(by))
    groups = ", ".join(str(n + 1) for n in range(len(by) + 2))
    nobody = "" if span.tenant_id is not None or span.service else "AND tenant_id IS NOT NULL"
    with_rate = rented(span) if rented_sites is None else rented_sites
    found: dict[tuple[Any, ...], Totals] = {}
    served: Counter[tuple[Any, ...]] = Counter()
    for row in _rows(USE_SQL.format(parts=parts, groups=groups, nobody=nobody), params):
        key, (site_id, currency, lines), amounts = row[: len(by)], row[len(by) : len(by) + 3], row[len(by) + 3 : -1]
        values = {name: int(value) for name, value in zip(AMOUNTS, amounts, strict=True)}
        served[*key, currency] += values["requests"]
        values["requests"] = 0
        if site_id not in with_rate:
            values["rental_missing_us"] = 0
        totals = found.setdefault((*key, currency), Totals())
        totals += Totals(lines=lines, idle_uj=int(row[-1]), market_missing_uj=values["facility_uj"], **values)
    order = sorted(found, key=lambda key: tuple((part is None, part) for part in key))
    return [Use(key[:-1], key[-1], found[key], served[key]) for key in order]


def grouped(uses: Sequence[Use]) -> dict[Any, list[Use]]:
    """Returns the uses by the first part of their keys, in the order in which they come."""
    found: dict[Any, list[Use]] = {}
    for one in uses:
        found.setdefault(one.key[0], []).append(one)
    return found


def added_up(uses: Sequence[Use]) -> dict[str, Totals]:
    """Returns the sums of some groups by currency, since money of two is never added."""
    found: dict[str, Totals] = {}
    for one in uses:
        totals = found.setdefault(one.currency, Totals())
        totals += one.totals
    return dict(sorted(found.items()))


def settled_until(site_ids: Sequence[int], since: datetime) -> datetime | None:
    """Returns up to when all sites that settled something since are settled; None: none did."""
    ends = (
        Settlement.objects.filter(site__in=site_ids, start_at__gte=since)
        .values_list("site")
        .annotate(end=Max("end_at"))
        .values_list("end", flat=True)
    )
    return min(ends, default=None)


def unsettled_uj(span: HourSpan) -> int:
    """Returns what the meters showed in the span, of everybody, that is not settled: nobody's so far."""
    ((energy_uj,),) = _rows(UNSETTLED_SQL, _params(span))
    return max(0, int(energy_uj))


def newest_version(span: HourSpan) -> int:
    """Returns the ledger's version of what the span says; 0: nothing of it is settled."""
    windows = Settlement.objects.filter(site__in=span.site_ids, start_at__gte=span.start, start_at__lt=span.end)
    found: int | None = windows.aggregate(newest=Max("id"))["newest"]
    return found or 0


def whole_hour(at: datetime) -> datetime:
    """Returns the whole hour at or before."""
    return at.replace(minute=0, second=0, microsecond=0)


def _params(span: HourSpan) -> dict[str, Any]:
    return {"start": span.start, "end": span.end, "sites": list(span.site_ids)}


def _rows(sql: str, params: Mapping[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
