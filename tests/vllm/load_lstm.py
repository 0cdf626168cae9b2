"""Learns, keeps and reads a network for load, with real PyTorch; prints what came of it as JSON."""

from __future__ import annotations

import json
import time

import numpy as np

from core.predictors.back_test import pinball
from core.predictors.seasonal import MODELS, History
from telemetry.forecasts.learned import load_lstm

DAY, STEPS = 48, 6


def main() -> None:
    steps = np.arange(10 * DAY)
    rng = np.random.default_rng(3)
    course = 100.0 + 60.0 * np.sin(2.0 * np.pi * steps / DAY) + rng.normal(0.0, 4.0, steps.size)
    whole = History(np.maximum(course, 0.0), 0, DAY, 0.0)
    known = whole.until(8 * DAY)
    begun_s = time.process_time()
    network = load_lstm.learn(known, STEPS, MODELS)
    learned_s = time.process_time() - begun_s
    again = load_lstm.learn(known, STEPS, MODELS)
    read = load_lstm.restored(network.about(), network.state(), MODELS)
    origins = range(8 * DAY, 10 * DAY - STEPS, 5)

    def loss(model: str) -> float:
        forecast = {"lstm": network.forecast, "network": network.of_network}.get(model) or MODELS[model]
        return float(
            np.mean(
                [pinball(whole.values[at : at + STEPS], forecast(whole.until(at), STEPS, 0.5), 0.5) for at in origins]
            )
        )

    now = whole.until(9 * DAY)
    upper = [network.forecast(now, STEPS, quantile).tolist() for quantile in (0.1, 0.5, 0.9)]
    gap = whole.values[: 9 * DAY].copy()
    gap[-1] = np.nan
    refused = {}
    for name, about, state in (
        ("cut off", network.about(), network.state()[:100]),
        ("other", {"steps": 9, "anchors": network.about()["anchors"]}, network.state()),
        ("anchors", {"steps": STEPS, "anchors": [[0.5, "oracle", 0.5], [0.9, "oracle", 0.5]]}, network.state()),
    ):
        try:
            load_lstm.restored(about, state, MODELS)
        except ValueError as error:
            refused[name] = str(error)
    try:
        load_lstm.learn(whole.until(DAY), STEPS, MODELS)
    except ValueError as error:
        refused["short"] = str(error)
    print(
        json.dumps(
            {
                "learned_s": learned_s,
                "loss": {name: loss(name) for name in ("lstm", "network", "persistence", "profile", "harmonic")},
                "same": again.forecast(now, STEPS, 0.5).tolist() == upper[1],
                "read": read.forecast(now, STEPS, 0.9).tolist() == upper[2],
                "quantiles": upper,
                "beyond": int(np.isnan(network.of_network(now, STEPS + 2, 0.5)).sum()),
                "gap": bool(np.isnan(network.of_network(History(gap, 0, DAY, 0.0), STEPS, 0.5)).all()),
                "refused": refused,
            }
        )
    )


if __name__ == "__main__":
    main()
