"""The energy ledger: every joule of every GPU's counter, entered once, by what the GPU was doing.

A posting reads the samples after a GPU's mark up to the last closed cell, splits the counter's deltas, and moves the
mark by compare-and-swap in the transaction that inserts the entries: two postings at once enter nothing twice, and a
posting that dies leaves nothing half done. The mark stands on a cell's border, where the counter is interpolated.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.db import transaction
from django.db.models import Sum

from pools.models import Gpu, Instance, Site
from scheduler.core.accounting import EnergySlice, MeterPoint, split_intervals
from scheduler.core.units import gco2e
from telemetry.carbon import IntensityCurve
from telemetry.models import EnergyEntry, GpuSample, MeterMark

log = logging.getLogger(__name__)

CELL_S = 10.0
MAX_GAP_S = 5.0
SETTLE_S = 2.0  # samples younger than this may still be on their way
RECENT_S = 60.0
CATCH_UP_S = 3_600.0  # a GPU that lags is caught up by at most this much in one posting


@dataclass(frozen=True, slots=True)
class Posting:
    """What is to be entered for one GPU, and how its mark moves."""

    gpu_id: int
    mark: MeterMark
    slices: Sequence[EnergySlice]
    border_s: float
    counter_j: float
    forgotten_j: float  # what resets took off the counter since the mark


@dataclass(frozen=True, slots=True)
class Balance:
    """Entries against the meter. `difference_j` is zero up to the rounding of floating point."""

    entries_j: float
    metered_j: float

    @property
    def difference_j(self) -> float:
        return self.entries_j - self.metered_j


def post(now: datetime) -> int:
    """Enters what is complete and returns the number of entries made. GPUs that are silent wait until they speak."""
    closed_s = math.floor((now.timestamp() - SETTLE_S) / CELL_S) * CELL_S
    recent = _samples(since=now - timedelta(seconds=RECENT_S), until=now)
    if not recent:
        return 0
    marks = {mark.gpu_id: mark for mark in MeterMark.objects.filter(gpu_id__in=recent)}
    for gpu_id in recent.keys() - marks.keys():
        opened = _open(gpu_id)
        if opened:
            marks[gpu_id] = opened
    postings = []
    for gpu_id, mark in marks.items():
        points = recent[gpu_id]
        if mark.at.timestamp() < points[0].at_s and mark.at.timestamp() < now.timestamp() - RECENT_S:
            points = _lagging(gpu_id, mark)
        posting = _posting(mark, points, closed_s)
        if posting:
            postings.append(posting)
    return _enter(postings) if postings else 0


def balance(gpu: Gpu | int) -> Balance:
    """What the ledger holds of a GPU, and what its counter moved between its first sample and its mark."""
    mark = MeterMark.objects.filter(gpu=gpu).first()
    entered = EnergyEntry.objects.filter(gpu=gpu).aggregate(total=Sum("energy_j"))["total"] or 0.0
    return Balance(entered, mark.energy_j - mark.opened_energy_j if mark else 0.0)


def _samples(since: datetime, until: datetime, gpu_id: int | None = None) -> dict[int, list[MeterPoint]]:
    """Readings of the counter by GPU, in order of time; a sample without a reading tells the meter nothing."""
    rows = GpuSample.objects.filter(at__gte=since, at__lte=until, energy_j__isnull=False)
    if gpu_id is not None:
        rows = rows.filter(gpu_id=gpu_id)
    columns = ("gpu_id", "at", "energy_j", "instance_id", "instance_state", "running")
    values = list(rows.order_by("gpu_id", "at").values_list(*columns))
    pools = dict(Instance.objects.filter(pk__in={v[3] for v in values if v[3]}).values_list("pk", "pool_id"))
    found: dict[int, list[MeterPoint]] = defaultdict(list)
    for gpu, at, energy_j, instance_id, state, running in values:
        points = found[gpu]
        if not points or points[-1].at_s < at.timestamp():
            points.append(MeterPoint(at.timestamp(), energy_j, instance_id, pools.get(instance_id), state, running))
    return found


def _open(gpu_id: int) -> MeterMark | None:
    """The mark of a GPU seen for the first time: its counter at its first sample is where the ledger begins."""
    first = GpuSample.objects.filter(gpu_id=gpu_id, energy_j__isnull=False).order_by("at").first()
    if first is None or first.energy_j is None or not Gpu.objects.filter(pk=gpu_id).exists():
        return None
    mark, _ = MeterMark.objects.get_or_create(
        gpu_id=gpu_id,
        defaults={
            "at": first.at,
            "energy_j": first.energy_j,
            "opened_at": first.at,
            "opened_energy_j": first.energy_j,
        },
    )
    return mark


def _lagging(gpu_id: int, mark: MeterMark) -> list[MeterPoint]:
    """The samples of the hour after the mark, with the last one before it and the first one after the hour."""
    before = timedelta(seconds=RECENT_S)
    end = mark.at + timedelta(seconds=CATCH_UP_S + CELL_S)
    points = _samples(mark.at - before, end, gpu_id).get(gpu_id, [])
    after = GpuSample.objects.filter(gpu_id=gpu_id, at__gt=end, energy_j__isnull=False).order_by("at").first()
    if after is not None:
        points += _samples(after.at, after.at, gpu_id)[gpu_id]
    return points


def _posting(mark: MeterMark, points: list[MeterPoint], closed_s: float) -> Posting | None:
    """Whole cells between the mark and the last border that a sample has passed; None when there is none yet."""
    mark_s = mark.at.timestamp()
    points = _from_mark(mark, points)
    times = [point.at_s for point in points]
    reach_s = min(closed_s, math.floor(times[-1] / CELL_S) * CELL_S, math.floor(mark_s / CELL_S) * CELL_S + CATCH_UP_S)
    if reach_s <= mark_s:
        return None
    used = points[: bisect_left(times, reach_s) + 1]
    slices = [s for s in split_intervals(used, CELL_S, MAX_GAP_S) if s.start_s >= mark_s and s.end_s <= reach_s]
    counter_j, forgotten_j = _counter_at(used[-2], used[-1], reach_s), 0.0
    if any(after.energy_j < before.energy_j for before, after in pairwise(used)):
        forgotten_j = math.fsum(s.energy_j for s in slices) + mark.energy_j - counter_j
    return Posting(mark.gpu_id, mark, slices, reach_s, counter_j, forgotten_j)


def _from_mark(mark: MeterMark, points: list[MeterPoint]) -> list[MeterPoint]:
    """The points from the one before the mark on, so that a gap across the mark is seen in its full length.

    When that one is gone (retention), or a sample came in late behind our back and bends the line on which the mark
    lies, the mark itself takes its place, and what the counter showed below it is passed over: it is entered already.
    """
    mark_s = mark.at.timestamp()
    first = bisect_right(points, mark_s, key=lambda point: point.at_s) - 1
    if first >= 0:
        found = points[first:]
        if len(found) == 1 or math.isclose(_counter_at(found[0], found[1], mark_s), mark.energy_j, rel_tol=1e-9):
            return found
        before_j = found[0].energy_j
        points = [p for p in found[1:] if p.energy_j >= mark.energy_j or p.energy_j < before_j]
    return [MeterPoint(mark_s, mark.energy_j, None, None, None, None), *points]


def _counter_at(before: MeterPoint, after: MeterPoint, at_s: float) -> float:
    """The counter at a border, as `split_intervals` interpolates it; after a reset it counts from nothing."""
    base_j = 0.0 if after.energy_j < before.energy_j else before.energy_j
    share = (at_s - before.at_s) / (after.at_s - before.at_s)
    return min(base_j + (after.energy_j - base_j) * share, after.energy_j)


def _enter(postings: Iterable[Posting]) -> int:
    postings = list(postings)
    sites = {
        gpu.pk: gpu.node.cluster.site
        for gpu in Gpu.objects.filter(pk__in=[p.gpu_id for p in postings]).select_related("node__cluster__site")
    }
    curves = _curves(postings, sites)
    entered = 0
    with transaction.atomic():
        for posting in sorted(postings, key=lambda p: p.gpu_id):  # in one order, so that two postings cannot deadlock
            if not _move_mark(posting):
                log.info("GPU %s was posted by another process", posting.gpu_id)
                continue
            site = sites[posting.gpu_id]
            rows = [_entry(posting.gpu_id, site, curves[site.pk], part) for part in posting.slices]
            EnergyEntry.objects.bulk_create(rows, batch_size=2_000)
            entered += len(rows)
    return entered


def _curves(postings: Sequence[Posting], sites: Mapping[int, Site]) -> dict[int, IntensityCurve]:
    """One reading of each site's intensity for the whole posting."""
    spans: dict[int, tuple[datetime, datetime]] = {}
    for posting in postings:
        site, end = sites[posting.gpu_id].pk, datetime.fromtimestamp(posting.border_s, UTC)
        start, until = spans.get(site, (posting.mark.at, end))
        spans[site] = (min(start, posting.mark.at), max(until, end))
    return {site: IntensityCurve(site, *span) for site, span in spans.items()}


def _move_mark(posting: Posting) -> bool:
    """Compare-and-swap. A reset lowers the opening by what the counter forgot, so that the balance still holds."""
    mark = posting.mark
    moved = MeterMark.objects.filter(gpu_id=posting.gpu_id, at=mark.at, energy_j=mark.energy_j).update(
        at=datetime.fromtimestamp(posting.border_s, UTC),
        energy_j=posting.counter_j,
        opened_energy_j=mark.opened_energy_j - posting.forgotten_j,
    )
    return moved == 1


def _entry(gpu_id: int, site: Site, curve: IntensityCurve, part: EnergySlice) -> EnergyEntry:
    intensity = curve.mean(part.start_s, part.end_s)
    return EnergyEntry(
        gpu_id=gpu_id,
        site=site,
        pool_id=part.pool_id,
        instance_id=part.instance_id,
        start_at=datetime.fromtimestamp(part.start_s, UTC),
        end_at=datetime.fromtimestamp(part.end_s, UTC),
        kind=part.kind.value,
        energy_j=part.energy_j,
        intensity_g_per_kwh=intensity,
        carbon_gco2e=None if intensity is None else gco2e(part.energy_j, intensity, site.pue),
    )
