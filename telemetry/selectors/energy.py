"""Power, carbon and intensity over time, from the energy ledger and the carbon feeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pools.models import Site
from telemetry.models.rollups import STEPS_S
from telemetry.selectors.frames import (
    CarbonFrame,
    PowerFrame,
    SiteCarbon,
    SiteNow,
    SitePower,
    TimeRange,
    Totals,
    Values,
)

from . import intensity, largest_sites, servers_off
from ._sql import at, bucket, rows, span
from .newest_samples import PowerNow, power_now
from .time_steps import rollup_step_s

# A bucket counts as metered from this share of its GPU intervals upwards; the mean is over what was metered.
METERED_SHARE = 0.9
# A bucket filled mostly by a counter's jump across missing samples: the joules are right, their times are not.
SILENT_SHARE = 0.5
Floats = NDArray[np.float64]


# Alike over entries and over their sums: what is read is the coarsest whose borders the buckets' fall on. A site's
# columns as arrays: some ten thousand values are read faster than as many rows.
ENERGY_SQL = f"""
SELECT site_id, array_agg(i) AS i, array_agg(energy_uj::float8) AS energy_uj,
       array_agg(coalesce(idle_uj, 0)::float8) AS idle_uj, array_agg(coalesce(unseen_uj, 0)::float8) AS unseen_uj,
       array_agg(CASE WHEN NOT carbon_unknown THEN carbon_g END) AS carbon_g, array_agg(gpu_us::float8) AS gpu_us,
       extract(epoch FROM max(until))::float8 AS until_s
