"""Scores forecasts of grids' carbon intensity as CarbonCast does, and by what a plan made by them emits.

A forecast of 96 hours is made once a day, at the hour at which the scored time begins, from the 28 days before and, for
models that take it, the weather ahead. Its MAPE of a day is the mean over that day's 24 hours; a model's is the mean
over forecasts (CarbonCast, Maji and others, BuildSys 2022; EnsembleCI). Only forecasts whose four days are over by the
end count, and each day only by its known hours.

Regret: a load of 1 kW runs a quarter of each of the four days, in the hours that the forecast says are the cleanest, as
batches do (`deferral`, with one deadline a day). What it emits more than in the hours that were the cleanest is the
regret of the forecast, for 24 kWh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from .back_test import INTERVAL, pinball, plans
from .boosted_carbon import CarbonModel
from .carbon_features import DAY, LEADS, MEMORY, Floats, Grid, Whole
from .carbon_training import TooShort, fit
from .seasonal import MODELS, History

DAYS = LEADS // DAY
RUNS_HOURS = 6  # of a day, of the load that regret is counted for
QUANTILES = (INTERVAL[0], 0.5, INTERVAL[1])
BACK_TEST_DAYS = 60  # before the scored time, by which the model is chosen
RELEARN_DAYS = 92
TREES, TREES_WEATHER = "trees", "trees with weather"


@dataclass(frozen=True, slots=True)
class CarbonScore:
    """One model on one grid. `mape` by day ahead and `coverage` of the interval from 10 to 90 % are shares.

    `pinball` is the mean over the three quantiles, in g/kWh; `regret_g` and `clean_g` are grams of a forecast's 24 kWh,
    the latter with the truth; `chance_g` what running evenly through the days emits more than that. `forecast_s` and
    `training_s` are seconds of CPU, of one forecast and of all learning.
    """

    grid: str
    model: str
    forecasts: int
    mape: tuple[float | None, ...]
    pinball: float
    coverage: float | None
    regret_g: float
    clean_g: float
    chance_g: float
    forecast_s: float
    training_s: float


@dataclass(frozen=True, slots=True)
class GridScores:
    """All models of a grid, and which of them a back-test before the scored time chooses, by pinball loss.

    `silent`: models without a score, and why.
    """

    grid: str
    chosen: str | None
    scores: tuple[CarbonScore, ...]
    silent: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Made:
    """Holds what a model forecast from some origins, and the seconds of CPU that it took."""

    quantiles: Floats  # (3, origins, LEADS)
    forecast_s: float  # of all of them
    training_s: float


Report = Callable[[str], None]
Maker = Callable[[Grid, Whole], Made]  # may raise TooShort and Silent
NOTHING_MORE: Mapping[str, Maker] = MappingProxyType({})


def score(
    name: str,
    grid: Grid,
    start: int,
    end: int,
    relearn_days: int,
    report: Report,
    more: Mapping[str, Maker] = NOTHING_MORE,
) -> GridScores:
    """Scores all models on the hours [start, end) of a grid, counted from its first; calls `report` as it goes.

    `more`: models that are not of `core`, such as networks, by their names.

    Raises:
        ValueError: There are less than four days to score, or less than 28 days before.
    """
    if end - start < LEADS or start < MEMORY:
        raise ValueError(f"{name}: a score needs {MEMORY // DAY} days of values before --from and {DAYS} days after it")
    found, before, silent = [], {}, {}
    tested = max(MEMORY, start - BACK_TEST_DAYS * DAY)
    for model, make in {**_makers(grid, relearn_days), **more}.items():
        report(f"{name}: {model}")
        try:
            found.append(_scored(name, model, grid, start, end, make))
        except (TooShort, Silent) as reason:
            silent[model] = str(reason)
            continue
        if start - tested >= LEADS:
            with suppress(TooShort, Silent):  # it is scored, and not chosen
                before[model] = _scored(name, model, grid, tested, start, make).pinball
    chosen = min(before, key=lambda model: before[model], default=None)
    return GridScores(name, chosen, tuple(sorted(found, key=lambda one: one.pinball)), silent)


class Silent(Exception):
    """A model has nothing to say about some of the hours that are scored, or cannot be had. The text says why."""


def _makers(grid: Grid, relearn_days: int) -> Mapping[str, Maker]:
    makers: dict[str, Maker] = {name: _by_history(name) for name in MODELS}
    makers[TREES] = _learned(relearn_days, weather=False)
    if grid.weather is not None:
        makers[TREES_WEATHER] = _learned(relearn_days, weather=True)
    return makers


def _by_history(name: str) -> Maker:
    def make(grid: Grid, origins: Whole) -> Made:
        begun = time.process_time()
        made = np.empty((len(QUANTILES), origins.size, LEADS))
        for number, hours in enumerate(origins.tolist()):
            seen = grid.until(hours)
            history = History(seen.carbon, seen.first_hour, DAY, 0.0)
            for row, quantile in enumerate(QUANTILES):
                made[row, number] = MODELS[name](history, LEADS, quantile)
        return Made(made, time.process_time() - begun, 0.0)

    return make


def _learned(relearn_days: int, weather: bool) -> Maker:
    def make(grid: Grid, origins: Whole) -> Made:
        """Learns from all that was known at the first origin, and again each `relearn_days` days."""
        own = grid if weather else grid.without_weather()
        made, forecast_s, training_s = [], 0.0, 0.0
        for part in stretches(origins, relearn_days):
            begun = time.process_time()
            model = fit(own.before(int(part[0])))
            learned = time.process_time()
            made.append(np.concatenate([_one(model, own.until(hours)) for hours in part.tolist()], axis=1))
            training_s += learned - begun
            forecast_s += time.process_time() - learned
        return Made(np.concatenate(made, axis=1), forecast_s, training_s)

    return make


def _one(model: CarbonModel, seen: Grid) -> Floats:
    return model.forecast(seen, LEADS, QUANTILES)[:, None, :]


def stretches(origins: Whole, days: int) -> Iterator[Whole]:
    """Cuts origins where a model is learned again."""
    number = (origins - origins[0]) // (days * DAY)
    for one in np.unique(number).tolist():
        yield origins[number == one]


def _scored(grid_name: str, model: str, grid: Grid, start: int, end: int, make: Maker) -> CarbonScore:
    origins: Whole = np.arange(start, end - LEADS + 1, DAY)
    truth = np.stack([grid.carbon[at : at + LEADS] for at in origins])
    made = make(grid, origins)
    low, middle, high = made.quantiles
    known = ~np.isnan(truth)
    if np.isnan(made.quantiles[:, known]).any():
        raise Silent(f"it has nothing to say about {np.isnan(middle[known]).mean():.0%} of the hours")
    if not known.any():
        raise Silent("no hour of this time is known")
    losses = [pinball(truth[known], row[known], at) for row, at in zip(made.quantiles, QUANTILES, strict=True)]
    inside = (truth >= low) & (truth <= high)
    regret, clean, chance = _plans(truth, middle)
    return CarbonScore(
        grid=grid_name,
        model=model,
        forecasts=origins.size,
        mape=tuple(_mape(truth[:, part], middle[:, part]) for part in _days()),
        pinball=float(np.mean(losses)),
        coverage=float(inside[known].mean()),
        regret_g=regret,
        clean_g=clean,
        chance_g=chance,
        forecast_s=made.forecast_s / origins.size,
        training_s=made.training_s,
    )


def _days() -> list[slice]:
    return [slice(DAY * day, DAY * (day + 1)) for day in range(DAYS)]


def _mape(truth: Floats, middle: Floats) -> float | None:
    """Returns the mean over forecasts of the mean over a day's hours; (forecasts, hours). Hours of 0 are left out."""
    counted = ~np.isnan(truth) & (truth != 0.0)
    error = np.abs(np.divide(truth - middle, truth, out=np.zeros(truth.shape), where=counted))
    hours = counted.sum(axis=1)
    forecasts = hours > 0
    return float((error.sum(axis=1)[forecasts] / hours[forecasts]).mean()) if forecasts.any() else None


def _plans(truth: Floats, middle: Floats) -> tuple[float, float, float]:
    """Returns grams of a forecast's days: regret, what the truth's plan emits, and what running evenly adds to that.

    Days with an unknown hour count in none of them; the figures are then of the days that are left, times DAYS.
    """
    found = plans(truth.reshape(-1, DAY), middle.reshape(-1, DAY), RUNS_HOURS)
    if found is None:
        raise Silent("no day of this time is known throughout")
    kwh = DAYS * RUNS_HOURS
    return kwh * found.regret, kwh * found.clean, kwh * found.chance
