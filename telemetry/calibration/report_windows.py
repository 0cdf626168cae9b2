"""Cuts what an engine and its GPUs' meters reported into windows that calibration can learn from. Pure.

In such a window the engine was ready and had requests running at every report, and no report is missing. A window ends
where that ends, or after `WINDOW_S`. Its clock may change: clock rules change it each second, or more often. An agent
reports the mean since the report before, so that between two reports the clock is the one that the later report names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.engine.calibration import Span, Window

WINDOW_S = 10.0
LEAST_S = 6.0  # of a window that was cut short: shorter ones say too little
MAX_GAP_S = 2.5  # between two reports; agents report each second
EDGE_S = 0.6  # a meter may be read so long before or after the engine

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineReports:
    """Reports of one engine in order of time, by column; NaN: not known. `serving`: it was ready."""

    at_s: Floats
    serving: NDArray[np.bool_]
    running: Floats
    kv_usage: Floats
    prompt_tokens: Floats  # counters
    generated_tokens: Floats
    mhz: Floats

    @property
    def usable(self) -> NDArray[np.bool_]:
        known = np.isfinite(self.kv_usage) & np.isfinite(self.prompt_tokens) & np.isfinite(self.generated_tokens)
        with np.errstate(invalid="ignore"):
            return self.serving & known & (self.running >= 1.0) & (self.mhz > 0.0)


@dataclass(frozen=True, slots=True)
class Readings:
    """A GPU's counter in order of time."""

    at_s: Floats
    energy_j: Floats


def windows(
    reports: EngineReports,
    meters: Mapping[int, Readings],
    gpus: int,
    kv_capacity_tokens: float,
    prompt_mean_tokens: float | None,
    since_s: float,
) -> list[Window]:
    """Returns the windows of an engine that begin at `since_s` or later, in order of time.

    Args:
        reports: What it reported.
        meters: Readings of its GPUs by GPU.
        gpus: How many GPUs it has. With fewer meters its joules are not known.
        kv_capacity_tokens: Tokens that fill its cache.
        prompt_mean_tokens: Mean tokens of a prompt of late; None: not known, and windows with prompts are left out.
        since_s: End of the last window that was used; Unix seconds.
    """
    found = []
    for first, last in _cuts(reports, since_s):
        prompt_tokens = float(reports.prompt_tokens[last] - reports.prompt_tokens[first])
        if prompt_tokens > 0.0 and not prompt_mean_tokens:
            continue
        watts = _watts(meters, gpus, reports.at_s[first : last + 1])
        prompts_a_token = 1.0 / prompt_mean_tokens if prompt_mean_tokens else 0.0
        spans = (
            _span(reports, n, kv_capacity_tokens, prompts_a_token, None if watts is None else watts[n - first - 1])
            for n in range(first + 1, last + 1)
        )
        found.append(Window(tuple(spans)))
    return found


def _span(
    reports: EngineReports, n: int, kv_capacity_tokens: float, prompts_a_token: float, watts: float | None
) -> Span:
    """Returns what the engine did between a report and the one before."""
    seconds = float(reports.at_s[n] - reports.at_s[n - 1])
    prompt_tokens = float(reports.prompt_tokens[n] - reports.prompt_tokens[n - 1])
    return Span(
        at_s=float(reports.at_s[n]),
        seconds=seconds,
        mhz=float(reports.mhz[n]),
        running=float(reports.running[n] + reports.running[n - 1]) / 2.0,
        generated_tokens=float(reports.generated_tokens[n] - reports.generated_tokens[n - 1]),
        prompt_tokens=prompt_tokens,
        prompts=prompt_tokens * prompts_a_token,
        kv_tokens=float(reports.kv_usage[n] + reports.kv_usage[n - 1]) / 2.0 * kv_capacity_tokens,
        joules=None if watts is None else float(watts * seconds),
    )


def _cuts(reports: EngineReports, since_s: float) -> Iterator[tuple[int, int]]:
    """Yields first and last report of each window. What is left at the end, and not yet whole, comes the next time."""
    at_s, usable = reports.at_s.tolist(), reports.usable.tolist()
    first: int | None = None
    for n in range(len(at_s)):
        if first is not None and not (usable[n] and _goes_on(reports, n)):
            if at_s[n - 1] - at_s[first] >= LEAST_S:
                yield first, n - 1
            first = None
        if first is None:
            first = n if usable[n] and at_s[n] >= since_s else None
        elif at_s[n] - at_s[first] >= WINDOW_S - MAX_GAP_S / 2.0:
            yield first, n
            first = n  # the next one begins where this one ended


def _goes_on(reports: EngineReports, n: int) -> bool:
    """Says whether a report follows the one before it: none is missing, and no counter began anew."""
    return bool(
        reports.at_s[n] - reports.at_s[n - 1] <= MAX_GAP_S
        and reports.generated_tokens[n] >= reports.generated_tokens[n - 1]
        and reports.prompt_tokens[n] >= reports.prompt_tokens[n - 1]
    )


def _watts(meters: Mapping[int, Readings], gpus: int, at_s: Floats) -> Floats | None:
    """Returns the GPUs' mean power between each two moments; None: a meter is missing, was silent, or began anew."""
    if len(meters) != gpus:
        return None
    joules = np.zeros(len(at_s))
    for meter in meters.values():
        low, high = np.searchsorted(meter.at_s, [at_s[0] - EDGE_S, at_s[-1] + EDGE_S])
        read_s, energy_j = meter.at_s[low:high], meter.energy_j[low:high]
        if len(read_s) < 2 or np.any(np.diff(energy_j) < 0.0) or np.any(np.diff(read_s) > MAX_GAP_S):
            return None
        if read_s[0] > at_s[0] + EDGE_S or read_s[-1] < at_s[-1] - EDGE_S:
            return None
        joules += _line(at_s, read_s, energy_j)
    watts: Floats = np.diff(joules) / np.diff(at_s)
    return watts


def _line(at_s: Floats, read_s: Floats, energy_j: Floats) -> Floats:
    """Returns the counter at moments between readings; before the first and after the last it goes on as it went."""
    first_w = (energy_j[1] - energy_j[0]) / (read_s[1] - read_s[0])
    last_w = (energy_j[-1] - energy_j[-2]) / (read_s[-1] - read_s[-2])
    early, late = np.minimum(at_s - read_s[0], 0.0), np.maximum(at_s - read_s[-1], 0.0)
    found: Floats = np.interp(at_s, read_s, energy_j) + early * first_w + late * last_w
    return found
