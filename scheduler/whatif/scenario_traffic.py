"""Requests for scenarios: those of a past period as they came, or generated ones like those of late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Avg, Count, Max, Min

from pools.models import Service
from telemetry.models import RequestRecord

from .errors import BadStudy

MOST_REQUESTS = 1_000_000
RECENT = timedelta(hours=1)
FEW = 100  # requests whose lengths say too little
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
USABLE = "status = 'ok' AND prompt_tokens > 0 AND output_tokens > 0"
PERIOD = (
    "r.started_at >= %(start)s AND r.started_at < %(end)s "
    "AND (%(sites)s::bigint[] IS NULL OR p.site_id = ANY(%(sites)s))"
)
SOURCE = "telemetry_requestrecord r LEFT JOIN pools_pool p ON p.id = r.pool_id"
COUNT_SQL = f"""
SELECT service, count(*) FILTER (WHERE {USABLE}), count(*) FILTER (WHERE NOT ({USABLE})), min(started_at)
       FILTER (WHERE {USABLE})
FROM {SOURCE} WHERE {PERIOD} GROUP BY 1 ORDER BY 1
"""
TRACE_SQL = f"""
COPY (SELECT to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS "TIMESTAMP",
             prompt_tokens AS "ContextTokens", output_tokens AS "GeneratedTokens",
             nullif(greatest(predicted_output_tokens, 0), 0) AS "PredictedTokens"
      FROM {SOURCE} WHERE {PERIOD} AND (%(service)s = '' OR service = %(service)s) AND {USABLE}
      ORDER BY started_at, request_id) TO STDOUT (FORMAT csv, HEADER)
"""
LENGTHS_SQL = f"""
SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY prompt_tokens),
       percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY output_tokens)
FROM {SOURCE} WHERE {PERIOD} AND service = %(service)s AND {USABLE}
"""


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end) of what came; `site_ids` None: at any site."""

    start: datetime
    end: datetime
    site_ids: tuple[int, ...] | None = None

    def params(self, **more: Any) -> dict[str, Any]:
        sites = None if self.site_ids is None else list(self.site_ids)
        return {"start": self.start, "end": self.end, "sites": sites, **more}


@dataclass(frozen=True, slots=True)
class Counted:
    """The requests of a service in a period: the usable ones, those that lack tokens or failed, and the first."""

    requests: int
    left_out: int
    first: datetime


def recorded_period() -> tuple[datetime, datetime] | None:
    """Returns the moments of the first and the last record; None: there is none."""
    found = RequestRecord.objects.aggregate(first=Min("started_at"), last=Max("started_at"))
    return (found["first"], found["last"]) if found["first"] is not None else None


def counted(period: Period) -> dict[str, Counted]:
    """Counts requests by service; those without a usable one are left out.

    Raises BadStudy when there is none, or too many.
    """
    with connection.cursor() as cursor:
        cursor.execute(COUNT_SQL, period.params())
        found = {name: Counted(own, left, first) for name, own, left, first in cursor.fetchall() if own}
    total = sum(own.requests for own in found.values())
    span = f"{period.start:%Y-%m-%d %H:%M} to {period.end:%Y-%m-%d %H:%M} UTC"
    if not total:
        known = recorded_period()
        words = (
            f"there are records from {known[0]:%Y-%m-%d %H:%M} to {known[1]:%Y-%m-%d %H:%M} UTC"
            if known
            else ("there is no record of any request yet")
        )
        raise BadStudy("traffic.from", f"no request with its tokens counted began from {span}; {words}")
    if total > MOST_REQUESTS:
        raise BadStudy("traffic.to", f"{total:,} requests are more than {MOST_REQUESTS:,}: take a shorter period")
    return found


def trace(period: Period, service: str) -> bytes:
    """Returns the period's requests of a service ("" for all) as a trace in the Azure format, in order of arrival."""
    parts = []
    with connection.cursor() as cursor, cursor.copy(TRACE_SQL, period.params(service=service)) as copy:
        parts = [bytes(part) for part in copy]
    return b"".join(parts)


def generated(service: Service, now: datetime, site_ids: Sequence[int] | None) -> tuple[dict[str, Any], str]:
    """Returns a workload like the last hour's, or what the service declares; and where it is from, as a sentence."""
    period = Period(now - RECENT, now, None if site_ids is None else tuple(site_ids))
    rows = RequestRecord.objects.filter(service=service.name, started_at__gte=period.start, started_at__lt=period.end)
    seen = rows.aggregate(n=Count("request_id"), first=Min("started_at"), prompt=Avg("prompt_tokens"))
    if seen["n"] >= FEW and seen["prompt"] is not None:
        span_s = max(1.0, (now - seen["first"]).total_seconds())
        with connection.cursor() as cursor:
            cursor.execute(LENGTHS_SQL, period.params(service=service.name, shares=list(SHARES)))
            prompt, output = cursor.fetchone()
        if prompt is not None:
            rate_rps = seen["n"] / span_s
            lengths = {"prompt": _table(prompt), "output": _table(output)}
            workload = {"generate": "poisson", "rate_rps": round(rate_rps, 4), "lengths": lengths}
            return workload, f"{service.name}: generated at the last hour's mean rate, {rate_rps:.3g}/s, and lengths."
    if service.expected_rps:
        workload = {
            "generate": "poisson",
            "rate_rps": service.expected_rps,
            "lengths": "exponential",
            "prompt_tokens": service.expected_prompt_tokens,
            "output_tokens": service.expected_output_tokens,
        }
        return workload, f"{service.name}: generated at its declared load, {service.expected_rps:g}/s."
    return (
        {"generate": "poisson", "rate_rps": 1.0, "lengths": "azure-conv"},
        f"{service.name}: it has neither {FEW} requests in the last hour nor a declared load; 1/s is assumed, with "
        "lengths of the Azure conversation trace.",
    )


def _table(tokens: Sequence[int]) -> Mapping[str, Any]:
    return {"quantiles": {"shares": list(SHARES), "tokens": [int(max(1, value)) for value in tokens]}}
