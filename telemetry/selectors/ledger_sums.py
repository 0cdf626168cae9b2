"""What the ledger entered in each bucket, whole: sums over buckets are the ledger's own, whoever was silent."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.accounting.counters import EnergyKind
from pools.models import Site
from telemetry.selectors.frames import INTERVAL_S, TimeRange, Values
from telemetry.selectors.ledger_frames import KindSums, LedgerSums, SiteSums

from . import servers_off
from ._sql import at, bucket, rows, span
from .energy import METERED_SHARE, METERS_SQL, SILENT_SHARE
from .time_steps import rollup_step_s

POSTED_WITHIN_S = 6 * INTERVAL_S  # what is older and not entered is not under way: its meters are silent
Floats = NDArray[np.float64]

# The last bucket is read whole, also where the time asked for ends within it. Sums of bigint are exact decimals.
SUMS_SQL = f"""
SELECT site_id, kind, array_agg(i) AS i, array_agg(energy_uj) AS energy_uj, array_agg(carbon_g) AS carbon_g,
       array_agg(unknown_uj) AS unknown_uj, array_agg(gpu_us::float8) AS gpu_us,
       extract(epoch FROM max(until))::float8 AS until_s
FROM (
    SELECT site_id, kind, {bucket("start_at")} AS i, sum(energy_uj) AS energy_uj,
           coalesce(sum(carbon_gco2e), 0) AS carbon_g, coalesce(sum({{unknown_uj}}), 0) AS unknown_uj,
           sum(gpu_us) AS gpu_us, max({{until}}) AS until
    FROM {{source}} start_at >= %(start)s AND start_at < %(whole_end)s GROUP BY 1, 2, 3
) buckets GROUP BY 1, 2
"""
ENTRIES_SQL = SUMS_SQL.format(
    unknown_uj="CASE WHEN carbon_gco2e IS NULL THEN energy_uj END",
    until="end_at",
    source="telemetry_energyentry WHERE",
)
ROLLUP_SQL = SUMS_SQL.format(
    unknown_uj="unknown_uj", until="until", source="telemetry_siteenergy WHERE step_s = %(step_s)s AND"
)


def ledger_sums(time_range: TimeRange, now_s: float) -> LedgerSums:
    """Returns the energy and carbon that the ledger has of every site in each whole bucket of it. Four queries.

    Carbon is as settled for buckets of whole minutes, and as first posted for finer ones.
    """
    step_s = rollup_step_s(time_range)
    ends_s = np.array(time_range.ends_s)
    params = {**span(time_range), "site": None, "step_s": step_s, "whole_end": at(time_range.ends_s[-1])}
    by_site: dict[int, dict[str, Any]] = defaultdict(dict)
    until_s = now_s - POSTED_WITHIN_S
    for row in rows(ROLLUP_SQL if step_s else ENTRIES_SQL, params):
        by_site[row.site_id][row.kind] = row
        until_s = max(until_s, row.until_s)
    reached_s = np.clip(until_s - np.array(time_range.starts_s), 0.0, time_range.bucket_s)
    meters: dict[int, Floats] = defaultdict(lambda: np.zeros(time_range.count + 1))
    late_s: dict[int, Floats] = defaultdict(lambda: np.zeros(time_range.count))
    for row in rows(METERS_SQL, {**params, "end": params["whole_end"]}):
        meters[row.site_id][row.i + 1] += row.meters
        if row.i >= 0:
            late_s[row.site_id][row.i] += row.late_s
    found, off_s = [], servers_off.gpu_seconds(time_range)
    for site in Site.objects.all():
        there_s = meters[site.pk].cumsum()[1:] * reached_s - late_s[site.pk]
        metered_s = np.maximum(0.0, there_s - off_s[site.pk])  # nobody hears the meter of a server that is off
        found.append(_site(site.name, by_site[site.pk], metered_s, ends_s <= until_s))
    return LedgerSums(time_range, tuple(found))


def _site(name: str, kinds: dict[str, Any], metered_s: Floats, reached: NDArray[np.bool_]) -> SiteSums:
    """Returns a site's sums. `metered_s`: how long its meters were there to be heard in each bucket, together."""
    count = len(metered_s)
    entered = {i for row in kinds.values() for i in row.i}
    heard_s, entered_s, energy_uj, jumped_uj = (np.zeros(count) for _ in range(4))
    sums = {}
    for kind in EnergyKind:
        nothing: list[int | None] = [0 if i in entered else None for i in range(count)]
        uj, ug, unknown_uj = nothing.copy(), nothing.copy(), nothing.copy()
        row = kinds.get(kind.value)
        if row is not None:
            for i, energy, carbon_g, unknown in zip(row.i, row.energy_uj, row.carbon_g, row.unknown_uj, strict=True):
                uj[i], unknown_uj[i] = int(energy), int(unknown)
                ug[i] = None if unknown and unknown == energy else round(carbon_g * 1e6)
            entered_s[row.i] += np.array(row.gpu_us) / 1e6
            energy_uj[row.i] += np.array(row.energy_uj, dtype=np.float64)
            if kind is EnergyKind.UNATTRIBUTED:
                jumped_uj[row.i] += np.array(row.energy_uj, dtype=np.float64)
            else:
                heard_s[row.i] += np.array(row.gpu_us) / 1e6
        sums[kind.value] = KindSums(tuple(uj), tuple(ug), tuple(unknown_uj))
    there = metered_s > 0
    missed = (entered_s < METERED_SHARE * metered_s) | (jumped_uj > SILENT_SHARE * energy_uj)
    heard: Values = tuple(
        min(1.0, one / of) if of > 0 else None for one, of in zip(heard_s.tolist(), metered_s.tolist(), strict=True)
    )
    return SiteSums(name, sums, heard, tuple((there & reached & missed).tolist()))
