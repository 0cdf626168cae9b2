"""Power, carbon and intensity over time, from the energy ledger and the carbon feeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pools.models import Site
from telemetry.frames import (
    CarbonFrame,
    FeedState,
    IntensityStep,
    PowerFrame,
    SiteCarbon,
    SiteNow,
    SitePower,
    Totals,
    Window,
)
from telemetry.models.rollups import STEPS_S

from ._sql import at, bucket, rows, span

# A bucket counts as metered from this share of its GPU cells upwards; the mean is over what was metered.
METERED_SHARE = 0.9
# A bucket filled mostly by a counter's jump across missing samples: the joules are right, their times are not.
SILENT_SHARE = 0.5
FORECAST_SHARE = 1 / 8  # of the range, drawn to the right of now

# Alike over entries and over their sums: what is read is the coarsest whose borders the buckets' fall on.
ENERGY_SQL = """
SELECT site_id, floor(extract(epoch FROM start_at - %(start)s) / %(bucket_s)s)::int AS i,
       sum(energy_uj)::float8 / 1e6 AS energy_j,
       (sum(energy_uj) FILTER (WHERE kind = 'idle'))::float8 / 1e6 AS idle_j,
       (sum(energy_uj) FILTER (WHERE kind = 'unattributed'))::float8 / 1e6 AS unseen_j,
       sum(carbon_gco2e) AS carbon_g, {unknown} AS carbon_unknown,
       sum(gpu_us)::float8 / 1e6 AS gpu_s, extract(epoch FROM max({until})) AS until_s
FROM {source} start_at >= %(start)s AND start_at < %(end)s GROUP BY 1, 2
"""
ENTRIES_SQL = ENERGY_SQL.format(
    unknown="bool_or(carbon_gco2e IS NULL)", until="end_at", source="telemetry_energyentry WHERE"
)
ROLLUP_SQL = ENERGY_SQL.format(
    unknown="sum(unknown_uj) > 0",
    until="until",
    source="telemetry_energyrollup WHERE step_s = %(step_s)s AND",
)

METERS_SQL = """
SELECT c.site_id, extract(epoch FROM m.opened_at) AS opened_s
FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id
JOIN pools_node n ON n.id = g.node_id JOIN pools_cluster c ON c.id = n.cluster_id
"""

INTENSITY_SQL = f"""
WITH newest AS (
    SELECT DISTINCT ON (p.feed_id, p.forecast, p.start_at) f.site_id, p.*
    FROM telemetry_carbonpoint p JOIN telemetry_carbonfeed f ON f.id = p.feed_id AND f.signal = 'average'
    WHERE CASE WHEN p.forecast THEN p.end_at > %(end)s AND p.start_at < %(horizon)s
               ELSE p.start_at >= %(start)s AND p.start_at < %(end)s END
    ORDER BY p.feed_id, p.forecast, p.start_at, (p.model = f.forecast_model) DESC, p.issued_at DESC
)
SELECT site_id, forecast, {bucket("start_at")} AS i,
       extract(epoch FROM min(start_at)) AS start_s, extract(epoch FROM max(end_at)) AS end_s,
       CASE WHEN 2 * count(value_g_per_kwh) >= count(*) THEN avg(value_g_per_kwh) END AS g_per_kwh,
       extract(epoch FROM max(issued_at)) AS issued_s
FROM newest GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

SOURCES_SQL = "SELECT site_id, source FROM telemetry_carbonfeed WHERE signal = 'average'"


