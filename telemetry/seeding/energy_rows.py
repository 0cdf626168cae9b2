"""A modelled day's joules as rows of the ledger, repeated over the past: entries, their sums, and open watermarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from core.accounting.allocation import share_out
from core.accounting.counters import IDLE, KINDS, SERVING
from core.units import US_PER_S, ug_per_uj
from pools.models import Instance, Site
from telemetry.ledger.rates import Rates
from telemetry.ledger.window_sources import WINDOW_S
from telemetry.models import MeterMark
from telemetry.models.rollups import STEPS_S
from telemetry.seeding.modelled_day import MINUTE_S, MINUTES, EngineDay, Mask
from telemetry.seeding.modelled_engine import Floats, Ints
from telemetry.storage import copying
from telemetry.storage.copying import Column

MINUTE_US = MINUTE_S * US_PER_S
WINDOW_MINUTES = round(WINDOW_S / MINUTE_S)
KIND_TEXTS = tuple(kind.value.encode() for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Series:
    """Holds what each GPU of a group used for one thing, by minute of the day, (minutes,). 0: no instance, no pool."""

    kind: int
    instance: int
    pool: int
    energy_uj: Ints
    gpu_us: Ints


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs of a site that do the same all day."""

    site: Site
    gpu_ids: tuple[int, ...]
    series: tuple[Series, ...]

    @classmethod
    def of_engine(
        cls, site: Site, instance: Instance, gpu_ids: tuple[int, ...], day: EngineDay, empty_w: float
    ) -> GpuGroup:
        """Returns the GPUs of an instance: they hold nothing while it is not there."""
        up, busy, own = day.up, day.busy, (instance.pk, instance.pool_id)
        serving = Series(SERVING, *own, busy.serving_uj, busy.busy_us)
        idle = Series(IDLE, *own, np.where(up, busy.idle_uj, 0), np.where(up, MINUTE_US - busy.busy_us, 0))
        return cls(site, gpu_ids, (serving, idle, _empty(~up, empty_w)))

    @classmethod
    def empty(cls, site: Site, gpu_ids: tuple[int, ...], empty_w: float) -> GpuGroup:
        return cls(site, gpu_ids, (_empty(np.ones(MINUTES, dtype=np.bool_), empty_w),))


def _empty(when: Mask, empty_w: float) -> Series:
    return Series(IDLE, 0, 0, np.where(when, round(empty_w * MINUTE_US), 0), np.where(when, MINUTE_US, 0))


Key = tuple[int, int, int]  # site, pool, kind


def write(groups: Sequence[GpuGroup], curves: Mapping[int, Floats], start: datetime, end: datetime) -> None:
    """Writes entries as long as a window; those of a window that the past does not fill are as long as a minute.

    Args:
        curves: By site, the intensity in each window of a day, in g/kWh, NaN where it is not known.
        start, end: Midnight (UTC), and a whole minute.
    """
    n = round((end - start).total_seconds() / MINUTE_S)
    whole = n - n % WINDOW_MINUTES
    first = np.concatenate([np.arange(0, whole, WINDOW_MINUTES), np.arange(whole, n)])
    window = first // WINDOW_MINUTES
    length = np.diff(np.append(first, n))
    start_us = round(start.timestamp()) * US_PER_S + first * MINUTE_US
    entry_of = np.repeat(np.arange(len(first)), length)
    sums: dict[Key, Ints] = {}
    entries: list[tuple[Any, ...]] = []
    used_uj = {gpu: 0 for group in groups for gpu in group.gpu_ids}
    for group in groups:
        g_per_kwh = np.resize(curves[group.site.pk], window[-1] + 1)[window]
        ug = g_per_kwh * ug_per_uj(1.0) * Rates.of(group.site).pue_at(start)
        for one in group.series:
            energy, gpu_us = np.resize(one.energy_uj, n), np.resize(one.gpu_us, n)
            entry_uj, entry_us = np.add.reduceat(energy, first), np.add.reduceat(gpu_us, first)
            carbon_ug = np.rint(entry_uj * np.nan_to_num(ug)).astype(np.int64)
            unknown = np.where(np.isnan(ug)[entry_of], energy, 0)
            minutes = np.stack([energy, gpu_us, _spread(carbon_ug, entry_of, energy), unknown]) * len(group.gpu_ids)
            key = group.site.pk, one.pool, one.kind
            sums[key] = sums[key] + minutes if key in sums else minutes
            there = entry_us > 0
            columns = (start_us, start_us + length * MINUTE_US, entry_uj, entry_us, g_per_kwh, carbon_ug / 1e6)
            for gpu in group.gpu_ids:
                used_uj[gpu] += int(energy.sum())
                named = (gpu, group.site.pk, one.pool, one.instance, one.kind)
                own = (np.full(len(first), value, dtype=np.int64) for value in named)
                entries.append(tuple(column[there] for column in (*own, *columns)))
    _write_entries([np.concatenate(column) for column in zip(*entries, strict=True)], end)
    for step_s in STEPS_S:
        _write_sums(sums, step_s, start, n)
    MeterMark.objects.bulk_create(
        MeterMark(gpu_id=pk, at=end, energy_uj=0, opened_at=start, opened_energy_uj=-uj) for pk, uj in used_uj.items()
    )


