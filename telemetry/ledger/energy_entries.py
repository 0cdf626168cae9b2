"""Enters what a posting split: the entries themselves, and the sums over minutes, hours and days that charts read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection
from django.utils import timezone
from numpy.typing import NDArray

from core.accounting.counters import KINDS, Slices
from core.accounting.grouping import Groups
from core.units import US_PER_S, ug_per_uj
from pools.models import Gpu, Instance, Site
from telemetry.carbon.site_signals import IntensityCurve
from telemetry.ledger.rates import Rates
from telemetry.models import EnergyRollup
from telemetry.models.rollups import STEPS_S
from telemetry.storage import copying

INTERVAL_S = 10.0
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROLLUP_SQL = f"""
INSERT INTO {EnergyRollup._meta.db_table} AS r
    (step_s, start_at, site_id, pool_id, kind, energy_uj, gpu_us, carbon_gco2e, unknown_uj, until)
SELECT * FROM unnest(%s::int[], %s::timestamptz[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[],
                     %s::float8[], %s::bigint[], %s::timestamptz[])
ON CONFLICT (step_s, start_at, site_id, pool_id, kind) DO UPDATE SET
    energy_uj = r.energy_uj + excluded.energy_uj, gpu_us = r.gpu_us + excluded.gpu_us,
    carbon_gco2e = r.carbon_gco2e + excluded.carbon_gco2e, unknown_uj = r.unknown_uj + excluded.unknown_uj,
    until = greatest(r.until, excluded.until)
"""


@dataclass(frozen=True, slots=True)
class SiteValue:
    """What a site's energy emits in each of some intervals: NaN where the feed had no value for all of it."""

    g_per_kwh: Floats
    pue: float


class Values:
    """Slices of several GPUs with their site, pool and carbon: looked up before the transaction, entered in it."""

    def __init__(self, gpu_ids: Sequence[int], slices: Sequence[Slices], passings: Sequence[int]) -> None:
        gpus = Gpu.objects.filter(pk__in=gpu_ids).select_related("node__cluster__site")
        sites = {gpu.pk: gpu.node.cluster.site for gpu in gpus}
        counts = [len(each) for each in slices]
        self._posting = np.repeat(np.arange(len(slices)), counts)
        self._gpu = np.repeat(np.array(gpu_ids, dtype=np.int64), counts)
        self._passing = np.repeat(np.array(passings, dtype=np.int64), counts)
        self._site = np.repeat(np.array([sites[gpu].pk for gpu in gpu_ids], dtype=np.int64), counts)
        self._slices = Slices(*(np.concatenate([getattr(each, name) for each in slices]) for name in Slices.__slots__))
        self._pool = pools_of(self._slices.instance)
        self._g_per_kwh = np.full(len(self._slices), np.nan)
        self._carbon_g = np.full(len(self._slices), np.nan)
        for site in set(sites.values()):
            at = self._site == site.pk
            if at.any():
                value = intensities(site, self._slices.interval[at])
                self._g_per_kwh[at] = value.g_per_kwh
                ug = self._slices.energy_uj[at] * ug_per_uj(1.0, value.pue) * value.g_per_kwh
                self._carbon_g[at] = np.rint(ug) / 1e6  # whole micrograms, as settled: their sums are exact

    def enter(self, moved: Sequence[bool]) -> int:
        """Enters the postings whose watermark moved. Returns the number of entries."""
        which = np.array(moved, dtype=np.bool_)[self._posting]
        if not which.any():
            return 0
        slices, pool = self._slices.pick(which), self._pool[which]
        carbon_g, site = self._carbon_g[which], self._site[which]
        unknown = np.isnan(carbon_g)
        self._copy(which, slices, pool, carbon_g, unknown)
        known_g, unknown_uj = np.where(unknown, 0.0, carbon_g), np.where(unknown, slices.energy_uj, 0)
        columns: list[list[Any]] = [[] for _ in range(10)]
        for step_s in STEPS_S:
            start_us = slices.start_us // (step_s * US_PER_S) * (step_s * US_PER_S)
            one = Groups.by(start_us, site, pool, slices.kind)
            for column, values in zip(
                columns,
                (
                    [step_s] * len(one),
                    [_moment(at) for at in one.key(start_us).tolist()],
                    one.key(site).tolist(),
                    [pk or None for pk in one.key(pool).tolist()],
                    [KINDS[kind].value for kind in one.key(slices.kind).tolist()],
                    one.sum(slices.energy_uj).tolist(),
                    one.sum(slices.gpu_us).tolist(),
                    one.sum(known_g).tolist(),
                    one.sum(unknown_uj).tolist(),
                    [_moment(at) for at in one.max(slices.end_us).tolist()],
                ),
                strict=True,
            ):
                column.extend(values)
        with connection.cursor() as cursor:
            cursor.execute(ROLLUP_SQL, columns)
        return len(slices)

    def _copy(
        self, which: NDArray[np.bool_], slices: Slices, pool: Ints, carbon_g: Floats, unknown: NDArray[np.bool_]
    ) -> None:
        now_us = np.full(len(slices), round(timezone.now().timestamp() * US_PER_S), dtype=np.int64)
        kinds = tuple(kind.value.encode() for kind in KINDS)
        copying.write(
            "telemetry_energyentry",
            [
                copying.Column("gpu_id", copying.BIGINT, self._gpu[which]),
                copying.Column("site_id", copying.BIGINT, self._site[which]),
                copying.Column("pool_id", copying.BIGINT, pool, pool == 0),
                copying.Column("instance_id", copying.BIGINT, slices.instance, slices.instance == 0),
                copying.moments("start_at", slices.start_us),
                copying.moments("end_at", slices.end_us),
                copying.Column("kind", "", slices.kind, None, kinds),
                copying.Column("energy_uj", copying.BIGINT, slices.energy_uj),
                copying.Column("gpu_us", copying.BIGINT, slices.gpu_us),
                copying.Column("intensity_g_per_kwh", copying.DOUBLE, self._g_per_kwh[which], unknown),
                copying.Column("carbon_gco2e", copying.DOUBLE, carbon_g, unknown),
                copying.moments("posted_at", now_us),
                copying.Column("passing", copying.SMALLINT, self._passing[which]),
            ],
        )


def pools_of(instance: Ints) -> Ints:
    """Returns the pool of each instance, 0: none."""
    ids, place = np.unique(instance, return_inverse=True)
    known = dict(Instance.objects.filter(pk__in=ids.tolist()).values_list("pk", "pool_id"))
    return np.array([known.get(pk, 0) for pk in ids.tolist()], dtype=np.int64)[place]


def intensities(site: Site, interval: Ints) -> SiteValue:
    """Returns the average intensity in each interval: known where the feed has a value for the whole of it."""
    intervals, place = np.unique(interval, return_inverse=True)
    start, end = intervals[0] * INTERVAL_S, (intervals[-1] + 1) * INTERVAL_S
    curve = IntensityCurve(site, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))
    found = [curve.mean(at * INTERVAL_S, (at + 1) * INTERVAL_S) for at in intervals.tolist()]
    values = np.array([np.nan if value is None else value for value in found])
    return SiteValue(values[place], Rates.of(site).pue_at(datetime.fromtimestamp(start, UTC)))


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us // US_PER_S, UTC) + timedelta(microseconds=at_us % US_PER_S)
