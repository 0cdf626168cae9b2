"""Scores forecasts by a back-test with rolling origin (Hyndman and Athanasopoulos, Forecasting, 5.10).

From each origin a model forecasts the coming steps with what was known then, and no more; the errors of all origins
together are its score. All models are scored on the same steps. `mape` is the mean absolute percentage error of the
median, as a share; `pinball` the loss of a quantile q (Koenker and Bassett 1978): q (y - f) where the truth lies above,
(1 - q) (f - y) below, of which the mean is least at the true quantile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .seasonal import Floats, History, Model

LEAST_SAMPLES = 24


@dataclass(frozen=True, slots=True)
class Score:
    """`mape` None: the truth was 0 throughout. `samples`: steps that were scored, of all origins."""

    model: str
    origins: int
    samples: int
    quantile: float
    pinball: float
    mape: float | None


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
            scores.append(Score(name, len(origins), int(scored.sum()), quantile, loss, error))
    return tuple(sorted(scores, key=lambda score: score.pinball))
