"""Predictions from a profile, handed over to the closed form where nothing was measured.

In order of trust: on a measured combination of clock, prefill and batch, and within its contexts, `measured`; between
such combinations `interpolated`, in the logarithms of clock, batch and prefill; both are `published` when others took
the profile on their machines. Outside `modelled`, the closed form scaled by what the nearest points of the hull
measured over what it says of them.

Within a batch time and energy are linear in K, as in the closed form, so that a simulator can still jump over many
iterations: each combination is a line through its points (least squares when there are more than two), and
interpolation joins the lines' ends, at equal context a sequence.

A profile that was only timed has its points' power from the closed form, at the profile's times.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np

from core.engine.corrections import Correction, factor
from core.engine.engine_model import EngineModel, closed_form
from core.engine.engine_params import GpuParams
from core.engine.iteration import Iteration, Totals
from core.engine.profiles import Margins, Point, Profile, modelled_margins
from core.engine.steady_state import SteadyState, max_rps, steady_state
from core.types import Limits, Source

# Leaving one batch size of the published measurements out, interpolation missed it by 2.9 % in time, 1.2 % in power.
_INTERPOLATED_MARGINS = (0.03, 0.02)


@dataclass(frozen=True, slots=True)
class Prediction:
    iteration: Iteration  # its `source` says what its time rests on
    margins: Margins
    watts_source: Source  # what its power rests on: modelled, where a profile was only timed


class Scale(NamedTuple):
    """The ratios of a profile's measurements to the closed form's figures, at a clock."""

    time: float
    power: float


@dataclass(frozen=True, slots=True)
class _TimeEnergy:
    t_s: float
    energy_j: float

    @property
    def watts(self) -> float:
        return self.energy_j / self.t_s

    def to(self, other: _TimeEnergy, share: float) -> _TimeEnergy:
        """Returns the point at `share` of the straight way to another."""
        return _TimeEnergy(
            self.t_s + share * (other.t_s - self.t_s), self.energy_j + share * (other.energy_j - self.energy_j)
        )

    def over(self, other: _TimeEnergy) -> _TimeEnergy:
        return _TimeEnergy(self.t_s / other.t_s, self.energy_j / other.energy_j)

    def times(self, other: _TimeEnergy) -> _TimeEnergy:
        return _TimeEnergy(self.t_s * other.t_s, self.energy_j * other.energy_j)


@dataclass(frozen=True, slots=True)
class _Curve:
    """The line of one clock, prefill and batch, from its lowest to its highest context a sequence."""

    low: float
    high: float
    at_low: _TimeEnergy
    at_high: _TimeEnergy
    miss: tuple[float, float]  # in time and in power: the largest relative distance of a point from the line, or spread

    def at(self, context: float) -> _TimeEnergy:
        """Returns the value on the line at a context in tokens; beyond its ends, that of the nearer end."""
        if self.high <= self.low:
            return self.at_low
        share = (context - self.low) / (self.high - self.low)
        return self.at_low.to(self.at_high, min(max(share, 0.0), 1.0))


def _curve(points: Sequence[Point], power: Sequence[float]) -> _Curve:
    """Makes the curve through points of one clock, prefill and batch, with the watts of each."""
    each = [point.context_tokens / max(1, point.batch) for point in points]
    t_s = [point.t_s for point in points]
    energy_j = [t * watts for t, watts in zip(t_s, power, strict=True)]
    spread = max(point.t_spread or 0.0 for point in points), max(point.watts_spread or 0.0 for point in points)
    if len(points) == 1:
        only = _TimeEnergy(t_s[0], energy_j[0])
        return _Curve(each[0], each[0], only, only, spread)
    x = np.array(each)
    lines = [np.polynomial.Polynomial.fit(x, np.array(values), 1) for values in (t_s, energy_j)]
    t_fit, e_fit = (line(x) for line in lines)
    ends = [_TimeEnergy(*(float(line(end)) for line in lines)) for end in (x.min(), x.max())]
    if min(min(end.t_s, end.energy_j) for end in ends) <= 0.0:
        prefill, mhz, batch = points[0].curve
        raise ValueError(f"prefill {prefill}, {mhz:g} MHz, batch {batch}: its points lie on no line of positive time")
    watts = np.array(power)
    miss_t = float(np.max(np.abs(t_fit / np.array(t_s) - 1.0)))
    miss_w = float(np.max(np.abs(e_fit / t_fit / watts - 1.0)))
    return _Curve(float(x.min()), float(x.max()), ends[0], ends[1], (max(miss_t, spread[0]), max(miss_w, spread[1])))


@dataclass(frozen=True, slots=True)
class _Hull:
    """A place (prefill, clock, batch) in the hull, and the contexts a sequence that all curves around it have."""

    place: tuple[float, float, float]
    corners: tuple[tuple[_Curve, float], ...]
    low: float
    high: float
    disjoint: bool  # the curves have no context in common: `low` is the nearest thing to one

    def measured(self, each: float) -> _TimeEnergy:
        """Interpolates logarithmically at both ends of the contexts, and along a straight line between them."""
        if len(self.corners) == 1:
            return self.corners[0][0].at(each)
        if self.high <= self.low:
            return self._end(self.low)
        return self._end(self.low).to(self._end(self.high), (each - self.low) / (self.high - self.low))

    def _end(self, context: float) -> _TimeEnergy:
        ends = [(curve.at(context), weight) for curve, weight in self.corners]
        return _TimeEnergy(
            math.exp(sum(weight * math.log(one.t_s) for one, weight in ends)),
            math.exp(sum(weight * math.log(one.energy_j) for one, weight in ends)),
        )

    def misses(self) -> tuple[float, float]:
        """Returns the distance of the lines' own points and their repeats from them: shares of time and of power."""
        time, power = (max(curve.miss[n] for curve, _ in self.corners) for n in (0, 1))
        return time, power


