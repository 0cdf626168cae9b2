"""Splits a GPU's energy counter by what the GPU was doing, so that not a joule is lost or counted twice.

Counters are whole microjoules and times whole microseconds (which is what NVML's millijoules and PostgreSQL's
timestamps are made of): sums of integers are exact in any order, so what is split adds up to the counter to the last
microjoule, not up to the rounding of floating point.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from core.accounting.grouping import Groups
from core.units import US_PER_S

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class EnergyKind(StrEnum):
    SERVING = "serving"  # an instance with running requests
    IDLE = "idle"  # powered, nothing to do, with or without a loaded model
    TRANSITION = "transition"  # an instance starting or draining away
    UNATTRIBUTED = "unattributed"  # metered, but nobody saw what for


KINDS = tuple(EnergyKind)  # arrays hold a kind by its place here
STATES = ("", "starting", "ready", "draining", "failed")  # likewise an instance's; what is not here is -1
SERVING, IDLE, TRANSITION, UNATTRIBUTED = range(4)
_STARTING, _READY, _DRAINING, _FAILED = range(1, 5)


@dataclass(frozen=True, slots=True)
class MeterTrace:
    """The readings of one GPU's counter, in order of time. All arrays are of one length.

    Attributes:
        instance: Its id, 0: the GPU was held by none.
        state: By its place in STATES, -1: one that is not known.
        running: Requests, -1: the engine did not say.
    """

    at_us: Ints
    energy_uj: Ints
    instance: Ints
    state: Ints
    running: Ints

    def __len__(self) -> int:
        return len(self.at_us)

    def pick(self, which: Mask | slice) -> MeterTrace:
        return MeterTrace(*(getattr(self, name)[which] for name in MeterTrace.__slots__))

    def at(self, place: int) -> tuple[int, int]:
        """Returns when a reading was taken (us), and the counter (uJ)."""
        return int(self.at_us[place]), int(self.energy_uj[place])

    def joined(self, later: MeterTrace) -> MeterTrace:
        return MeterTrace(*(np.concatenate([getattr(self, n), getattr(later, n)]) for n in MeterTrace.__slots__))

    def after(self, at_us: int, energy_uj: int) -> MeterTrace:
        """Returns the trace with a reading in front that says nothing but what the counter stood at."""
        first = (at_us, energy_uj, 0, 0, -1)
        return MeterTrace(*(np.array([value], dtype=np.int64) for value in first)).joined(self)


@dataclass(frozen=True, slots=True)
class Slices:
    """Energy of one GPU by interval, kind and instance, in that order. `gpu_us`: how long the GPU was at it."""

    interval: Ints
    kind: Ints
    instance: Ints
    start_us: Ints
    end_us: Ints
    energy_uj: Ints
    gpu_us: Ints

    def __len__(self) -> int:
        return len(self.interval)

    def pick(self, which: Mask) -> Slices:
        return Slices(*(getattr(self, name)[which] for name in Slices.__slots__))


def plausible(trace: MeterTrace, most_w: float) -> Mask:
    """Which readings belong to the counter's course: it only rises, but for a driver that is loaded again.

    A counter that starts again has by its next reading counted at most `most_w` x the time since the last one. One
    that is lower than the one before and higher than that is out of its order: the node's clock was set back or forth,
    and samples of before and after interleave. Such readings are passed over, as is a low one after which the counter
    goes on from where it was: its course has their energy.
    """
    keep = np.ones(len(trace), dtype=np.bool_)
    if not np.any(np.diff(trace.energy_uj) < 0):
        return keep
    at, energy = trace.at_us.tolist(), trace.energy_uj.tolist()

    def reachable(delta_uj: int, length_us: int) -> bool:
        return delta_uj <= most_w * (length_us + US_PER_S)  # W x us = uJ; a second more for two clocks' difference

    top = 0
    for i in range(1, len(at)):
        if energy[i] < energy[top]:
            goes_on = (
                i + 1 < len(at)
                and energy[i + 1] >= energy[top]
                and not reachable(energy[i + 1] - energy[i], at[i + 1] - at[i])
            )
            if goes_on or not reachable(energy[i], at[i] - at[top]):
                keep[i] = False
                continue
        top = i
    return keep


def split(trace: MeterTrace, interval_s: float = 10.0, max_gap_s: float = 5.0) -> Slices:
    """Returns the energy between the first and the last reading by interval, kind and instance.

    - The delta between two readings goes to what the later one saw, since the counter has just recorded it.
    - A delta over more than `max_gap_s` is unattributed: what happened in between was not seen.
    - A counter that went down was reset (driver reloaded): its new value is what it counted since, unattributed.
    - A delta across a border of intervals is divided in proportion to time (`counter_at`).

    Without a reset the slices add up to last - first, exactly, and each interval's to the difference of the counter at
    its ends; with one, to the deltas plus the new value. Intervals are aligned to multiples of `interval_s`.

    Raises:
        ValueError: The readings are not strictly in order of time.
    """
    length_us = np.diff(trace.at_us)
    if np.any(length_us <= 0):
        at = int(np.argmax(length_us <= 0))
        raise ValueError(f"samples must be in order of time: {trace.at_us[at + 1]} us follows {trace.at_us[at]} us")
    delta_uj = np.diff(trace.energy_uj)
    reset = delta_uj < 0
    delta_uj = np.where(reset, trace.energy_uj[1:], delta_uj)
    unseen = reset | (length_us > max_gap_s * US_PER_S)
    kind = np.where(unseen, UNATTRIBUTED, _kinds(trace)[1:])
    instance = np.where(unseen, 0, trace.instance[1:])

    interval_us = round(interval_s * US_PER_S)
    first = trace.at_us[:-1] // interval_us
    pieces = (trace.at_us[1:] - 1) // interval_us - first + 1
    of = np.repeat(np.arange(len(pieces)), pieces)
    interval = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start_us = np.maximum(trace.at_us[of], interval * interval_us)
    end_us = np.minimum(trace.at_us[of + 1], (interval + 1) * interval_us)
    begun_us = trace.at_us[of]
    energy_uj = _reached(delta_uj[of], end_us - begun_us, length_us[of]) - _reached(
        delta_uj[of], start_us - begun_us, length_us[of]
    )
    return merged(Slices(interval, kind[of], instance[of], start_us, end_us, energy_uj, end_us - start_us))


def counter_at(before: tuple[int, int], after: tuple[int, int], at_us: int) -> int:
    """Returns the counter in microjoules at a moment between two readings (at_us, energy_uj), as `split` interpolates
    it.

    After a reset it counts from nothing.
    """
    base_uj = 0 if after[1] < before[1] else before[1]
    share = np.array([at_us - before[0]]), np.array([after[0] - before[0]])
    return base_uj + int(_reached(np.array([after[1] - base_uj]), *share)[0])


def _kinds(trace: MeterTrace) -> Ints:
    state, running = trace.state, trace.running
    rules = (
        (trace.instance == 0, IDLE),
        (((state == _READY) | (state == _DRAINING)) & (running > 0), SERVING),
        ((state == _STARTING) | (state == _DRAINING), TRANSITION),
        ((state == _READY) & (running < 0), UNATTRIBUTED),  # the engine did not answer: busy or idle is not known
        ((state == _READY) | (state == _FAILED), IDLE),
    )
    return np.select([rule for rule, _ in rules], [kind for _, kind in rules], UNATTRIBUTED).astype(np.int64)


def _reached(delta_uj: Ints, passed_us: Ints, length_us: Ints) -> Ints:
    """Returns how much of a delta, in uJ, was counted when `passed_us` of `length_us` had passed: exactly all at the
    end."""
    return np.floor(delta_uj * (passed_us / length_us)).astype(np.int64)


def merged(pieces: Slices) -> Slices:
    """Merges pieces into one slice for each interval, kind and instance."""
    one = Groups.by(pieces.interval, pieces.kind, pieces.instance)
    return Slices(
        one.key(pieces.interval),
        one.key(pieces.kind),
        one.key(pieces.instance),
        one.min(pieces.start_us),
        one.max(pieces.end_us),
        one.sum(pieces.energy_uj),
        one.sum(pieces.gpu_us),
    )
