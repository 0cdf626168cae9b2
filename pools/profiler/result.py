"""Makes a run's result: a profile, its hull, how far off the engine model is, and a fit where there is none.

For a catalogued GPU the closed form is rescaled by the profile (`ProfiledEngine.scale`). A machine without one has no
closed form: a straight line through its iterations (`fit_line`) is what the simulator then computes with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.spatial import ConvexHull, QhullError

from core.engine.engine_model import EngineModel, UnknownConfiguration, engine_model
from core.engine.iteration import Totals
from core.engine.profiled_engine import ProfiledEngine, Scale
from core.engine.profiles import Point, Profile
from core.engine.profiling_run import Outlier, fold_run
from core.simulator.kernel.simulated import FixedCosts

_SHOWN_CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Errors:
    """Model over measured, less 1: of time and, where metered, of power. MAPE and mean error, as shares."""

    points: int
    time_mape: float
    time_mean: float
    watts_mape: float | None
    watts_mean: float | None

    @classmethod
    def of(cls, time: Sequence[float], watts: Sequence[float]) -> Errors:
        shares = (fmean(map(abs, watts)), fmean(watts)) if watts else (None, None)
        return cls(len(time), fmean(map(abs, time)), fmean(time), *shares)


@dataclass(frozen=True, slots=True)
class IterationFit:
    """t = base + prefill_token x new tokens + decode x batch + context_token x context; power while busy."""

    base_s: float
    prefill_token_s: float
    decode_s: float
    context_token_s: float
    busy_w: float
    idle_w: float

    def t_s(self, prefill_tokens: float, batch: float, context_tokens: float) -> float:
        spent_s = self.prefill_token_s * prefill_tokens + self.decode_s * batch
        return self.base_s + spent_s + self.context_token_s * context_tokens

    def costs(self, context_tokens: float) -> FixedCosts:
        """Returns costs for the simulator, whose fixed costs know no contexts: with sequences of so many tokens."""
        decode_s = self.decode_s + self.context_token_s * context_tokens
        return FixedCosts(self.base_s, self.prefill_token_s, decode_s, self.busy_w, self.idle_w)


@dataclass(frozen=True, slots=True)
class ProfilingResult:
    """`against`: the closed form's errors by kind of iteration; empty: it does not know the machine.

    `scales`: measured over modelled, by clock. `hull`: corners of what was measured, as (batch, context a sequence).
    """

    profile: Profile
    outliers: tuple[Outlier, ...]
    hull: tuple[tuple[int, float], ...]
    against: Mapping[str, Errors]
    scales: Mapping[float, Scale]
    line: IterationFit
    line_errors: Errors


def evaluate(
    rows: Iterable[Mapping[str, Any]],
    key: tuple[str, str, int, str],
    origin: str,
    idle_w: float | None,
    measured_at_s: float | None = None,
) -> ProfilingResult:
    """Folds the rows of a run. Raises ProfileError when they make no profile."""
    run = fold_run(rows, key)
    profile = replace(run.profile, origin=origin, measured_at_s=measured_at_s)
    try:
        model = engine_model(*key)
    except UnknownConfiguration:
        against, scales = {}, {}
    else:
        against = {
            name: _errors(points, [_modelled(model, point) for point in points])
            for name, points in (
                ("decode", [point for point in profile.points if point.batch]),
                ("prefill", [point for point in profile.points if not point.batch]),
            )
            if points
        }
        profiled = ProfiledEngine(profile)
        scales = {mhz: profiled.scale(mhz) for mhz in sorted({p.mhz for p in profile.points})}
    line = fit_line(profile, idle_w)
    fitted = [(line.t_s(p.prefill_tokens, p.batch, p.context_tokens), line.busy_w) for p in profile.points]
    line_errors = _errors(profile.points, fitted)
    return ProfilingResult(profile, run.outliers, hull(profile.points), against, scales, line, line_errors)


def _errors(points: Sequence[Point], found: Sequence[tuple[float, float]]) -> Errors:
    time = [t_s / point.t_s - 1.0 for point, (t_s, _) in zip(points, found, strict=True)]
    watts = [watts / point.watts - 1.0 for point, (_, watts) in zip(points, found, strict=True) if point.watts]
    return Errors.of(time, watts)


def _modelled(model: EngineModel, point: Point) -> tuple[float, float]:
    totals = Totals.plain(point.prefill_tokens, point.batch, point.context_tokens)
    found = model.iteration_of(point.mhz, totals)
    return found.t_s, found.watts


def fit_line(profile: Profile, idle_w: float | None) -> IterationFit:
    """Fits a straight line through the profile's times, no term below 0: least squares of relative errors.

    Power is the median while busy. Clocks are not in it: it is for engines that the closed form does not know, at one
    clock.
    """
    terms = np.array([[1.0, p.prefill_tokens, p.batch, p.context_tokens] for p in profile.points])
    t_s = np.array([point.t_s for point in profile.points])
    # In units of the largest value of each term: contexts are a thousand times batches.
    largest = np.maximum(terms.max(axis=0), 1.0)
    solution, _ = nnls(terms / largest / t_s[:, None], np.ones(t_s.size))
    base_s, prefill_token_s, decode_s, context_token_s = (float(value) for value in solution / largest)
    watts = [point.watts for point in profile.points if point.watts is not None]
    busy_w = median(watts) if watts else 0.0
    return IterationFit(max(base_s, 1e-9), prefill_token_s, decode_s, context_token_s, busy_w, idle_w or 0.0)


def hull(points: Iterable[Point]) -> tuple[tuple[int, float], ...]:
    """Returns the corners of the decode points' convex hull, in batch and context a sequence, counter-clockwise."""
    places = sorted({(p.batch, p.context_tokens / p.batch) for p in points if p.batch})
    try:
        corners = ConvexHull(np.array(places, dtype=float)).vertices if len(places) > 2 else range(len(places))
    except QhullError:  # all on one line
        corners = range(len(places))
    return tuple(places[int(n)] for n in corners)


