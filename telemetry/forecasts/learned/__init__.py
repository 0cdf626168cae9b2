"""Forecasts by networks, where PyTorch is installed (`pip install greenserve[learned]`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from core.predictors.load_scores import Learner
from core.predictors.seasonal import History, Model
from pools.lengths.encoder.needs import REMEDY

__all__ = ["GRU", "LSTM", "REMEDY", "available", "load_learners"]

LSTM, GRU = "lstm", "gru"  # names of models


def available() -> bool:
    """Says whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def load_learners(anchors: Mapping[str, Model], steps: int) -> Mapping[str, Learner]:
    """Returns the networks that learn a load, to look so many steps ahead; none without PyTorch.

    `anchors`: statistical models, see `load_lstm`.
    """
    if not available():
        return {}
    from .load_lstm import learn

    def lstm(history: History) -> Model:
        return learn(history, steps, anchors).forecast

    return {LSTM: lstm}
