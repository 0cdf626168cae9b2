"""Times throttLL'eM's admission and clock search: `python -m benchmarks.controllers_throttllem`. Prints JSON.

Batch 256, 1,000 future iterations, 50 clocks: one round is what an arrival costs, the batch turned into a scoreboard,
the newcomer judged, and the clock searched. It also scores the model of iterations a second on both of the paper's
splits, on points of the engine model over its profiling grid, with noise.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from core.algorithms.clock.projection import project
from core.algorithms.clock.speed_table import EngineShape, SpeedTable, speed_table
from core.controllers.clock import throttllem_clock
from core.controllers.clock.throttllem_clock import ThrottleConfig, ThrottleObservation
from core.controllers.request import admission
from core.controllers.request.admission import AdmissionConfig, AdmissionObservation, Requests
from core.predictors.ips import EngineIps, IpsSamples, fit_and_score

BATCH, ITERATIONS, CLOCKS, ROUNDS = 256, 1000, 50, 500
NOISE = 0.02  # standard deviation of a measured speed, as a share
PROFILES = {
    ("Llama3-8B", "A100-40GB"): (1,),
    ("Llama2-13B", "A100-40GB"): (1, 2, 4),
    ("Llama3-70B", "A100-40GB"): (8,),
}


def batch_of(rng: np.random.Generator, running: int, first_id: int = 0) -> Requests:
    """Requests somewhere between their first and their last token; the last may go on for ITERATIONS."""
    prompt = rng.integers(50, 900, running)
    output = rng.integers(50, ITERATIONS, running)
    output[0] = ITERATIONS
    generated = rng.integers(1, np.maximum(2, output // 2))
    generated[0] = 1
    deadline_s = 100.0 + (output - generated) * rng.uniform(0.045, 0.06, running)  # seconds a token to go
    most = np.full(running, ITERATIONS + 1, dtype=np.int64)
    deadline_s += 0.3 * output * 0.04  # what the predictor's error adds
    return Requests(
        range(first_id, first_id + running), prompt, output, most, deadline_s, prompt + generated - 1, generated
    )


def newcomer(rng: np.random.Generator, name: int) -> Requests:
    def one(value: int) -> Any:
        return np.array([value], dtype=np.int64)

    prompt, output = int(rng.integers(50, 900)), int(rng.integers(50, ITERATIONS))
    return Requests((name,), one(prompt), one(output), one(ITERATIONS), np.array([260.0]), one(0), one(0))


def time_rounds(table: SpeedTable) -> dict[str, Any]:
    """Rounds of admission and clock search; without the first, which compiles."""
    rng = np.random.default_rng(7)
    took_s: list[float] = []
    clocks: list[float] = []
    admitted = iterations = 0
    config, clock_config = AdmissionConfig(), ThrottleConfig()
    for n in range(ROUNDS + 1):
        obs = AdmissionObservation(100.0, "i1", batch_of(rng, BATCH - 1), newcomer(rng, BATCH), table)
        start = time.perf_counter()
        state, effects = admission.step(None, obs, config)
        board = admission.board_after(state, obs, config, effects)
        clock, _ = throttllem_clock.step(None, ThrottleObservation(100.0, "i1", board, table), clock_config)
        if n:
            took_s.append(time.perf_counter() - start)
            admitted += len(effects.commands)
            clocks.append(clock.target_mhz or 0.0)
            iterations = project(board, table.shape.block_tokens, table.shape.chunk_tokens).batch.size
    return {
        "rounds": ROUNDS,
        "admitted": admitted,
        "iterations": int(iterations),
        "median_mhz": float(np.median(clocks)),
        "p50_ms": float(np.percentile(took_s, 50) * 1e3),
        "p99_ms": float(np.percentile(took_s, 99) * 1e3),
    }


def score_models() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    found: dict[str, Any] = {}
    for (model, gpu), tps in PROFILES.items():
        clean = EngineIps(model, gpu, "trtllm", 128).samples(
            tps, (1, 2, 4, 8, 16, 32, 64, 128, 256), list(np.arange(210.0, 1411.0, 60.0)), 16
        )
        ips = clean.ips * np.exp(rng.normal(0.0, NOISE, len(clean)))
        noisy = IpsSamples(clean.tp, clean.batch, clean.kv_blocks, clean.mhz, ips)
        found[f"{model} on {gpu}"] = {
            f"train {share:.0%}": asdict(fit_and_score(noisy, share, rng)[1]) for share in (0.9, 0.1)
        }
    return found


def run() -> dict[str, Any]:
    engine = EngineIps("Llama2-13B", "A100-80GB", "vllm-v1")
    own = engine.shape(4)
    start = time.perf_counter()
    table = speed_table(
        engine,
        engine,
        EngineShape(4, own.kv_blocks, own.block_tokens, BATCH, own.chunk_tokens),
        list(np.linspace(210.0, 1410.0, CLOCKS)),
    )
    table_s = time.perf_counter() - start
    return {
        "admission_and_clock_search": {"batch": BATCH, "clocks": CLOCKS, **time_rounds(table)},
        "speed_table_s": table_s,
        "ips_models": score_models(),
    }


def main() -> None:
    print(json.dumps(run(), indent=2))


if __name__ == "__main__":
    main()