def words(outcome: ProfilingResult) -> list[str]:
    """Returns what a person wants to know of it, line by line."""
    profile = outcome.profile
    clocks = sorted({point.mhz for point in profile.points})
    lines = [
        f"{len(profile.points)} points of {profile.model} on {profile.tp} x {profile.gpu} at "
        + ", ".join(f"{mhz:g}" for mhz in clocks)
        + " MHz",
        "hull (batch, context): " + ", ".join(f"({batch}, {context:.0f})" for batch, context in outcome.hull),
    ]
    lines += [f"engine model, {name}: {_in_words(errors)}" for name, errors in outcome.against.items()]
    for mhz, scale in outcome.scales.items():
        lines.append(f"rescaled at {mhz:g} MHz: time x {scale.time:.3f}, power x {scale.power:.3f}")
    if not outcome.against:
        lines.append(f"the engine model does not know {profile.model} on {profile.gpu}; a line is fitted instead")
        line = outcome.line
        lines.append(
            f"t = {line.base_s * 1e3:.4g} ms + {line.prefill_token_s * 1e6:.4g} us a prefilled token + "
            f"{line.decode_s * 1e6:.4g} us a sequence + {line.context_token_s * 1e6:.4g} us a token of context"
        )
        costs = line.costs(_SHOWN_CONTEXT)
        lines.append(
            f"for a scenario, at contexts of {_SHOWN_CONTEXT} tokens: fixed_costs: {{base_s: {costs.base_s:.6g}, "
            f"prefill_token_s: {costs.prefill_token_s:.4g}, decode_s: {costs.decode_s:.4g}, "
            f"busy_w: {costs.busy_w:.4g}, idle_w: {costs.idle_w:.4g}}}"
        )
        lines.append(f"the line: {_in_words(outcome.line_errors)}")
    lines += [
        f"row {one.row}: {one.field_name} is {one.value / one.median:.2f} times the median of its repeats"
        for one in outcome.outliers
    ]
    return lines


def _in_words(errors: Errors) -> str:
    text = f"time {errors.time_mape:.1%} off (mean {errors.time_mean:+.1%})"
    if errors.watts_mape is not None:
        text += f", power {errors.watts_mape:.1%} off (mean {errors.watts_mean:+.1%})"
    return f"{text} over {errors.points} points"
