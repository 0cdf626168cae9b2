"""Carbon intensity, as feeds say it: over time, now, and how far each of them reaches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from pools.models import Site
from telemetry.selectors.frames import FeedState, IntensityStep, SiteIntensity, TimeRange

from ._sql import at, bucket, rows, span

FORECAST_SHARE = 1 / 8  # of the range, drawn to the right of now
LONGEST_POINT = "1 day"  # of a feed: what began before is over

# Feed by feed, and with an earliest start: all points that there ever were are years of them.
STEPS_SQL = f"""
WITH newest AS (
    SELECT DISTINCT ON (f.id, p.forecast, p.start_at) f.site_id, p.*
    FROM telemetry_carbonfeed f CROSS JOIN LATERAL (
        SELECT {{columns}} FROM telemetry_carbonpoint
        WHERE feed_id = f.id AND NOT forecast AND start_at >= %(start)s AND start_at < %(end)s
        UNION ALL
        SELECT {{columns}} FROM telemetry_carbonpoint
        WHERE feed_id = f.id AND forecast AND start_at >= %(end)s - interval '{LONGEST_POINT}'
          AND start_at < %(horizon)s AND end_at > %(end)s
    ) p
    WHERE f.signal = 'average' AND f.site_id = ANY(%(sites)s)
    ORDER BY f.id, p.forecast, p.start_at, (p.model = f.forecast_model) DESC, p.issued_at DESC
)
SELECT site_id, forecast, {bucket("start_at")} AS i,
       extract(epoch FROM min(start_at))::float8 AS start_s, extract(epoch FROM max(end_at))::float8 AS end_s,
       CASE WHEN 2 * count(value_g_per_kwh) >= count(*) THEN avg(value_g_per_kwh) END AS g_per_kwh,
       extract(epoch FROM max(issued_at))::float8 AS issued_s
FROM newest GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
""".format(columns="forecast, model, start_at, end_at, issued_at, value_g_per_kwh")

# A provider's name stands in for a source that nobody wrote down. `before`: until when values before a moment reach.
SOURCES_SQL = """
SELECT f.site_id, coalesce(nullif(f.source, ''), f.provider) AS source,
       (SELECT extract(epoch FROM p.end_at)::float8 FROM telemetry_carbonpoint p
        WHERE p.feed_id = f.id AND NOT p.forecast AND p.value_g_per_kwh IS NOT NULL
          AND p.start_at > %(at)s - interval '2 days' AND p.start_at < %(at)s
        ORDER BY p.start_at DESC LIMIT 1) AS before_s
FROM telemetry_carbonfeed f WHERE f.signal = 'average'
"""

NOW_SQL = f"""
SELECT DISTINCT ON (f.site_id) f.site_id, p.value_g_per_kwh AS g_per_kwh
FROM telemetry_carbonfeed f CROSS JOIN LATERAL (
    SELECT value_g_per_kwh, start_at, issued_at FROM telemetry_carbonpoint
    WHERE feed_id = f.id AND NOT forecast AND start_at <= %(now)s AND start_at > %(now)s - interval '{LONGEST_POINT}'
      AND end_at > %(now)s - interval '15 seconds'
    ORDER BY start_at DESC, issued_at DESC LIMIT 1
) p
WHERE f.signal = 'average' ORDER BY f.site_id, p.start_at DESC, p.issued_at DESC
"""


def sources(at_s: float) -> dict[int, tuple[str, float | None]]:
    """Returns where each site's average intensity comes from, and until when that was known before a moment, by key.

    Makes one query. It looks back two days.
    """
    return {row.site_id: (row.source, row.before_s) for row in rows(SOURCES_SQL, {"at": at(at_s)})}


def now(now_s: float) -> dict[int, float | None]:
    """Returns each site's average intensity at that moment, in g/kWh, by the site's key. One query."""
    return {row.site_id: row.g_per_kwh for row in rows(NOW_SQL, {"now": at(now_s)})}


def steps(time_range: TimeRange, site_ids: Collection[int]) -> dict[tuple[int, bool], list[IntensityStep]]:
    """Returns every step's newest revision, thinned to the buckets: actual before now, then forecast. One query."""
    params = {**span(time_range), "sites": list(site_ids)}
    params["horizon"] = at(time_range.end_s + (time_range.end_s - time_range.start_s) * FORECAST_SHARE)
    found: dict[tuple[int, bool], list[IntensityStep]] = defaultdict(list)
    for row in rows(STEPS_SQL, params):
        found[(row.site_id, row.forecast)].append(
            IntensityStep(
                start_s=row.start_s,
                end_s=row.end_s,
                g_per_kwh=row.g_per_kwh,
                issued_at_s=row.issued_s if row.forecast else None,
            )
        )
    return found


def intensities(time_range: TimeRange) -> tuple[SiteIntensity, ...]:
    """Returns every site's intensity. Three queries."""
    source_of, found = sources(time_range.start_s), list(Site.objects.all())
    known = steps(time_range, [site.pk for site in found])
    return tuple(
        SiteIntensity(
            site.name, source_of.get(site.pk, ("", None))[0], tuple(known[site.pk, False]), tuple(known[site.pk, True])
        )
        for site in found
    )


FEEDS_SQL = """
SELECT s.label, s.name, f.signal, f.provider, f.source, f.last_error, f.refresh_s,
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
            refresh_s=_float(row.refresh_s),
            site=row.name,
        )
        for row in rows(FEEDS_SQL, {"since": at(now_s - 172_800)})
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
