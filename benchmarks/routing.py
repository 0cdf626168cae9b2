"""Times the router's choice among 64 instances, by the closed form and by measured profiles.

    python -m benchmarks.routing

Caches are warm: each choice is made many times over loads and lengths that change, as in a gateway. `renew` is what a
report of an instance adds: its candidate is made anew.
"""

from __future__ import annotations

import json
import random
import time
from statistics import median, quantiles
from typing import Any

from core.controllers.request.routing import Candidate, RouteRequest, choose_of
from core.engine import measured
from core.engine.engine_model import closed_form
from core.engine.profiles import Point, Profile
from core.types import Limits

MODEL, GPU, ENGINE, INSTANCES, CHOICES, MHZ = "Llama3-70B", "A100-80GB", "vllm-v1", 64, 20_000, (1005.0, 1410.0)
DEGREES = (4, 8)


def profile(tp: int) -> Profile:
    """Returns measurements of decodes and prompts at four clocks, a tenth slower than the closed form."""
    costs, points = closed_form(MODEL, GPU, tp, ENGINE), []
    for mhz in (705.0, 945.0, 1170.0, 1410.0):
        shapes = [(prompt, 0, 0) for prompt in (128, 512, 2048)]
        shapes += [(0, batch, batch * context) for batch in (1, 4, 16, 64, 256) for context in (160, 2048)]
        for prompt, batch, context in shapes:
            one = costs.iteration(mhz, [(prompt, 0)] if prompt else (), batch, float(context))
            points.append(Point(prompt, mhz, batch, float(context), 1.1 * one.t_s, 0.95 * one.watts))
    return Profile(MODEL, GPU, tp, ENGINE, tuple(points))


def candidates(rng: random.Random) -> list[Candidate]:
    """Returns instances of two degrees and clocks under various loads."""
    return [
        Candidate(
            *(str(n), n % 8, "s", "ALL", 0, MODEL, ENGINE, GPU, DEGREES[n % 2], MHZ[n // 2 % 2]),
            *(rng.randrange(60), 0, rng.randrange(2000), 0.3, 1.2, 400.0),
        )
        for n in range(INSTANCES)
    ]


def measure() -> dict[str, Any]:
    """Returns microseconds a choice, and those that a candidate takes."""
    rng = random.Random(1)
    there, took = candidates(rng), []
    for n in range(CHOICES + 2_000):
        request = RouteRequest(
            rng.choice((100, 500, 1500, 3000)), rng.choice((50, 200, 800)), 0, Limits(2.0, 0.15, None)
        )
        begun_s = time.perf_counter()
        choice = choose_of(there, lambda: there, request, rng.random)
        if n >= 2_000:
            took.append((time.perf_counter() - begun_s) * 1e6)
        assert choice is not None
        there[int(choice.uid)].carrying(rng.randrange(60), 0, rng.randrange(2000))
    begun_s = time.perf_counter()
    for _ in range(200):
        candidates(rng)
    renew_us = (time.perf_counter() - begun_s) / 200 / INSTANCES * 1e6
    return {
        "p50_us": round(median(took), 1),
        "p99_us": round(quantiles(took, n=100)[98], 1),
        "renew_us": round(renew_us, 1),
    }


def main() -> None:
    found = {}
    for name, profiles in (("closed form", ()), ("measured", tuple(map(profile, DEGREES))), ("closed form again", ())):
        measured.publish(profiles)
        found[name] = measure()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