def _spread(totals: Ints, entry_of: Ints, weight: Ints) -> Ints:
    """Cuts what entries emitted by the energy of their minutes, (minutes,): the parts add up to it."""
    found, some = np.zeros(len(weight), dtype=np.int64), weight > 0
    found[some] = share_out(totals, entry_of[some], weight[some])
    return found


def _write_entries(columns: Sequence[Any], end: datetime) -> None:
    gpu, site, pool, instance, kind, start_us, end_us, energy_uj, gpu_us, g_per_kwh, carbon_g = columns
    unknown = np.isnan(g_per_kwh)
    copying.write(
        "telemetry_energyentry",
        [
            Column("gpu_id", copying.BIGINT, gpu),
            Column("site_id", copying.BIGINT, site),
            Column("pool_id", copying.BIGINT, pool, pool == 0),
            Column("instance_id", copying.BIGINT, instance, instance == 0),
            copying.moments("start_at", start_us),
            copying.moments("end_at", end_us),
            Column("kind", "", kind, None, KIND_TEXTS),
            Column("energy_uj", copying.BIGINT, energy_uj),
            Column("gpu_us", copying.BIGINT, gpu_us),
            Column("intensity_g_per_kwh", copying.DOUBLE, g_per_kwh, unknown),
            Column("carbon_gco2e", copying.DOUBLE, carbon_g, unknown),
            copying.moments("posted_at", np.full(len(gpu), round(end.timestamp()) * US_PER_S)),
        ],
    )


def _write_sums(sums: Mapping[Key, Ints], step_s: int, start: datetime, n: int) -> None:
    first = np.arange(0, n, step_s // MINUTE_S)
    start_us = round(start.timestamp()) * US_PER_S
    rows = []
    for (site, pool, kind), minutes in sums.items():
        energy, gpu_us, carbon_ug, unknown = np.add.reduceat(minutes, first, axis=1)
        last = np.maximum.reduceat(np.where(minutes[1] > 0, np.arange(n) + 1, 0), first)
        own = (np.full(len(first), value, dtype=np.int64) for value in (site, pool, kind))
        row = (
            *own,
            start_us + first * MINUTE_US,
            energy,
            gpu_us,
            carbon_ug / 1e6,
            unknown,
            start_us + last * MINUTE_US,
        )
        rows.append(tuple(column[gpu_us > 0] for column in row))
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    site_id, pool_id, kinds, at_us, energy, gpu_us, carbon_g, unknown, until_us = columns
    copying.write(
        "telemetry_energyrollup",
        [
            Column("step_s", copying.INTEGER, np.full(len(at_us), step_s)),
            copying.moments("start_at", at_us),
            Column("site_id", copying.BIGINT, site_id),
            Column("pool_id", copying.BIGINT, pool_id, pool_id == 0),
            Column("kind", "", kinds, None, KIND_TEXTS),
            Column("energy_uj", copying.BIGINT, energy),
            Column("gpu_us", copying.BIGINT, gpu_us),
            Column("carbon_gco2e", copying.DOUBLE, carbon_g),
            Column("unknown_uj", copying.BIGINT, unknown),
            copying.moments("until", until_us),
        ],
    )
