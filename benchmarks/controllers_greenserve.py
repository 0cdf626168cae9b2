"""Times GreenServe's decisions: `python -m benchmarks.controllers_greenserve`. Prints JSON.

A turn of the scale loop for about 20 instances, with the requests of an hour (the newest that are remembered), and the
shares of its parts: what it observes (lengths, profiles, limits), the replay of what came, and the choice of a mix.
Each turn is 10 s after the one before, so that caches are as warm as those of a fleet that serves. And a look at the
clocks of 1,000 GPUs. Milliseconds are of processor time: other work on the machine blurs them less.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np

from core.algorithms.clock.deadline_clock import PROMPT
from core.algorithms.fleet.arrival_replay import MOST_SEEN, Arrivals
from core.algorithms.fleet.site_mix import SiteMode
from core.controllers.clock import deadline_clock
from core.controllers.clock.deadline_clock import DeadlineConfig, DeadlineObservation, DeadlineState
from core.controllers.fleet import right_size
from core.controllers.fleet.right_size import RightSizeState, ahead_rps
from core.engine.compiled_model import F_MAX, model_row
from core.engine.engine_model import engine_model
from core.observations.clock_given import ProfileClocks
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.fleet.right_size_given import (
    ClassLengths,
    PoolLoad,
    PoolNow,
    SeenLengths,
    least_instances,
    load_rps,
    observation,
    offers,
)
from core.observations.mode_profile import Lengths
from core.policy.presets import policy
from core.ports import EngineLimits
from core.simulator.policies import greenserve
from core.simulator.workload.lengths import AZURE_CONV
from core.types import Limits, Mode, PoolKey

MODEL, GPU, ENGINE = "Llama2-70B", "H100-SXM-80GB", "vllm-v1"
ROOM = {("site", Mode(GPU, tp)): 40 * 8 // tp for tp in (2, 4, 8)}
SLO = Limits(1.0, 0.1)
HOUR_S, RATE_RPS = 3600.0, 200.0
CONFIG = greenserve.of(policy("greenserve"))


def scale_turn(turns: int = 100, warm_ups: int = 10) -> dict[str, Any]:
    rng, period_s = np.random.default_rng(1), CONFIG.fleet.period_s
    at_s = np.cumsum(rng.exponential(1.0 / RATE_RPS, int(RATE_RPS * (HOUR_S + period_s * (turns + warm_ups)))))
    prompts, outputs = (tokens.astype(float) for tokens in AZURE_CONV.draw(rng, at_s.size))
    mean = Lengths(prompts.mean(), outputs.mean())
    seen, standing = SeenLengths(mean, (mean,)), dict[SiteMode, int]()
    state: RightSizeState | None = None
    took_s = np.zeros((turns + warm_ups, 3))
    for turn in range(turns + warm_ups):
        now_s = HOUR_S + period_s * turn
        end = int(np.searchsorted(at_s, now_s))
        last = slice(max(0, end - MOST_SEEN), end)
        came = Arrivals(at_s[last], prompts[last], np.full(end - last.start, SLO.ttft_s))
        recent = slice(int(np.searchsorted(at_s, now_s - CONFIG.look_s)), end)
        counts, _ = np.histogram(at_s[recent], np.arange(now_s - CONFIG.look_s, now_s + STRETCH_S / 2, STRETCH_S))
        sums = np.array([[end - recent.start, prompts[recent].sum(), outputs[recent].sum()]])

        began = time.process_time()
        seen = seen.renewed(sums, [0])
        load = PoolLoad(
            MODEL,
            ENGINE,
            seen.pool,
            (ClassLengths(SLO, seen.classes[0]),),
            CONFIG.chunk_tokens,
            ProfileClocks(CONFIG.clock_step_mhz, CONFIG.clock_floor, CONFIG.clock_floor_mhz),
            CONFIG.clock_wait_share,
        )
        rates_rps = load_rps(counts.tolist(), None)
        kinds = offers(load, ROOM, {"site": 1.0})
        limits = load.planned(kinds, *CONFIG.plan_shares)
        pool = PoolNow(ROOM, {}, standing, 0, None)
        obs = observation(now_s, PoolKey("", "all"), rates_rps, kinds, limits, pool)
        observed = time.process_time()
        before = None if state is None else state.least
        least = least_instances(now_s, load, obs.offers, came, ahead_rps(rates_rps)[1], before=before)
        obs = replace(obs, least=least)
        replayed = time.process_time()
        state, _ = right_size.step(state, obs, CONFIG.fleet)
        took_s[turn] = np.diff([began, observed, replayed, time.process_time()])
        assert state is not None
        standing = state.workers
    parts = took_s[warm_ups:].mean(axis=0)
    whole_ms = took_s[warm_ups:].sum(axis=1) * 1e3
    return {
        "instances": sum(standing.values()),
        "requests": int(end - last.start),
        "p50_ms": round(float(np.percentile(whole_ms, 50)), 3),
        "p99_ms": round(float(np.percentile(whole_ms, 99)), 3),
        "shares": dict(zip(("observation", "replay", "step"), (parts / parts.sum()).round(3).tolist(), strict=True)),
    }


def clocks(gpus: int = 1000, tp: int = 8, looks: int = 100, warm_ups: int = 3) -> dict[str, Any]:
    """One look at each instance on so many GPUs: all have answers, every third prompts that wait as well. Requests stay
    while time goes on by the distance of looks."""
    rng = np.random.default_rng(2)
    costs = model_row(engine_model(MODEL, GPU, tp, ENGINE))
    config = DeadlineConfig(costs, EngineLimits(chunk_tokens=CONFIG.chunk_tokens), 210.0, CONFIG.clock_step_mhz)
    seen = []
    for n in range(gpus // tp):
        waiting = int(rng.integers(1, 4)) if n % 3 == 0 else 0
        rows = [(int(rng.integers(50, 4000)), 0, float(rng.uniform(0.6, 0.9))) for _ in range(waiting)]
        decodes = int(rng.integers(4, 40))
        slack_s = float(rng.uniform(0.0, 2.0))
        seen.append(DeadlineObservation(0.0, f"i{n}", np.array(rows, PROMPT), decodes, 1200 * decodes, slack_s, 0.07))
    states: list[DeadlineState | None] = [None] * len(seen)
    took_ms, changes = [], 0
    for look in range(looks + warm_ups):
        now = [replace(one, now_s=0.001 * look, slack_s=one.slack_s - 0.001 * look) for one in seen]
        began = time.process_time()
        for n, one in enumerate(now):
            states[n], effects = deadline_clock.step(states[n], one, config)
            changes += len(effects.commands) if look >= warm_ups else 0
        if look >= warm_ups:
            took_ms.append((time.process_time() - began) * 1e3)
    return {
        "instances": len(seen),
        "changed": round(changes / (looks * len(seen)), 3),
        "top_mhz": float(costs[F_MAX]),
        "mean_mhz": float(np.mean([state.target_mhz for state in states if state is not None])),
        "p50_ms": round(float(np.percentile(took_ms, 50)), 3),
        "p99_ms": round(float(np.percentile(took_ms, 99)), 3),
    }


def timings() -> dict[str, Any]:
    return {"scale_turn_20_instances": scale_turn(), "clocks_1000_gpus": clocks()}


if __name__ == "__main__":
    print(json.dumps(timings(), indent=2))
