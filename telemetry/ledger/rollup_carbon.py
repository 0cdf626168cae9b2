"""Keeps the carbon of the energy roll-ups at what the settlements say.

A posting adds to the roll-ups what was known at that moment: of a feed that came late nothing, of one that was revised
the old value. A settlement works out the carbon of each entry anew, so the minutes of its window are set to that, and
ten minutes, hours and days move by the difference: they stay the sums of their minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from core.accounting.counters import KINDS
from core.accounting.grouping import Groups
from pools.models import Site
from telemetry.models import EnergyRollup
from telemetry.models.rollups import MINUTE_S, STEPS_S

ROUNDING_G = 5e-7  # both are whole micrograms: what differs by less than a half is a sum of floats
Ints = NDArray[np.int64]
Key = tuple[int, int, str]  # minute (Unix seconds), pool (0: none), kind of the entries

# In the order in which a posting comes to them, so that the two cannot deadlock.
STORED_SQL = f"""
SELECT extract(epoch FROM start_at)::bigint, coalesce(pool_id, 0), kind, carbon_gco2e, unknown_uj
FROM {EnergyRollup._meta.db_table}
WHERE step_s = {MINUTE_S} AND site_id = %s AND start_at = ANY(%s)
ORDER BY start_at, coalesce(pool_id, 0), array_position(%s, kind::text)
"""
MOVE_SQL = f"""
UPDATE {EnergyRollup._meta.db_table} r
SET carbon_gco2e = greatest(r.carbon_gco2e + more.g, 0), unknown_uj = r.unknown_uj + more.uj
FROM unnest(%s::int[], %s::timestamptz[], %s::bigint[], %s::text[], %s::float8[], %s::bigint[])
     AS more (step_s, start_at, pool_id, kind, g, uj)
WHERE r.site_id = %s AND r.step_s = more.step_s AND r.start_at = more.start_at AND r.kind = more.kind
      AND coalesce(r.pool_id, 0) = more.pool_id
"""


@dataclass(frozen=True, slots=True)
class Emitted:
    """Of a minute, pool and kind, as settled. `unknown_uj`: the energy without an intensity, not in the carbon."""

    carbon_ug: int
    unknown_uj: int


def by_minute(start_us: Ints, pool: Ints, kind: Ints, carbon_ug: Ints, unknown_uj: Ints) -> dict[Key, Emitted]:
    """Adds up entries, which are given by column."""
    minute = start_us // (MINUTE_S * 1_000_000) * MINUTE_S
    groups = Groups.by(minute, pool, kind)
    keys = zip(*(groups.key(one).tolist() for one in (minute, pool, kind)), strict=True)
    sums = zip(*(groups.sum(one).tolist() for one in (carbon_ug, unknown_uj)), strict=True)
    return {(at, of, KINDS[k].value): Emitted(*each) for (at, of, k), each in zip(keys, sums, strict=True)}


def follow(site: Site, emitted: Mapping[Key, Emitted]) -> int:
    """Brings the site's roll-ups to what was settled, in the caller's transaction. Returns the minutes that changed."""
    if not emitted or not _differences(_carbon_so_far(site, list(emitted)), emitted):
        return 0
    moved = _differences(_carbon_so_far(site, list(emitted), lock=True), emitted)
    sums: dict[tuple[int, int, int, str], list[float]] = {}
    for (minute, pool, kind), (more_g, more_uj) in moved.items():
        for step_s in STEPS_S:
            one = sums.setdefault((step_s, minute // step_s * step_s, pool, kind), [0.0, 0])
            one[0] += more_g
            one[1] += more_uj
    columns: list[list[Any]] = [list(column) for column in zip(*sums, strict=True)]
    columns[1] = [datetime.fromtimestamp(at, UTC) for at in columns[1]]
    columns += [[g for g, _ in sums.values()], [round(uj) for _, uj in sums.values()]]
    with connection.cursor() as cursor:
        cursor.execute(MOVE_SQL, [*columns, site.pk])
    return len({minute for minute, _, _ in moved})


def _carbon_so_far(site: Site, keys: Sequence[Key], lock: bool = False) -> dict[Key, tuple[float, int]]:
    minutes = sorted({datetime.fromtimestamp(minute, UTC) for minute, _, _ in keys})
    kinds = [kind.value for kind in KINDS]
    with connection.cursor() as cursor:
        cursor.execute(STORED_SQL + (" FOR UPDATE" if lock else ""), [site.pk, minutes, kinds])
        return {(minute, pool, kind): (g, uj) for minute, pool, kind, g, uj in cursor.fetchall()}


def _differences(
    so_far: Mapping[Key, tuple[float, int]], emitted: Mapping[Key, Emitted]
) -> dict[Key, tuple[float, int]]:
    """Returns by how much each minute is to change, in grams and microjoules, where that is more than rounding."""
    found = {}
    for key, value in emitted.items():
        if key not in so_far:  # posted since the entries were read: the window will be restated for its energy
            continue
        g, uj = so_far[key]
        more_g, more_uj = value.carbon_ug / 1e6 - g, value.unknown_uj - uj
        if more_uj or abs(more_g) > ROUNDING_G:
            found[key] = (more_g, more_uj)
    return found
