"""What counters counted between two scrapes: resets and gaps are named, and nothing that was not seen is zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from pools.metric_names import GAUGES

from .scrapes import START_TIME, SampleKey, Scrape, Target


@dataclass(frozen=True, slots=True)
class Increase:
    """Counts of each series from one scrape to the next that could be read. `reset`: the process was another one."""

    from_s: float
    to_s: float
    values: Mapping[SampleKey, float]
    reset: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of time in which a target could not be read. `counted`: what happened meanwhile was read afterwards."""

    from_s: float
    to_s: float
    reason: str
    counted: bool


def increases(target: Target) -> tuple[Increase, ...]:
    """Returns what an engine's counters counted from scrape to scrape.

    A process that began anew counts from zero: what it counted since is an increase, what the one before counted
    after its last scrape is lost. A series that appears on a later page begins at zero, as Prometheus clients make it
    with the first value.
    """
    return tuple(_increase(before, after) for before, after in pairwise(target.read))


def _increase(before: Scrape, after: Scrape) -> Increase:
    first, last = before.samples or {}, after.samples or {}
    counters = [key for key in last if key.name not in GAUGES and key.name != START_TIME]
    reset = _start(first) != _start(last) or any(last[key] < first.get(key, 0.0) for key in counters)
    values = {key: last[key] - (0.0 if reset else first.get(key, 0.0)) for key in counters}
    return Increase(before.at_s, after.at_s, values, reset)


def _start(samples: Mapping[SampleKey, float]) -> float | None:
    return next((value for key, value in samples.items() if key.name == START_TIME), None)


def gaps(target: Target) -> tuple[Gap, ...]:
    """Returns where a target could not be read, in order of time. One that never could be is one gap."""
    found: list[Gap] = []
    last_read_s, failed_s, reason = None, None, ""
    for scrape in target.scrapes:
        if scrape.samples is None:
            failed_s = scrape.at_s if failed_s is None else failed_s
            reason = scrape.error
            continue
        if failed_s is not None:
            begin_s = failed_s if last_read_s is None else last_read_s
            found.append(Gap(begin_s, scrape.at_s, reason, counted=last_read_s is not None))
        last_read_s, failed_s = scrape.at_s, None
    if failed_s is not None:
        begin_s = failed_s if last_read_s is None else last_read_s
        found.append(Gap(begin_s, target.scrapes[-1].at_s, reason, counted=False))
    return tuple(found)
