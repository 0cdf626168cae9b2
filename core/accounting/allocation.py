"""Shares the joules of serving instances out among the requests that they served: exactly, and by token-time.

Within an interval an instance's energy goes to the requests that were in it, each by the time that its tokens keep the
engine busy: prompt tokens x seconds per prompt token while it was prefilled, output tokens x seconds per output token
while it was decoded, both spread evenly over that phase. What nobody was there for stays unattributed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.units import US_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PREFILL, DECODE = 0, 1


@dataclass(frozen=True, slots=True)
class TokenTime:
    """Seconds for which one token keeps an engine busy; only their ratio counts. `source` says whose figures."""

    prefill_s: float
    decode_s: float
    source: str

    def __post_init__(self) -> None:
        if not (self.prefill_s > 0 and self.decode_s > 0):
            raise ValueError(
                f"prefill_s and decode_s are above 0 seconds per token, not {self.prefill_s}, {self.decode_s}"
            )


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """Requests by the instance that served them, with the spans of their two phases.

    Attributes:
        prefill_s, decode_s: Its tokens of each phase x the engine's seconds per token; 0: nothing is known of them.
    """

    instance: Ints
    prefill_from_us: Ints
    prefill_to_us: Ints
    decode_from_us: Ints
    decode_to_us: Ints
    prefill_s: Floats
    decode_s: Floats

    def __len__(self) -> int:
        return len(self.instance)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts of an interval that went to requests: weights, in the order of intervals and then of requests."""

    interval: Ints  # by its place among the intervals given
    request: Ints  # likewise
    phase: Ints  # PREFILL or DECODE
    weight: Ints  # nanoseconds of the engine's time, at least 1

    def __len__(self) -> int:
        return len(self.interval)


def share_out(totals: Ints, group: Ints, weight: Ints) -> Ints:
    """Cuts each group's whole total into whole shares by weight, (shares,): they add up to it exactly.

    The running sum of the shares is the rounded-down running sum of the exact ones, so each share is within 1 of its
    exact value, and nothing is left over. (The largest remainder does as much, and needs a sort.)

    Args:
        totals: Of each group, of either sign and below 2**53 in size.
        group: The group of each share, by its place in `totals`; sorted.
        weight: Of each share, above 0. Whole, so that a group's shares do not depend on which others stand beside it.
    """
    if not len(group):
        return np.zeros(0, dtype=np.int64)
    running = np.cumsum(weight)
    first = np.concatenate([[0], np.flatnonzero(np.diff(group)) + 1])
    counts = np.diff(np.concatenate([first, [len(group)]]))
    last = first + counts - 1
    before = np.repeat(np.where(first > 0, running[first - 1], 0), counts)
    whole = np.repeat(running[last], counts) - before
    total = totals[group]
    reached = np.floor(total * ((running - before) / whole)).astype(np.int64)
    reached[last] = total[last]
    shares: Ints = np.diff(reached, prepend=0) + _at(first, np.concatenate([[0], reached[last[:-1]]]), len(group))
    return shares


def _at(places: Ints, values: Ints, length: int) -> Ints:
    """Makes an array of zeros but for these values in these places, (length,)."""
    found = np.zeros(length, dtype=np.int64)
    found[places] = values
    return found


def pieces(requests: RequestSpans, instance: Ints, interval: Ints, interval_s: float = 10.0) -> Pieces:
    """Finds which request was in which interval of its instance, and how much of the engine's time it took there.

    Args:
        instance, interval: The intervals in which instances served, each (instance, interval) once, sorted by both.
    """
    interval_us = round(interval_s * US_PER_S)
    n = len(requests)
    which = np.concatenate([np.arange(n), np.arange(n)])
    phase = np.repeat([PREFILL, DECODE], n)
    weight = np.concatenate([requests.prefill_s, requests.decode_s])
    start_us = np.concatenate([requests.prefill_from_us, requests.decode_from_us])
    end_us = np.concatenate([requests.prefill_to_us, requests.decode_to_us])
    some = weight > 0.0
    which, phase, weight, start_us, end_us = (a[some] for a in (which, phase, weight, start_us, end_us))
    end_us = np.maximum(end_us, start_us + 1)  # a phase too short for the clock still happened

    first = start_us // interval_us
    counts = (end_us - 1) // interval_us - first + 1
    of = np.repeat(np.arange(len(which)), counts)
    at = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    overlap_us = np.minimum(end_us[of], (at + 1) * interval_us) - np.maximum(start_us[of], at * interval_us)
    place = _find(instance, interval, requests.instance[which[of]], at)
    known = (place >= 0) & (overlap_us > 0)
    of, place, overlap_us = of[known], place[known], overlap_us[known]
    order = np.lexsort((phase[of], which[of], place))
    of, place, overlap_us = of[order], place[order], overlap_us[order]
    engine_ns = np.rint(weight[of] * 1e9 * overlap_us / (end_us - start_us)[of]).astype(np.int64)
    return Pieces(place, which[of], phase[of], np.maximum(engine_ns, 1))


def _find(instance: Ints, interval: Ints, wanted_instance: Ints, wanted_interval: Ints) -> Ints:
    """The place of each wanted (instance, interval) among those given, -1: it is not there."""
    if not len(interval):
        return np.full(len(wanted_interval), -1, dtype=np.int64)
    low, width = int(interval.min()), int(interval.max()) - int(interval.min()) + 1
    keys, wanted = instance * width + (interval - low), wanted_instance * width + (wanted_interval - low)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    inside = (wanted_interval >= low) & (wanted_interval < low + width)
    return np.where(inside & (keys[place] == wanted), place, -1)