def _between(levels: Sequence[float], value: float) -> tuple[tuple[float, float], ...]:
    """Returns the levels around a value of their range, each with its weight in logarithms; one, where the value is a
    level.

    A level of 0 has no logarithm: nothing lies between it and the next.
    """
    n = bisect.bisect_left(levels, value)
    if levels[n] == value:
        return ((value, 1.0),)
    low, high = levels[n - 1], levels[n]
    share = math.log(value / low) / math.log(high / low)
    return ((low, 1.0 - share), (high, share))


def _nearest(levels: Sequence[float], value: float) -> float:
    """Returns the value itself inside the levels' range, else the nearest level."""
    positive = [level for level in levels if level > 0.0]
    if value in levels or (positive and positive[0] <= value <= positive[-1]):
        return value
    return min(levels, key=lambda level: abs(math.log1p(level) - math.log1p(value)))


class ProfiledEngine:
    """Predicts iterations of a profile's configuration. Raises ValueError for a profile without sense.

    `residual`: by how much engines that serve have come to differ from the profile.
    """

    def __init__(self, profile: Profile, residual: Correction | None = None) -> None:
        self.profile = profile
        self.residual = residual
        self.model: EngineModel = closed_form(profile.model, profile.gpu, profile.tp, profile.engine)
        groups: dict[tuple[int, float, int], list[Point]] = {}
        for point in profile.points:
            groups.setdefault(point.curve, []).append(point)
        self._curves: dict[tuple[float, float, float], _Curve] = {
            key: _curve(each, [self._watts(point) for point in each]) for key, each in groups.items()
        }
        self._prefills = sorted({float(key[0]) for key in groups})
        self._clocks = {size: sorted({key[1] for key in groups if key[0] == size}) for size in self._prefills}
        self._batches = {size: sorted({float(key[2]) for key in groups if key[0] == size}) for size in self._prefills}

    @property
    def source(self) -> Source:
        """The origin of its figures, inside what was measured."""
        return self.profile.source if self.residual is None else self.residual.source

    @property
    def tp(self) -> int:
        return self.profile.tp

    @property
    def gpu_params(self) -> GpuParams:
        return self.model.gpu_params

    @property
    def kv_capacity_tokens(self) -> float:
        """By the closed form: a profile does not say."""
        return self.model.kv_capacity_tokens

    def idle_watts(self, mhz: float) -> float:
        """By the closed form: a profile has iterations only."""
        watts = self.model.idle_watts(mhz)
        if self.residual is None:
            return watts
        return watts * factor(self.residual.power, self.gpu_params, self.gpu_params.clamp_mhz(mhz))

    def iteration(
        self, mhz: float, prefills: Sequence[tuple[int, int]] = (), decodes: int = 0, context_tokens: float = 0.0
    ) -> Prediction:
        """Predicts as `EngineModel.iteration` does.

        Several prefills, or one with cached tokens, are outside every profile.
        """
        new = float(sum(tokens for tokens, _ in prefills))
        cached = float(sum(context for _, context in prefills))
        pairs = sum(tokens * (context + tokens / 2.0) for tokens, context in prefills)
        return self.predict(mhz, Totals(new, cached, pairs, len(prefills), decodes, context_tokens))

    def iteration_of(self, mhz: float, totals: Totals) -> Iteration:
        """Predicts as `EngineModel.iteration_of` does."""
        return self.predict(mhz, totals).iteration

    def steady_state(self, rps: float, prompt_tokens: float, output_tokens: float, mhz: float) -> SteadyState:
        """The instance under `rps` requests a second of these lengths: see `steady_state.steady_state`."""
        return steady_state(self, rps, prompt_tokens, output_tokens, mhz)

    def max_rps(
        self, prompt_tokens: float, output_tokens: float, mhz: float, limits: Limits, spare_deviations: float = 0.0
    ) -> float:
        """The largest stable rate within `limits`, 0 if there is none: see `steady_state.max_rps`."""
        return max_rps(self, prompt_tokens, output_tokens, mhz, limits, spare_deviations)

    def scale(self, mhz: float) -> Scale:
        """Returns profile over closed form, the median of a clock's points, for users of the scaled closed form.

        Between measured clocks interpolated in logarithms, beyond them the nearest one's.
        """
        clocks = sorted(self._scales)
        around = _between(clocks, _nearest(clocks, self.model.gpu_params.clamp_mhz(mhz)))
        time, power = (math.exp(sum(w * math.log(self._scales[f][n]) for f, w in around)) for n in (0, 1))
        return Scale(time, power)

    def furthest(self) -> Scale:
        """Returns of all points the ratios to the closed form that are furthest from 1."""
        times, watts = zip(*(own for each in self._ratios.values() for own in each), strict=True)
        return Scale(*(max(column, key=lambda ratio: abs(math.log(ratio))) for column in (times, watts)))

    @cached_property
    def _ratios(self) -> dict[float, list[tuple[float, float]]]:
        """Ratios of time and of power to the closed form, of each point, by clock."""
        found: dict[float, list[tuple[float, float]]] = {}
        for point in self.profile.points:
            one = self.model.iteration_of(point.mhz, _totals(point))
            found.setdefault(point.mhz, []).append((point.t_s / one.t_s, self._watts(point) / one.watts))
        return found

    @cached_property
    def _scales(self) -> dict[float, Scale]:
        return {
            mhz: Scale(*(median(column) for column in zip(*each, strict=True))) for mhz, each in self._ratios.items()
        }

    def _watts(self, point: Point) -> float:
        if point.watts is not None:
            return point.watts
        return self.model.watts_over(point.mhz, _totals(point), point.t_s)

    def predict(self, mhz: float, totals: Totals) -> Prediction:
        """Predicts an iteration given in totals. Raises ValueError when there is nothing to do."""
        mhz = self.model.gpu_params.clamp_mhz(mhz)
        found = self._by_profile(mhz, totals)
        return found if self.residual is None else self._corrected(mhz, found, self.residual)

    def _corrected(self, mhz: float, found: Prediction, residual: Correction) -> Prediction:
        one, gpu = found.iteration, self.gpu_params
        t_s = one.t_s * factor(residual.time, gpu, mhz)
        gpu_watts = min(one.gpu_watts * factor(residual.power, gpu, mhz), gpu.tdp_w)
        watts = gpu_watts * self.tp
        answer = Iteration(t_s, watts, gpu_watts, one.f_eff_mhz, watts * t_s, residual.source)
        return Prediction(answer, found.margins, residual.source)

    def _by_profile(self, mhz: float, totals: Totals) -> Prediction:
        modelled = self.model.iteration_of(mhz, totals)
        new, decodes = totals.new_tokens, totals.decodes
        each = totals.context_tokens / max(1.0, decodes)
        hull = self._around(new, mhz, decodes)
        inside = hull.place == (new, mhz, decodes) and not hull.disjoint and hull.low <= each <= hull.high
        if inside and totals.prefills <= 1 and not totals.cached_tokens:
            source = self._source(measured=len(hull.corners) == 1)
            found = hull.measured(each)
            answer = Iteration(found.t_s, found.watts, found.watts / self.profile.tp, mhz, found.energy_j, source)
            watts_source = source if self.profile.metered else self.model.source
            return Prediction(answer, self._margins(hull, source), watts_source)

        def scaled(context: float) -> _TimeEnergy:
            one = self.model.iteration_of(mhz, replace(totals, context_tokens=context * decodes))
            return _TimeEnergy(one.t_s, one.energy_j).times(self._scale(hull, min(max(context, hull.low), hull.high)))

        if hull.low < each < hull.high:  # a line between the ends keeps it linear in K
            found = scaled(hull.low).to(scaled(hull.high), (each - hull.low) / (hull.high - hull.low))
        else:
            found = scaled(each)
        gpu_watts = min(found.watts / self.profile.tp, self.model.gpu_params.tdp_w)
        watts = gpu_watts * self.profile.tp
        source = self.model.source
        answer = Iteration(found.t_s, watts, gpu_watts, modelled.f_eff_mhz, watts * found.t_s, source)
        return Prediction(answer, modelled_margins(self.profile.gpu, self.profile.engine), source)

    def _source(self, measured: bool) -> Source:
        """Returns the source of an answer inside the hull: on a measured place, or between such."""
        if self.profile.source is not Source.MEASURED:
            return self.profile.source
        return Source.MEASURED if measured else Source.INTERPOLATED

    def _margins(self, hull: _Hull, source: Source) -> Margins:
        """Returns how far a measured line's points lie from it; between lines, at least what interpolation misses.

        What others measured on their machines, and power that nobody measured, is trusted no more than the closed form.
        """
        floor, modelled = Margins(0.0, 0.0, 0.0), modelled_margins(self.profile.gpu, self.profile.engine)
        if source is Source.INTERPOLATED:
            floor = Margins(*_INTERPOLATED_MARGINS, max(_INTERPOLATED_MARGINS))
        elif source is not Source.MEASURED:
            floor = modelled
        if not self.profile.metered:
            floor = Margins(floor.time, modelled.power, modelled.clock)
        time, power = hull.misses()
        return Margins(max(time, floor.time), max(power, floor.power), max(time, power, floor.clock))

    def _around(self, new: float, mhz: float, decodes: float) -> _Hull:
        """Returns the nearest place of the hull, and the measured combinations around it, each with its weight."""
        size = _nearest(self._prefills, new)
        # Two prefill sizes may be measured at other clocks and batches: only what both have can be interpolated.
        sizes = [level for level, _ in _between(self._prefills, size)]
        clocks = sorted(set.intersection(*(set(self._clocks[level]) for level in sizes)))
        batches = sorted(set.intersection(*(set(self._batches[level]) for level in sizes)))
        if not clocks or not batches:
            size = sizes[0]
            clocks, batches = self._clocks[size], self._batches[size]
        place = (size, _nearest(clocks, mhz), _nearest(batches, decodes))
        axes = (_between(self._prefills, place[0]), _between(clocks, place[1]), _between(batches, place[2]))
        corners = [(self._curves[p, f, b], wp * wf * wb) for (p, wp), (f, wf), (b, wb) in product(*axes)]
        low, high = max(curve.low for curve, _ in corners), min(curve.high for curve, _ in corners)
        return _Hull(place, tuple(corners), low, max(low, high), disjoint=high < low)

    def _scale(self, hull: _Hull, each: float) -> _TimeEnergy:
        """Returns measured over modelled at the nearest place of the hull."""
        size, mhz, batch = hull.place
        one = self.model.iteration_of(mhz, Totals.plain(size, batch, batch * each))
        return hull.measured(each).over(_TimeEnergy(one.t_s, one.energy_j))


def _totals(point: Point) -> Totals:
    return Totals.plain(point.prefill_tokens, point.batch, point.context_tokens)
