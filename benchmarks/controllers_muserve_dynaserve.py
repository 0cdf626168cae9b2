"""Times mu-Serve's and DynaServe's decisions: `python -m benchmarks.controllers_muserve_dynaserve`. Prints JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from core.algorithms.clock.slack_miad import SlackConfig, agreed, next_clock_mhz, wanted
from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.split_point import Backlog, PassCosts, SplitConfig, pass_costs
from core.algorithms.split.step_times import StepLoad, StepTimes, pairs
from core.engine.engine_model import engine_model
from core.observations.request.split_given import Looks, place

MHZ = 1410.0


def timed(make: Callable[[], Callable[[], Any]], repeats: int, warm_ups: int = 3) -> dict[str, float]:
    """Microseconds of what `make` returns, which is made anew, untimed, for each repeat."""
    seconds = []
    for repeat in range(warm_ups + repeats):
        act = make()
        start = time.perf_counter()
        act()
        if repeat >= warm_ups:
            seconds.append(time.perf_counter() - start)
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e6
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1), "repeats": repeats}


def backlog(costs: PassCosts, rng: np.random.Generator, running: int, waiting: int) -> Backlog:
    """Decoding sequences and queued prompts of conversational lengths."""
    work = [(0, int(rng.integers(1, 600)), int(rng.integers(50, 1500))) for _ in range(running)]
    work += [(int(rng.integers(50, 2000)), int(rng.integers(1, 600)), 0) for _ in range(waiting)]
    return Backlog.of(costs, work, running)


def split(running: int, waiting: int, repeats: int = 1000) -> dict[str, float]:
    """Placing a request on two instances with so much to do each, all that they have included."""
    rng, config = np.random.default_rng(running), SplitConfig()
    costs = pass_costs(engine_model("Qwen2.5-14B", "A100-80GB", 1), MHZ, 2048)
    looks = Looks(lambda _: 10**6, lambda own: len(own.work), lambda own: own)

    def make() -> Callable[[], Any]:
        one, two = (backlog(costs, rng, running, waiting) for _ in range(2))
        prompt, output = int(rng.integers(50, 3000)), int(rng.integers(400, 2000))
        mix = RequestMix().after(prompt, output)
        return lambda: place(([one], [two]), looks, prompt, prompt + output, mix, config, 2)

    return timed(make, repeats)


def miad(devices: int = 1000, each: int = 2, repeats: int = 300) -> dict[str, float]:
    """Algorithm 3 for all devices, each with so many partitions."""
    rng, config = np.random.default_rng(1), SlackConfig()
    clocks = rng.uniform(300.0, 1980.0, devices).tolist()

    def make() -> Callable[[], Any]:
        target_s = rng.uniform(0.5, 2.0, (devices, each))
        latency_s = target_s * rng.uniform(0.2, 1.2, (devices, each))
        weight = rng.uniform(0.0, 1.0, (devices, each))
        partitions = np.stack([target_s, latency_s, weight], 2).tolist()

        def tick() -> None:
            for mhz, own in zip(clocks, partitions, strict=True):
                action = agreed([wanted(target, latency, share, mhz, config) for target, latency, share in own])
                next_clock_mhz(mhz, action, 210.0, 1980.0, config)

        return tick

    return timed(make, repeats)


def batch(repeats: int = 1000) -> tuple[dict[str, float], dict[str, float]]:
    """What the plug-in takes of a step of 128 decodes: the budget of prompt tokens, and learning from the last step."""
    rng, times = np.random.default_rng(3), StepTimes()

    def load() -> StepLoad:
        prompt = int(rng.integers(0, 2000))
        return StepLoad(prompt, pairs(prompt, 0), 128, int(rng.integers(12_800, 256_000)))

    def learning() -> Callable[[], Any]:
        own = load()
        took_s = 0.017 + 8.3e-5 * own.prompt_tokens + 1e-7 * own.context_tokens + float(rng.uniform(0.0, 0.002))
        return lambda: times.observe(own, took_s)

    def composing() -> Callable[[], Any]:
        context = int(rng.integers(12_800, 256_000))
        return lambda: times.prompt_budget(128, context, 0, 0.1, 8192)

    learned = timed(learning, repeats)
    return timed(composing, repeats), learned


def timings() -> dict[str, dict[str, float]]:
    composing, learning = batch()
    return {
        "dynaserve_split_32_running": split(32, 2),
        "dynaserve_split_128_running_8_waiting": split(128, 8),
        "dynaserve_split_240_running_16_waiting": split(240, 16),
        "dynaserve_compose": composing,
        "dynaserve_learn": learning,
        "muserve_miad_1000_devices": miad(),
    }


if __name__ == "__main__":
    print(json.dumps(timings(), indent=2))
