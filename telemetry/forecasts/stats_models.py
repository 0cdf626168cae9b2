"""statsforecast's models beside ours, where it is installed (`pip install greenserve[forecasts]`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import numpy as np

from core.predictors.seasonal import Floats, History, Model, with_errors

LONGEST_DAY = 48  # steps: with finer ones a fit takes longer than the forecast is worth


def models() -> Mapping[str, Model]:
    """Those for series of at most `LONGEST_DAY` steps a day; nothing where the package is missing."""
    if importlib.util.find_spec("statsforecast") is None:
        return {}
    return {"mstl": with_errors(mstl)}


def mstl(history: History, steps: int) -> Floats:
    """Takes off seasons of day and week by LOESS, the rest by exponential smoothing (Bandara and others, 2021).

    It cannot have gaps: with any in the last two weeks it has nothing to say, and what lies before one is not used.
    """
    values = history.values
    gaps = np.flatnonzero(np.isnan(values))
    values = values[gaps[-1] + 1 :] if gaps.size else values
    if history.day > LONGEST_DAY or values.size < 2 * history.week:
        return np.full(steps, np.nan)
    from statsforecast.models import MSTL, AutoETS

    model = MSTL([history.day, history.week], trend_forecaster=AutoETS(model="ZZN"))
    return np.asarray(model.forecast(y=values, h=steps)["mean"], dtype=np.float64)