FROM (
    SELECT site_id, {bucket("start_at")} AS i, sum(energy_uj) AS energy_uj,
           sum(energy_uj) FILTER (WHERE kind = 'idle') AS idle_uj,
           sum(energy_uj) FILTER (WHERE kind = 'unattributed') AS unseen_uj,
           sum(carbon_gco2e) AS carbon_g, {{unknown}} AS carbon_unknown, sum(gpu_us) AS gpu_us, max({{until}}) AS until
    FROM {{source}} start_at >= %(start)s AND start_at < %(end)s AND (%(site)s::bigint IS NULL OR site_id = %(site)s)
    GROUP BY 1, 2
) buckets GROUP BY 1
"""
ENTRIES_SQL = ENERGY_SQL.format(
    unknown="bool_or(carbon_gco2e IS NULL)", until="end_at", source="telemetry_energyentry WHERE"
)
ROLLUP_SQL = ENERGY_SQL.format(
    unknown="sum(unknown_uj) > 0",
    until="until",
    source="telemetry_siteenergy WHERE step_s = %(step_s)s AND",
)

# How many meters of a site began to be heard in each bucket, and how long after its start, all of them together;
# -1: before the first.
METERS_SQL = f"""
SELECT c.site_id, o.i, sum(o.meters)::int AS meters, sum(o.since_s - o.i * %(bucket_s)s * o.meters)::float8 AS late_s
FROM (
    SELECT g.node_id, CASE WHEN m.opened_at < %(start)s THEN -1 ELSE {bucket("m.opened_at")} END AS i,
           count(*) AS meters, sum(extract(epoch FROM m.opened_at - %(start)s)::float8) AS since_s
    FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id WHERE m.opened_at < %(end)s GROUP BY 1, 2
) o JOIN pools_node n ON n.id = o.node_id JOIN pools_cluster c ON c.id = n.cluster_id
WHERE %(site)s::bigint IS NULL OR c.site_id = %(site)s GROUP BY 1, 2
"""


def power(time_range: TimeRange) -> PowerFrame:
    """The mean power of every site in each bucket of `time_range`. Four queries."""
    sites = list(Site.objects.all())
    buckets = _buckets(time_range, sites, None)
    return PowerFrame(time_range, _powers(time_range, sites, buckets), _cap_w(sites), buckets.until_s)


def energy(
    time_range: TimeRange, *, site_id: int | None = None, most: int | None = None, named: Collection[str] | None = None
) -> tuple[PowerFrame, CarbonFrame]:
    """Returns power, carbon rate and intensity of every site in each bucket of `time_range`. Six queries.

    Args:
        site_id: of this site only.
        most: so many sites, those that used most energy in `time_range`, and all others together.
        named: only these sites by themselves, and all others together.
    """
    sites = list(Site.objects.filter(**({} if site_id is None else {"pk": site_id})))
    buckets = _buckets(time_range, sites, site_id)
    powers = _powers(time_range, sites, buckets)
    drawn = largest_sites.names(powers, most, named)
    sources = intensity.sources(time_range.start_s)
    steps = intensity.steps(time_range, [site.pk for site in sites if site.name in drawn])
    carbons = []
    for site, watts in zip(sites, powers, strict=True):
        rates = _values(buckets.of[site.pk].rate_g_per_h)
        actual = steps[(site.pk, False)]
        source, before_s = sources.get(site.pk, ("", None))
        carbons.append(
            SiteCarbon(
                site=site.name,
                label=site.label or site.name,
                colour=site.colour,
                rate_g_per_h=rates,
                actual=tuple(actual),
                forecast=tuple(steps[(site.pk, True)]),
                source=source if site.name in drawn else "",
                known_until_s=max((s.end_s for s in actual if s.g_per_kwh is not None), default=before_s),
                unknown=tuple(
                    rate is None and (drew is not None or unheard)
                    for rate, drew, unheard in zip(rates, watts.in_use_w, watts.silent, strict=True)
                ),
            )
        )
    return (
        PowerFrame(time_range, largest_sites.powers(powers, drawn), _cap_w(sites), buckets.until_s),
        CarbonFrame(time_range, largest_sites.carbons(carbons, drawn)),
    )


def _powers(time_range: TimeRange, sites: Collection[Site], buckets: _Buckets) -> tuple[SitePower, ...]:
    return tuple(
        SitePower(
            site=site.name,
            label=site.label or site.name,
            colour=site.colour,
            in_use_w=_values(buckets.of[site.pk].in_use_w),
            idle_w=_values(buckets.of[site.pk].idle_w),
            silent=buckets.silent(site.pk, time_range),
        )
        for site in sites
    )


def _cap_w(sites: Collection[Site]) -> float | None:
    """Returns the cap of all sites together; None unless each has one."""
    caps = [site.power_cap_w for site in sites]
    return sum(cap for cap in caps if cap is not None) if caps and None not in caps else None


@dataclass(frozen=True, slots=True)
class _Means:
    """A site's means over each bucket; NaN where not nearly all its meters were heard."""

    in_use_w: Floats
    idle_w: Floats
    rate_g_per_h: Floats
    silent: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Buckets:
    """Each site's, by key. `until_s`: how far the ledger has come."""

    of: dict[int, _Means]
    until_s: float | None

    def silent(self, site_id: int, time_range: TimeRange) -> tuple[bool, ...]:
        """Buckets that the ledger has not reached yet are not silent: their entries are still to come."""
        reached = np.array(time_range.ends_s) <= (-np.inf if self.until_s is None else self.until_s)
        return tuple((self.of[site_id].silent & reached).tolist())


def _buckets(time_range: TimeRange, sites: Collection[Site], site_id: int | None) -> _Buckets:
    step_s = rollup_step_s(time_range)
    params = {**span(time_range), "site": site_id}
    found = {row.site_id: row for row in rows(ROLLUP_SQL if step_s else ENTRIES_SQL, {**params, "step_s": step_s})}
    opened: dict[int, Floats] = defaultdict(lambda: np.zeros(time_range.count + 1))
    for row in rows(METERS_SQL, params):
        opened[row.site_id][row.i + 1] += row.meters
    means, off_s = {}, servers_off.gpu_seconds(time_range, site_id)
    for site in sites:
        meters = opened[site.pk].cumsum()[1:]
        means[site.pk] = _means(found.get(site.pk), meters, time_range.bucket_s, off_s[site.pk])
    return _Buckets(means, max((row.until_s for row in found.values()), default=None))