def energy(window: Window) -> tuple[PowerFrame, CarbonFrame]:
    """Power and carbon rate of every site in each bucket of `window`, and the intensity beside it. Five queries."""
    sites = list(Site.objects.all())
    by_site: dict[int, dict[int, Any]] = defaultdict(dict)
    step_s = rollup_step_s(window)
    for row in rows(ROLLUP_SQL if step_s else ENTRIES_SQL, {**span(window), "step_s": step_s}):
        by_site[row.site_id][row.i] = row
    opened: dict[int, list[float]] = defaultdict(list)
    for row in rows(METERS_SQL, {}):
        opened[row.site_id].append(float(row.opened_s))
    steps = _intensity(window)
    sources = {row.site_id: row.source for row in rows(SOURCES_SQL, {})}

    powers, carbons = [], []
    for site in sites:
        buckets = [
            _mean(by_site[site.pk].get(i), sum(o < end_s for o in opened[site.pk]), window.bucket_s)
            for i, end_s in enumerate(window.ends_s)
        ]
        label = site.label or site.name
        powers.append(
            SitePower(
                site=site.name,
                label=label,
                rank=site.rank,
                in_use_w=tuple(b["in_use_w"] for b in buckets),
                idle_w=tuple(b["idle_w"] for b in buckets),
                silent=_settled(tuple(bool(b["silent"]) for b in buckets), window, sites, by_site),
            )
        )
        actual, forecast = steps[(site.pk, False)], steps[(site.pk, True)]
        carbons.append(
            SiteCarbon(
                site=site.name,
                label=label,
                rank=site.rank,
                rate_g_per_h=tuple(b["rate_g_per_h"] for b in buckets),
                actual=tuple(actual),
                forecast=tuple(forecast),
                source=sources.get(site.pk, ""),
                known_until_s=max((s.end_s for s in actual if s.g_per_kwh is not None), default=None),
            )
        )
    caps = [site.power_cap_w for site in sites]
    return (
        PowerFrame(
            window=window,
            sites=tuple(powers),
            cap_w=sum(c for c in caps if c is not None) if caps and None not in caps else None,
            metered_until_s=_until(by_site),
        ),
        CarbonFrame(window=window, sites=tuple(carbons)),
    )


def rollup_step_s(window: Window) -> int:
    """The longest step of the sums over time that `window` is made of whole ones of; 0: of none."""
    return next(
        (step_s for step_s in reversed(STEPS_S) if not (window.bucket_s % step_s or window.start_s % step_s)), 0
    )


def _mean(row: Any | None, gpus: int, bucket_s: float) -> dict[str, float | bool | None]:
    """A site's mean power and carbon rate over one bucket; all None unless nearly all its meters were heard."""
    nothing: dict[str, float | bool | None] = {"in_use_w": None, "idle_w": None, "rate_g_per_h": None}
    if row is None or gpus == 0:
        return {**nothing, "silent": gpus > 0}
    metered = float(row.gpu_s) / (gpus * bucket_s)
    if metered < METERED_SHARE:
        return {**nothing, "silent": True}
    metered_s = bucket_s * min(1.0, metered)
    return {
        "in_use_w": max(0.0, row.energy_j - (row.idle_j or 0.0)) / metered_s,
        "idle_w": (row.idle_j or 0.0) / metered_s,
        "rate_g_per_h": None if row.carbon_unknown else row.carbon_g / metered_s * 3_600.0,
        "silent": bool(row.energy_j) and (row.unseen_j or 0.0) / row.energy_j > SILENT_SHARE,
    }


def _until(by_site: dict[int, dict[int, Any]]) -> float | None:
    return max((float(row.until_s) for buckets in by_site.values() for row in buckets.values()), default=None)


def _settled(
    silent: tuple[bool, ...], window: Window, sites: Sequence[Site], by_site: dict[int, dict[int, Any]]
) -> tuple[bool, ...]:
    """Buckets that the ledger has not reached yet are not silent: their entries are still to come."""
    until_s = _until(by_site)
    if until_s is None:
        return (False,) * len(silent)
    return tuple(s and end_s <= until_s for s, end_s in zip(silent, window.ends_s, strict=True))


def _intensity(window: Window) -> dict[tuple[int, bool], list[IntensityStep]]:
    """Newest revision of every step, thinned to the buckets: actual before now, forecast after it."""
    params = span(window)
    params["horizon"] = at(window.end_s + (window.end_s - window.start_s) * FORECAST_SHARE)
    found: dict[tuple[int, bool], list[IntensityStep]] = defaultdict(list)
    for row in rows(INTENSITY_SQL, params):
        found[(row.site_id, row.forecast)].append(
            IntensityStep(
                start_s=float(row.start_s),
                end_s=float(row.end_s),
                g_per_kwh=row.g_per_kwh,
                issued_at_s=float(row.issued_s) if row.forecast else None,
            )
        )
    return found


