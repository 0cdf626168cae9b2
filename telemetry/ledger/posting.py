"""The energy ledger: every joule of every GPU's counter, entered once, by what the GPU was doing.

A posting reads the samples after a GPU's watermark up to the last closed interval, splits the counter's deltas, and
moves the watermark by compare-and-swap in the transaction that inserts the entries: two postings at once enter nothing
twice, and a posting that dies leaves nothing half done. The watermark stands on an interval's border, where the counter
is interpolated. All of it is in whole microjoules, so that entries and counter balance exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction

from core.accounting.counters import MeterTrace
from core.units import US_PER_S
from pools.models import Gpu
from telemetry.ledger import counter_traces, energy_entries, shared_gpus
from telemetry.ledger.energy_entries import INTERVAL_S as INTERVAL_S
from telemetry.ledger.watermarks import (
    CATCH_UP_S,
    INTERVAL_US,
    Advance,
    Watermark,
    advance,
    floor,
    micros,
    moment,
    set_back,
)
from telemetry.models import MeterMark

log = logging.getLogger(__name__)

SETTLE_S = 2.0  # samples younger than this may still be on their way
RECENT_S = 60.0
READINGS_AT_ONCE = 1_000_000  # bounds the memory of a posting that catches up
MOST_TDP = 2.0  # no counter rises faster than this many times the GPU's TDP


@dataclass(frozen=True, slots=True)
class Posting:
    """The energy to enter for one GPU, and how its watermark moves."""

    watermark: MeterMark
    advance: Advance


def post(now: datetime) -> int:
    """Enters what is complete and returns the number of entries made. GPUs that are silent wait until they speak."""
    set_back(MeterMark.objects.all(), "GPUs", now)
    closed_us = floor(micros(now) - round(SETTLE_S * US_PER_S))
    recent = counter_traces.readings(now - timedelta(seconds=RECENT_S), now)
    if not recent:
        return 0
    watermarks = {watermark.gpu_id: watermark for watermark in MeterMark.objects.filter(gpu_id__in=recent)}
    watermarks |= _open([gpu_id for gpu_id in recent if gpu_id not in watermarks], now)
    most_w = {pk: tdp_w * MOST_TDP for pk, tdp_w in Gpu.objects.filter(pk__in=watermarks).values_list("pk", "tdp_w")}
    lag, entered = [], 0
    near: dict[int, MeterTrace] = {}
    for gpu_id, watermark in watermarks.items():
        seen_us = min(int(recent[gpu_id].at_us[0]), micros(now) - round(RECENT_S * US_PER_S))
        if micros(watermark.at) < seen_us:
            lag.append(watermark)
        else:
            near[gpu_id] = recent[gpu_id]
    entered += _post(watermarks, near, most_w, closed_us)
    while lag:
        turn, lag, traces = _lagging(lag, now)
        entered += _post({watermark.gpu_id: watermark for watermark in turn}, traces, most_w, closed_us)
    return entered


def _open(gpu_ids: list[int], now: datetime) -> dict[int, MeterMark]:
    """The watermarks of GPUs seen for the first time: a counter at its first sample is where the ledger begins."""
    if not gpu_ids:
        return {}
    known = set(Gpu.objects.filter(pk__in=gpu_ids).values_list("pk", flat=True))
    watermarks = {}
    for gpu_id, first in counter_traces.first_after(datetime.fromtimestamp(0, UTC), now, known).items():
        at, energy_uj = moment(int(first.at_us[0])), int(first.energy_uj[0])
        opening = {"at": at, "energy_uj": energy_uj, "opened_at": at, "opened_energy_uj": energy_uj}
        watermarks[gpu_id], _ = MeterMark.objects.get_or_create(gpu_id=gpu_id, defaults=opening)
    return watermarks


def _lagging(
    watermarks: list[MeterMark], now: datetime
) -> tuple[list[MeterMark], list[MeterMark], Mapping[int, MeterTrace]]:
    """Those furthest behind that can be read together, the others, and the former's readings.

    They are those of the hour after the watermark, with the last one before it and the first one after the hour.
    """
    watermarks = sorted(watermarks, key=lambda watermark: watermark.at)
    span = timedelta(seconds=max(RECENT_S, min(CATCH_UP_S, READINGS_AT_ONCE / len(watermarks))))
    end = watermarks[0].at + span + timedelta(seconds=INTERVAL_S)
    turn = [watermark for watermark in watermarks if watermark.at < watermarks[0].at + span]
    gpus = [watermark.gpu_id for watermark in turn]
    traces = counter_traces.readings(watermarks[0].at - timedelta(seconds=RECENT_S), min(end, now), gpus)
    reached = micros(end) - INTERVAL_US
    short = [gpu for gpu in gpus if gpu not in traces or traces[gpu].at_us[-1] < reached]
    for gpu_id, after in (counter_traces.first_after(end, now, short) if short else {}).items():
        traces[gpu_id] = traces[gpu_id].joined(after) if gpu_id in traces else after
    return turn, watermarks[len(turn) :], traces


def _post(
    watermarks: Mapping[int, MeterMark], traces: Mapping[int, MeterTrace], most_w: Mapping[int, float], closed_us: int
) -> int:
    made = (_posting(watermarks[gpu], traces[gpu], closed_us, most_w[gpu]) for gpu in sorted(traces) if gpu in most_w)
    postings = [posting for posting in made if posting]
    if not postings:
        return 0
    gpu_ids = [p.watermark.gpu_id for p in postings]
    values = energy_entries.Values(
        gpu_ids,
        shared_gpus.by_engine(gpu_ids, [p.advance.slices for p in postings]),
        [p.watermark.passing for p in postings],
    )
    with transaction.atomic():
        moved = []
        for posting in postings:  # in one order, so that two postings cannot deadlock
            moved.append(_move_watermark(posting))
            if not moved[-1]:
                log.info("GPU %s was posted by another process", posting.watermark.gpu_id)
        return values.enter(moved)


def _posting(watermark: MeterMark, trace: MeterTrace, closed_us: int, most_w: float) -> Posting | None:
    """Returns the whole intervals that are closed after the watermark; None: there is none yet."""
    stands = Watermark(f"GPU {watermark.gpu_id}", micros(watermark.at), watermark.energy_uj)
    found = advance(stands, trace, closed_us, most_w)
    return None if found is None else Posting(watermark, found)


def _move_watermark(posting: Posting) -> bool:
    """Moves the watermark by compare-and-swap. A reset lowers the opening by what the counter forgot: it balances."""
    watermark, reached = posting.watermark, posting.advance
    moved = MeterMark.objects.filter(gpu_id=watermark.gpu_id, at=watermark.at, energy_uj=watermark.energy_uj).update(
        at=moment(reached.border_us),
        energy_uj=reached.counter_uj,
        opened_energy_uj=watermark.opened_energy_uj - reached.forgotten_uj,
    )
    return moved == 1