def _means(row: Any | None, meters: Floats, bucket_s: float, off_s: Floats) -> _Means:
    """Returns a site's mean power and carbon rate over each bucket, from what its meters said of it.

    `off_s`: the seconds that its GPUs were off, together: known to draw nothing.
    """

    def column(name: str) -> Floats:
        values = np.where(off_s > 0, 0.0, np.nan)
        if row is not None:
            values[row.i] = getattr(row, name)
        return values

    energy_j, idle_j, unseen_j = (column(name) / 1e6 for name in ("energy_uj", "idle_uj", "unseen_uj"))
    with np.errstate(divide="ignore", invalid="ignore"):  # where there is no meter, or no energy
        metered = (column("gpu_us") / 1e6 + off_s) / (meters * bucket_s)
        heard = (meters > 0) & (metered >= METERED_SHARE)
        metered_s = np.where(heard, bucket_s * np.minimum(1.0, metered), np.nan)
        jumped = (energy_j > 0) & (unseen_j / energy_j > SILENT_SHARE)
    return _Means(
        in_use_w=np.maximum(0.0, energy_j - idle_j) / metered_s,
        idle_w=idle_j / metered_s,
        rate_g_per_h=column("carbon_g") / metered_s * 3_600.0,
        silent=(meters > 0) & (~heard | jumped),
    )


def _values(means: Floats) -> Values:
    return tuple(None if math.isnan(value) else value for value in means.tolist())


TOTALS_SQL = """
SELECT sum(energy_uj)::float8 / 1e6 AS energy_j, sum(carbon_gco2e) AS carbon_g,
       sum(unknown_uj)::float8 / 1e6 AS unknown_j,
       array_agg(DISTINCT coalesce(nullif(s.label, ''), s.name)) FILTER (WHERE unknown_uj > 0) AS without
FROM telemetry_siteenergy e JOIN pools_site s ON s.id = e.site_id WHERE step_s = %(step_s)s AND start_at >= %(since)s
  AND (%(until)s::timestamptz IS NULL OR start_at < %(until)s)
"""


def sites_now(now_s: float, power: PowerNow | None = None) -> tuple[SiteNow, ...]:
    """Each site's power by its newest samples (at most 15 s old) and its intensity now. Three queries.

    Args:
        power: What GPUs draw now, where it is known already: two queries then.
    """
    power = power or power_now(now_s)
    g_per_kwh = intensity.now(now_s)
    found = []
    for site in Site.objects.all():
        drawn = power.sites.get(site.pk)
        found.append(
            SiteNow(
                label=site.label or site.name,
                power_w=drawn.power_w if drawn else None,
                gpus=drawn.gpus if drawn else 0,
                reporting=drawn.reporting if drawn else 0,
                intensity_g_per_kwh=g_per_kwh.get(site.pk),
            )
        )
    return tuple(found)


def totals(since_s: float, until_s: float | None = None) -> Totals:
    """Energy and carbon since the minute of a moment, for example midnight, up to that of another. One query."""
    since_s -= since_s % STEPS_S[0]
    if until_s is not None:
        until_s -= until_s % STEPS_S[0]
    step_s = next(step_s for step_s in reversed(STEPS_S) if not since_s % step_s and not (until_s or 0.0) % step_s)
    until = None if until_s is None else at(until_s)
    (row,) = rows(TOTALS_SQL, {"since": at(since_s), "until": until, "step_s": step_s})
    unknown = (row.unknown_j or 0.0) / row.energy_j if row.energy_j else None
    return Totals(since_s, row.energy_j, None if unknown == 1.0 else row.carbon_g, unknown, tuple(row.without or ()))
