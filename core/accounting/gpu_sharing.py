"""Divides the energy of a GPU that is cut into slices among the engines on it, so that its parts add up exactly.

A meter counts a whole GPU. Of what it counted while requests ran, each slice has an equal part of the GPU's idle power,
and what is above that goes by the work that each engine did (token-time, as requests' shares of an engine's energy do).
While none ran, all slices have equal parts. A slice that nobody has is idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.accounting.counters import IDLE, SERVING, Slices, merged

Ints = NDArray[np.int64]
NOBODY = 0


@dataclass(frozen=True, slots=True)
class Sharer:
    """An engine that has one of a GPU's slices from `since_us` until `until_us`, and its work by interval."""

    instance: int
    since_us: int
    until_us: int
    work: Mapping[int, float] = field(default_factory=dict)

    def there(self, start_us: int, end_us: int) -> bool:
        return self.since_us < end_us and start_us < self.until_us


def divided(found: Slices, sharers: Sequence[Sharer], slices: int, idle_w: float) -> Slices:
    """Returns the rows of a GPU (Slices of time) as those of the engines that have parts of it.

    Args:
        slices: Into how many the GPU is cut.
        idle_w: Its idle power; 0 where that is not known: all goes by work then.
    """
    rows: list[tuple[int, ...]] = []
    for interval, kind, instance, start_us, end_us, energy_uj, gpu_us in zip(
        *(getattr(found, name).tolist() for name in Slices.__slots__), strict=True
    ):
        there = [own for own in sharers if own.there(start_us, end_us)]
        if instance == NOBODY or not there:
            rows.append((interval, kind, instance, start_us, end_us, energy_uj, gpu_us))
            continue
        who = [own.instance for own in there] + [NOBODY] * (slices - len(there))
        work = [own.work.get(interval, 0.0) if kind == SERVING else 0.0 for own in there]
        idle_uj = min(energy_uj, round(idle_w * gpu_us)) if sum(work) > 0.0 else energy_uj  # W x us = uJ
        equal = _parts(idle_uj, [1.0] * len(who))
        above = _parts(energy_uj - idle_uj, work) + [0] * (len(who) - len(work))
        times = _parts(gpu_us, [1.0] * len(who))
        works = [bool(own) for own in work] + [False] * (len(who) - len(work))
        for place, one in enumerate(who):
            idle = one == NOBODY or (kind == SERVING and any(works) and not works[place])
            own_kind = IDLE if idle else kind
            rows.append((interval, own_kind, one, start_us, end_us, equal[place] + above[place], times[place]))
    columns: list[Ints] = list(np.array(rows, dtype=np.int64).reshape(-1, len(Slices.__slots__)).T)
    return merged(Slices(*columns))


def _parts(whole: int, weights: Sequence[float]) -> list[int]:
    """Divides a whole number by weights: the parts add up to it. Nothing by no weight."""
    total = sum(weights)
    if total <= 0.0:
        return [0] * len(weights)
    borders = np.rint(np.cumsum(weights) / total * whole).astype(np.int64)
    borders[-1] = whole
    return [int(part) for part in np.diff(borders, prepend=0)]
