"""How good and how fast the seasonal models are on two synthetic series: `python -m benchmarks.forecasts`.

Carbon: a daily dip, a daily wave, lower weekends, and AR(1) noise. Load: Poisson arrivals in 5 seconds with a daily
peak, lower weekends. Both with 288 steps a day for 28 days, and carbon again by the hour, where statsforecast takes
part if it is installed. Rolling origin, 24 origins.
"""

from __future__ import annotations

import time

import numpy as np

from core.predictors.back_test import back_test, rolling_origins
from core.predictors.seasonal import MODELS, Floats, History
from telemetry.forecasts import stats_models

DAY, DAYS, FIRST_DAY, ORIGINS = 288, 28, 20_000, 24


def carbon(rng: np.random.Generator) -> Floats:
    """g/kWh."""
    noise = np.zeros(DAY * DAYS)
    for i in range(1, noise.size):
        noise[i] = 0.985 * noise[i - 1] + rng.normal(0.0, 4.0)
    at, weekend = _time()
    wave = -80.0 * np.exp(-((at - 0.55) ** 2) / 0.01) + 40.0 * np.sin(2.0 * np.pi * at)
    return np.asarray(350.0 + wave - 60.0 * weekend + noise)


def load(rng: np.random.Generator) -> Floats:
    """Requests a second."""
    at, weekend = _time()
    mean = 60.0 * (0.3 + np.exp(-((at - 0.6) ** 2) / 0.03)) * (1.0 - 0.6 * weekend)
    return np.asarray(rng.poisson(np.maximum(1.0, mean)) / 5.0)


def _time() -> tuple[Floats, Floats]:
    step = np.arange(DAY * DAYS)
    return step % DAY / DAY, np.isin((FIRST_DAY + step // DAY) % 7, (2, 3)).astype(float)


def main() -> None:
    rng = np.random.default_rng(1)
    by_step, asked = carbon(rng), load(rng)
    for name, values, day, steps, quantile in (
        ("carbon, 5 min", by_step, DAY, DAY, 0.5),
        ("carbon, hourly", by_step.reshape(-1, 12).mean(axis=1), 24, 24, 0.5),
        ("load, 5 min", asked, DAY, 6, 0.9),
    ):
        history = History(values, FIRST_DAY * day, day, 0.0)
        origins = rolling_origins(values.size, steps, ORIGINS, day)
        began = time.perf_counter()
        scores = back_test(history, {**MODELS, **stats_models.models()}, origins, steps, quantile)
        print(f"{name}: {len(origins)} origins, {steps} steps ahead, {time.perf_counter() - began:.2f} s")
        for score in scores:
            error = "-" if score.mape is None else f"{score.mape:.1%}"
            print(f"  {score.model:<12} pinball {score.pinball:8.3f} at {score.quantile:g}, MAPE {error}")


if __name__ == "__main__":
    main()