NOW_SQL = """
WITH newest AS (
    SELECT DISTINCT ON (gpu_id) gpu_id, power_w FROM telemetry_gpusample
    WHERE at > %(now)s - interval '15 seconds' AND at <= %(now)s ORDER BY gpu_id, at DESC
)
SELECT c.site_id, count(*) AS gpus, count(newest.power_w) AS reporting, sum(newest.power_w) AS power_w
FROM pools_gpu g JOIN pools_node n ON n.id = g.node_id JOIN pools_cluster c ON c.id = n.cluster_id
LEFT JOIN newest ON newest.gpu_id = g.id GROUP BY 1
"""

INTENSITY_NOW_SQL = """
SELECT DISTINCT ON (f.site_id) f.site_id, p.value_g_per_kwh AS g_per_kwh
FROM telemetry_carbonfeed f JOIN telemetry_carbonpoint p ON p.feed_id = f.id
WHERE f.signal = 'average' AND NOT p.forecast AND p.start_at <= %(now)s AND p.end_at > %(now)s - interval '15 seconds'
ORDER BY f.site_id, p.start_at DESC, p.issued_at DESC
"""

TOTALS_SQL = """
SELECT sum(energy_uj)::float8 / 1e6 AS energy_j, sum(carbon_gco2e) AS carbon_g,
       sum(unknown_uj)::float8 / 1e6 AS unknown_j
FROM telemetry_energyrollup WHERE step_s = %(step_s)s AND start_at >= %(since)s
"""


def sites_now(now_s: float) -> tuple[SiteNow, ...]:
    """Each site's power by its newest samples (at most 15 s old) and its intensity now. Three queries."""
    power = {row.site_id: row for row in rows(NOW_SQL, {"now": at(now_s)})}
    intensity = {row.site_id: row.g_per_kwh for row in rows(INTENSITY_NOW_SQL, {"now": at(now_s)})}
    found = []
    for site in Site.objects.all():
        row = power.get(site.pk)
        found.append(
            SiteNow(
                label=site.label or site.name,
                power_w=row.power_w if row else None,
                gpus=row.gpus if row else 0,
                reporting=row.reporting if row else 0,
                intensity_g_per_kwh=intensity.get(site.pk),
            )
        )
    return tuple(found)


def totals(since_s: float) -> Totals:
    """Energy and carbon since the minute of a moment, for example midnight. One query."""
    since_s -= since_s % STEPS_S[0]
    step_s = next(step_s for step_s in reversed(STEPS_S) if not since_s % step_s)
    (row,) = rows(TOTALS_SQL, {"since": at(since_s), "step_s": step_s})
    unknown = (row.unknown_j or 0.0) / row.energy_j if row.energy_j else None
    return Totals(since_s, row.energy_j, None if unknown == 1.0 else row.carbon_g, unknown)


FEEDS_SQL = """
SELECT s.label, s.name, f.signal, f.provider, f.source, f.last_error,
       extract(epoch FROM f.last_ok_at) AS last_ok_s, extract(epoch FROM f.last_error_at) AS last_error_s,
       (SELECT extract(epoch FROM p.end_at) FROM telemetry_carbonpoint p
        WHERE p.feed_id = f.id AND NOT p.forecast AND coalesce(p.value_g_per_kwh, p.price_per_kwh) IS NOT NULL
          AND p.start_at > %(since)s ORDER BY p.start_at DESC LIMIT 1) AS known_until_s
FROM telemetry_carbonfeed f JOIN pools_site s ON s.id = f.site_id ORDER BY s.rank, s.name, f.signal
"""


def feeds(now_s: float) -> tuple[FeedState, ...]:
    """Every carbon feed and how far its values reach (looking back two days). One query."""
    return tuple(
        FeedState(
            site_label=row.label or row.name,
            signal=row.signal,
            provider=row.provider,
            source=row.source,
            last_ok_s=_float(row.last_ok_s),
            last_error=row.last_error,
            last_error_s=_float(row.last_error_s),
            known_until_s=_float(row.known_until_s),
        )
        for row in rows(FEEDS_SQL, {"since": at(now_s - 172_800)})
    )


def newest_sample_s(now_s: float) -> float | None:
    """When the newest GPU sample of the last hour was taken: how far behind the ingester is. One query."""
    sql = "SELECT extract(epoch FROM max(at)) AS at_s FROM telemetry_gpusample WHERE at > %(since)s"
    (row,) = rows(sql, {"since": at(now_s - 3_600)})
    return _float(row.at_s)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
