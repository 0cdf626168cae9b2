"""The inputs of a window's settlement: joules, requests, intensities and rates, and the versions of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from pools.models import Site
from telemetry.carbon.site_signals import LONGEST_INTERVAL, IntensityCurve
from telemetry.ledger.energy_entries import INTERVAL_S
from telemetry.ledger.rates import InForce, Rates
from telemetry.models import CarbonFeed, CarbonPoint

WINDOW_S = 300.0
INTERVALS = round(WINDOW_S / INTERVAL_S)
LONGEST_REQUEST_S = 900.0  # no request runs longer
LATE = timedelta(days=1)  # for so long request records may still come in

ENERGY_SQL = """
SELECT floor(extract(epoch FROM start_at - %(start)s) / %(window_s)s)::int, sum(energy_uj)::bigint
FROM telemetry_energyrollup
WHERE step_s = 60 AND site_id = %(site)s AND start_at >= %(start)s AND start_at < %(end)s GROUP BY 1
"""
HOST_SQL = """
SELECT floor(extract(epoch FROM start_at - %(start)s) / %(window_s)s)::int, sum(energy_uj)::bigint
FROM telemetry_hostentry WHERE site_id = %(site)s AND start_at >= %(start)s AND start_at < %(end)s GROUP BY 1
"""
REQUESTS_SQL = """
SELECT floor(extract(epoch FROM started_at - %(start)s) / %(window_s)s)::int, count(*),
       coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(output_tokens, 0)), 0)::bigint
FROM telemetry_requestrecord
WHERE pool_id = ANY(%(pools)s) AND started_at >= %(start)s - %(before)s AND started_at < %(end)s GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class Basis:
    """Of one window. `g_per_kwh`: of each of its intervals, None where the feed has no value for all of it."""

    energy_uj: int
    requests: int  # that started in it
    g_per_kwh: tuple[float | None, ...]
    in_force: InForce
    sources: Mapping[str, Any]


def basis(
    site: Site, start: datetime, end: datetime, known: Mapping[datetime, Mapping[str, Any]]
) -> dict[datetime, Basis]:
    """Of each window in [start, end).

    Args:
        known: The sources by which windows were settled: what they say of requests that can no longer come late, and
            of an intensity of which no point was added since, is not looked up again.
    """
    count = round((end - start).total_seconds() / WINDOW_S)
    starts = [start + timedelta(seconds=WINDOW_S * i) for i in range(count)]
    fresh = any(at not in known or datetime.now(UTC) - at < LATE for at in starts)
    energy, host = _energy(ENERGY_SQL, site, start, end), _energy(HOST_SQL, site, start, end)
    requests = _requests(site, start, end) if fresh else {}
    points, rates, curve = _newest_points(site, starts), Rates.of(site), None
    found = {}
    for i, at in enumerate(starts):
        before = known.get(at)
        carbon = before["carbon"] if before else None
        if carbon is None or carbon[0] != points[i]:
            curve = curve or IntensityCurve(site, start, end)
            carbon = [points[i], _runs(curve, at)]
            if before and before["carbon"][1] == carbon[1]:
                carbon = before["carbon"]  # a point that says nothing new
        came = before["requests"] if before and not fresh else _may_have_run(requests, i)
        in_force = rates.at(at)
        sources = {"energy": energy.get(i, 0), "requests": came, "carbon": carbon, **in_force.sources}
        if i in host:  # where no host is metered, sources are what they were before there were any
            sources["host"] = host[i]
        values = itertools.chain.from_iterable([value] * intervals for value, intervals in carbon[1])
        found[at] = Basis(energy.get(i, 0), requests.get(i, (0, 0))[0], tuple(values), in_force, sources)
    return found


def _energy(sql: str, site: Site, start: datetime, end: datetime) -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"site": site.pk, "start": start, "end": end, "window_s": WINDOW_S})
        return dict(cursor.fetchall())


def _requests(site: Site, start: datetime, end: datetime) -> dict[int, tuple[int, int]]:
    """Returns (requests, tokens) of those that started in each window, and in those shortly before."""
    params: dict[str, Any] = {
        "pools": list(site.pools.values_list("pk", flat=True)),
        "start": start,
        "end": end,
        "window_s": WINDOW_S,
        "before": timedelta(seconds=LONGEST_REQUEST_S),
    }
    with connection.cursor() as cursor:
        cursor.execute(REQUESTS_SQL, params)
        return {i: (count, tokens) for i, count, tokens in cursor.fetchall()}


def _may_have_run(came: Mapping[int, tuple[int, int]], i: int) -> list[int]:
    """Returns (requests, tokens) of those that may have run in a window: they started in it, or shortly before."""
    back = round(LONGEST_REQUEST_S / WINDOW_S)
    counts = [came.get(j, (0, 0)) for j in range(i - back, i + 1)]
    return [sum(count for count, _ in counts), sum(tokens for _, tokens in counts)]


def _newest_points(site: Site, starts: list[datetime]) -> list[int | None]:
    """Returns the id of the newest point of average intensity that touches each window."""
    first, last = starts[0], starts[-1] + timedelta(seconds=WINDOW_S)
    rows = CarbonPoint.objects.filter(
        feed__site=site,
        feed__signal=CarbonFeed.Signal.AVERAGE,
        start_at__gt=first - LONGEST_INTERVAL,
        start_at__lt=last,
        end_at__gt=first,
    ).values_list("id", "start_at", "end_at")
    newest: list[int | None] = [None] * len(starts)
    for pk, start_at, end_at in rows:
        low = max(0, int((start_at - first).total_seconds() // WINDOW_S))
        high = min(len(starts), int(-(-(end_at - first).total_seconds() // WINDOW_S)))
        for i in range(low, high):
            newest[i] = max(pk, newest[i] or 0)
    return newest


def _runs(curve: IntensityCurve, at: datetime) -> list[list[Any]]:
    """Returns the intensity of a window's intervals, equal neighbours counted: [[g/kWh or None, intervals], ...]."""
    start_s = at.timestamp()
    means = [curve.mean(start_s + INTERVAL_S * i, start_s + INTERVAL_S * (i + 1)) for i in range(INTERVALS)]
    return [[value, len(list(same))] for value, same in itertools.groupby(means)]
