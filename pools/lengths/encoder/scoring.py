"""Scores an encoder on prompts that training never saw, as it serves, and times it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from core.length_odds import LengthOdds

from .length_classes import Classes, Ints
from .predictor import EncoderPredictor
from .training_data import LengthData
from .version_files import EncoderScores

_TIMED = 200  # prompts


def score(predictor: EncoderPredictor, classes: Classes, train_tokens: Ints, test: LengthData) -> EncoderScores:
    """Scores a predictor of all services. The class it names is its most probable one, the length its median."""
    odds = [one for one in predictor.predict([""] * len(test.prompts), test.prompts) if one is not None]
    p50_ms, p99_ms = _latency(predictor, test.prompts)
    return _scores(odds, classes, train_tokens, test.tokens, p50_ms, p99_ms)


def _scores(
    odds: Sequence[LengthOdds], classes: Classes, train_tokens: Ints, tokens: Ints, p50_ms: float, p99_ms: float
) -> EncoderScores:
    truth, named = classes.of(tokens), np.asarray([one.most_probable() for one in odds])
    medians = np.asarray([one.quantile(0.5) for one in odds])
    longest = truth == len(classes.borders)
    usual = np.bincount(classes.of(train_tokens)).argmax()
    return EncoderScores(
        tested_on=len(tokens),
        accuracy=float((named == truth).mean()),
        base_accuracy=float((truth == usual).mean()),
        recall_longest=float((named[longest] == truth[longest]).mean()) if longest.any() else None,
        mae_tokens=float(np.abs(medians - tokens).mean()),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
    )


def _latency(predictor: EncoderPredictor, prompts: Sequence[str]) -> tuple[float, float]:
    """Returns the median and the 99th percentile of milliseconds that one prompt takes, alone on one core."""
    predictor.predict([""] * len(prompts[:5]), prompts[:5])
    times = []
    for prompt in prompts[:_TIMED]:
        begun = time.perf_counter()
        predictor.predict([""], [prompt])
        times.append(1e3 * (time.perf_counter() - begun))
    return float(np.quantile(times, 0.5)), float(np.quantile(times, 0.99))
