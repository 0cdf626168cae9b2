"""Scores forecasts by a back-test with rolling origin (Hyndman and Athanasopoulos, Forecasting, 5.10).

From each origin a model forecasts the coming steps with what was known then, and no more; the errors of all origins
together are its score. All models are scored on the same steps. `mape` is the mean absolute percentage error of the
median, as a share; `pinball` the loss of a quantile q (Koenker and Bassett 1978): q (y - f) where the truth lies above,
(1 - q) (f - y) below, of which the mean is least at the true quantile. `regret` is what a plan by the forecast costs
beyond one by the truth, and `coverage` how often the truth lies in the interval that was said to hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .seasonal import Floats, History, Model

LEAST_SAMPLES = 24
RUNS = 1 / 4  # of the steps ahead, by a load that waits for the lowest ones
INTERVAL = (0.1, 0.9)  # the quantiles between which `coverage` counts


@dataclass(frozen=True, slots=True)
class Score:
    """`mape` None: the truth was 0 throughout. `samples`: steps that were scored, of all origins.

    `regret` is in the unit of the values, a mean over the steps in which a load runs (`plans`): for carbon, grams for
    each kWh that waits. None: fewer than four steps ahead, or no origin with all of them known. `coverage` (a share,
    as the function of that name has it) is None where nobody asked for it.
    """

    model: str
    origins: int
    samples: int
    quantile: float
    pinball: float
    mape: float | None
    regret: float | None = None
    coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Plans:
    """Says what a load meets that runs in a part of the steps, in the unit of the values: means over steps and rows.

    `regret`: by the forecast's lowest steps, beyond `clean`, by the lowest there were. `chance`: by all steps alike,
    beyond `clean`.
    """

    regret: float
    clean: float
    chance: float


def pinball(truth: Floats, forecast: Floats, quantile: float) -> float:
    """Returns the mean pinball loss of (n,) forecasts, in the unit of the values."""
    error = truth - forecast
    return float(np.mean(np.maximum(quantile * error, (quantile - 1.0) * error)))


def mape(truth: Floats, forecast: Floats) -> float | None:
    """Returns the mean absolute error of (n,) forecasts as a share of the truth, where that is not 0."""
    counted = truth != 0.0
    if not counted.any():
        return None
    return float(np.mean(np.abs((truth[counted] - forecast[counted]) / truth[counted])))


def plans(truth: Floats, said: Floats, runs: int) -> Plans | None:
    """Returns what a load meets that runs in the `runs` lowest steps of each row, by (n, steps) truth and forecasts.

    Rows with an unknown step count in nothing; None where no other is left.
    """
    whole = ~(np.isnan(truth) | np.isnan(said)).any(axis=1)
    if not whole.any():
        return None
    real = truth[whole]
    clean = float(np.sort(real, axis=1)[:, :runs].mean())
    chosen = np.argsort(said[whole], axis=1, kind="stable")[:, :runs]
    by_forecast = float(np.take_along_axis(real, chosen, axis=1).mean())
    return Plans(by_forecast - clean, clean, float(real.mean()) - clean)


def rolling_origins(size: int, steps: int, count: int, least: int) -> tuple[int, ...]:
    """Chooses at most `count` origins, evenly spread over the later half, with `least` steps before and `steps` after
    each.

    An origin is the number of steps known: the first that is forecast has it as its index.
    """
    first, last = max(least, size // 2), size - steps
    if last < first:
        return ()
    return tuple(sorted({round(at) for at in np.linspace(first, last, count)}))


def truths(history: History, origins: Sequence[int], steps: int) -> Floats:
    """Returns the values that came after each origin, (origins, steps)."""
    return np.stack([history.values[at : at + steps] for at in origins])


def back_test(
    history: History,
    models: Mapping[str, Model],
    origins: Sequence[int],
    steps: int,
    quantile: float,
    given: Mapping[str, Floats] | None = None,
) -> tuple[Score, ...]:
    """Returns the scores of `models`, least loss first; those that could not forecast every step scored are left out.

    Args:
        given: Forecasts that others made, a row for each origin, NaN where there is none; a provider's own. Where they
            cover enough, all are scored only on the steps that they cover; those that do not are left out.
    """
    if not origins:
        return ()
    truth = truths(history, origins, steps)
    scored = ~np.isnan(truth)
    made: dict[str, tuple[Floats, Floats]] = {}  # median, and the quantile
    for name, forecast in (given or {}).items():
        covered = scored & ~np.isnan(forecast)
        if covered.sum() >= LEAST_SAMPLES:
            scored, made[name] = covered, (forecast, forecast)
    if scored.sum() < LEAST_SAMPLES:
        return ()
    known = [history.until(at) for at in origins]
    for name, model in models.items():
        median = np.stack([model(part, steps, 0.5) for part in known])
        upper = median if quantile == 0.5 else np.stack([model(part, steps, quantile) for part in known])
        made[name] = median, upper
    scores = []
    for name, (median, upper) in made.items():
        if not np.isnan(median[scored]).any() and not np.isnan(upper[scored]).any():
            loss, error = pinball(truth[scored], upper[scored], quantile), mape(truth[scored], median[scored])
            planned = plans(np.where(scored, truth, np.nan), median, int(RUNS * steps)) if RUNS * steps >= 1.0 else None
            regret = planned.regret if planned else None
            scores.append(Score(name, len(origins), int(scored.sum()), quantile, loss, error, regret))
    return tuple(sorted(scores, key=lambda score: score.pinball))


def coverage(
    history: History, model: Model, origins: Sequence[int], steps: int, go_on: Callable[[], bool] = lambda: True
) -> float | None:
    """Returns the share of the known steps after the origins that lay within a model's INTERVAL; 0.8 would be right.

    Args:
        go_on: Asked before each origin, since intervals may take long; where it says no, nothing is known.

    Returns:
        None also where fewer than LEAST_SAMPLES steps are known, or the model has nothing to say about one of them.
    """
    inside: list[Floats] = []
    for at in origins:
        if not go_on():
            return None
        truth = history.values[at : at + steps]
        known = ~np.isnan(truth)
        low, high = (model(history.until(at), steps, quantile)[known] for quantile in INTERVAL)
        if np.isnan(low).any() or np.isnan(high).any():
            return None
        inside.append(((truth[known] >= low) & (truth[known] <= high)).astype(np.float64))
    found = np.concatenate(inside) if inside else np.zeros(0)
    return float(found.mean()) if found.size >= LEAST_SAMPLES else None
