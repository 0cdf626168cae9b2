"""Finds the whole intervals that follow from a counter's readings since its watermark, and where that is to move.

A watermark stands on an interval's border, where the counter is interpolated: whoever moves it by compare-and-swap, in
the transaction that inserts what `advance` gave, enters every microjoule once. One that lies ahead of the clock is set
back, with the reading that it has: the counter goes on from there, at times that the clock comes by again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import F, Max, QuerySet

from core.accounting import counters
from core.accounting.counters import MeterTrace, Slices
from core.units import US_PER_S
from pools import clock_repairs
from telemetry.ledger.energy_entries import INTERVAL_S

log = logging.getLogger(__name__)

MAX_GAP_S = 5.0
CATCH_UP_S = 3_600.0  # a counter that lags is caught up by at most this much in one posting
INTERVAL_US = round(INTERVAL_S * US_PER_S)


@dataclass(frozen=True, slots=True)
class Watermark:
    """A counter's watermark: the moment and the reading up to which it is entered. `name` is for the log."""

    name: str
    at_us: int
    energy_uj: int


@dataclass(frozen=True, slots=True)
class Advance:
    """The energy to enter for one counter, and how its watermark moves."""

    slices: Slices
    border_us: int
    counter_uj: int
    forgotten_uj: int  # what resets took off the counter since the watermark


@transaction.atomic
def set_back(marks: QuerySet[Any], of: str, now: datetime) -> int:
    """Sets the watermarks that lie ahead of the clock back to the next border after `now`; returns how many.

    Entries from there on are of another passing (`passing`) of the clock through the same intervals. `of`: whose they
    are, in the plural.
    """
    ahead = marks.filter(at__gt=now + clock_repairs.AHEAD)
    furthest = ahead.aggregate(furthest=Max("at"))["furthest"]
    if furthest is None:
        return 0
    rows = ahead.update(at=moment(floor(micros(now)) + INTERVAL_US), passing=F("passing") + 1)
    if rows:
        clock_repairs.note(f"watermarks of {of}", rows, furthest, now)
    return rows


def advance(
    watermark: Watermark, trace: MeterTrace, closed_us: int, most_w: float, max_gap_s: float = MAX_GAP_S
) -> Advance | None:
    """Returns the whole intervals that are closed after the watermark; None: there is none yet.

    `most_w`: no counter of its kind rises faster. A delta over more than `max_gap_s` is unattributed.
    """
    trace = _from_watermark(watermark, trace.pick(counters.plausible(trace, most_w)))
    trace = trace.pick(counters.plausible(trace, most_w))
    border_us = min(closed_us, floor(int(trace.at_us[-1])), floor(watermark.at_us) + round(CATCH_UP_S * US_PER_S))
    if border_us <= watermark.at_us:
        return None
    used = trace.pick(slice(0, int(np.searchsorted(trace.at_us, border_us)) + 1))
    slices = counters.split(used, INTERVAL_S, max_gap_s)
    slices = slices.pick((slices.start_us >= watermark.at_us) & (slices.end_us <= border_us))
    counter_uj = counters.counter_at(used.at(-2), used.at(-1), border_us)
    forgotten_uj = int(slices.energy_uj.sum()) + watermark.energy_uj - counter_uj
    if forgotten_uj and not np.any(np.diff(used.energy_uj) < 0):
        log.error("%s: %d uJ would be entered that its meter does not have", watermark.name, forgotten_uj)
        return None
    return Advance(slices, border_us, counter_uj, forgotten_uj)


def _from_watermark(watermark: Watermark, trace: MeterTrace) -> MeterTrace:
    """Returns the readings from the one before the watermark on, so that a gap across it is seen in its full length.

    When that one is gone (retention), or a sample came in late behind our back and bends the line on which the
    watermark lies, the watermark itself takes its place, and what the counter showed below it is passed over: it is
    entered already.
    """
    at_us, energy_uj = watermark.at_us, watermark.energy_uj
    first = int(np.searchsorted(trace.at_us, at_us, side="right")) - 1
    if first >= 0:
        found = trace.pick(slice(first, None))
        if len(found) == 1 or counters.counter_at(found.at(0), found.at(1), at_us) == energy_uj:
            return found
        trace = found.pick(slice(1, None))
        trace = trace.pick((trace.energy_uj >= energy_uj) | (trace.energy_uj < found.energy_uj[0]))
    return trace.after(at_us, energy_uj)


def micros(at: datetime) -> int:
    return round(at.timestamp() * US_PER_S)


def moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us // US_PER_S, UTC) + timedelta(microseconds=at_us % US_PER_S)


def floor(at_us: int) -> int:
    """Returns the border of intervals at or before."""
    return at_us // INTERVAL_US * INTERVAL_US
