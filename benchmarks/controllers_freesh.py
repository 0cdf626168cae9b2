"""Times FREESH's controllers: `python -m benchmarks.controllers_freesh`. Prints JSON.

The carbon epoch on FREESH's own fleet, to a proven optimum, and on 20 sites, to a gap of 0.1 %; one coming and
one going with 10,000 in queue, at the gateway and inside an engine; the clocks of 1,000 GPUs. Large fleets are drawn
from seeds. Crowded ones, whose demand takes a third of all GPUs or more, are the harder ones: the gap within two
seconds is given.
"""

from __future__ import annotations

import csv
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from core.algorithms.clock.miad import MiadConfig, next_clock_mhz
from core.algorithms.fleet.fleet_milp import FleetPlan, FleetProblem, solve_fleet
from core.algorithms.queue.fair_queue import FairQueue, Waiting, due_s
from core.algorithms.queue.queueing import OrderConfig
from core.types import ClassDemand, Limits, Mode, ModeProfile, PartitionOption, SiteView, Source
from pools.vllm_scheduler.order import Head, LaxityQueue, Seat, displaced

MODES = (
    *(Mode("A100-80GB", 2), Mode("A100-80GB", 4), Mode("H100-SXM-80GB", 2), Mode("H100-SXM-80GB", 4)),
    *(Mode("A100-80GB", 8), Mode("H100-SXM-80GB", 8), Mode("H100-SXM-80GB", 1)),
    Mode("H100-SXM-80GB", 2, (("A100-80GB", 2),)),  # prefill on the one, decode on the other
)
STEPS, STEP_S = 6, 300.0
PROFILES = Path(__file__).parent.parent / "pools" / "demo" / "freesh_profiles.csv"


def fleet(
    seed: int, sites: int, partitions: int, classes: int, modes: int, load: float = 0.5, size: int = 1
) -> FleetProblem:
    """A problem whose demand takes about `load` of the fleet."""
    rng = np.random.default_rng(seed)
    gpus = {"A100-80GB": 32 * size, "H100-SXM-80GB": 16 * size}
    per_gpu_rps = {"A100-80GB": 2.8, "H100-SXM-80GB": 5.5}
    whole_rps = sites * sum(gpus[name] * rps for name, rps in per_gpu_rps.items())
    options = []
    for p in range(partitions):
        names = [f"c{n}" for n in range(classes)]
        shares, work = rng.dirichlet(np.full(classes, 4.0)), rng.lognormal(0.0, 0.7, classes)
        demand = load * whole_rps * shares[:, None] / work[:, None] * rng.uniform(0.7, 1.0, (classes, STEPS))
        profiles = {}
        for name, heavy in zip(names, work, strict=True):
            for mode in MODES[:modes]:
                rps = sum(count * per_gpu_rps[gpu] for gpu, count in mode.gpus.items())
                watts = sum(count * (370.0 if gpu == "A100-80GB" else 560.0) for gpu, count in mode.gpus.items())
                profiles[name, mode] = ModeProfile(
                    float(rps / heavy * rng.uniform(0.8, 1.2)),
                    float(watts * rng.uniform(0.9, 1.1)),
                    None,
                    0.06,
                    float(rng.uniform(8.0, 34.0)),
                    Source.PUBLISHED,
                )
        rows = zip(names, demand.tolist(), strict=True)
        demands = tuple(ClassDemand(name, tuple(row), Limits(None, 0.15, 33.0)) for name, row in rows)
        options.append(PartitionOption(f"p{p}", demands, profiles))
    places = tuple(
        SiteView(f"s{n}", gpus, 1.0, tuple(rng.uniform(100.0, 2500.0, STEPS).tolist())) for n in range(sites)
    )
    return FleetProblem(places, tuple(options), STEP_S)


def published(seed: int) -> FleetProblem:
    """FREESH's own fleet: its testbed's GPUs at three sites (section 4), its profiles, and drawn demand and intensity.

    Its sites see intensities from below 0 to several thousand g/kWh, since they are marginal ones.
    """

    def figure(text: str) -> float | None:
        return float(text) if text else None

    rng = np.random.default_rng(seed)
    options = []
    for p in ("a", "b"):
        with PROFILES.open() as file:
            rows = [row for row in csv.DictReader(file) if row["partition"] == f"freesh-{p}"]
        profiles = {
            (row["request_class"], Mode(row["gpu_type"], int(row["tp"]))): ModeProfile(
                float(row["max_rps"]),
                float(row["power_w"]),
                figure(row["ttft_s"]),
                figure(row["tpot_s"]),
                figure(row["e2e_s"]),
                Source.PUBLISHED,
            )
            for row in rows
        }
        limits = {
            name: Limits(ttft_s, 0.15, None) for name, ttft_s in (("SS", 0.3), ("SL", 0.3), ("LS", 0.65), ("LL", 0.65))
        }
        demands = [
            ClassDemand(
                name, tuple((rng.uniform(0.3, 1.2) * top * rng.uniform(0.6, 1.0, STEPS)).tolist()), limits[name]
            )
            for name, top in (("SS", 6.0), ("SL", 2.0), ("LS", 3.0), ("LL", 1.5))
        ]
        options.append(PartitionOption(p, tuple(demands), profiles))
    sites = tuple(
        SiteView(name, gpus, 1.0, tuple(rng.normal(1000.0, 900.0, STEPS).tolist()))
        for name, gpus in (
            ("loc1", {"A100-80GB": 4, "H100-SXM-80GB": 4}),
            ("loc2", {"A100-80GB": 12, "H100-SXM-80GB": 2}),
            ("loc3", {"A100-80GB": 8}),
        )
    )
    return FleetProblem(sites, tuple(options), STEP_S)


def solved(problems: list[FleetProblem], solve: Callable[[FleetProblem], FleetPlan]) -> dict[str, Any]:
    plans = [solve(problem) for problem in problems]
    took_ms = [plan.solve_s * 1e3 for plan in plans]
    gaps = [plan.gap for plan in plans if plan.gap is not None]
    return {
        "problems": len(plans),
        "p50_ms": float(np.percentile(took_ms, 50)),
        "p99_ms": float(np.percentile(took_ms, 99)),
        "max_ms": max(took_ms),
        "max_gap": max(gaps),
        "statuses": sorted({str(plan.status) for plan in plans}),
    }


def carbon() -> dict[str, Any]:
    own = [published(seed) for seed in range(60)]
    alike = [fleet(seed, 3, 2, 4, 4, load) for seed in range(10) for load in (0.3, 0.6)]
    large = [fleet(seed, 20, 4, 9, 8, 0.05) for seed in range(6)]
    crowded = [fleet(seed, 20, 4, 9, 8, load) for seed in range(2) for load in (0.3, 0.6)]
    return {
        "freesh_fleet_3_sites_2_partitions_4_classes_4_modes": solved(own, lambda p: solve_fleet(p, gap=0.0)),
        "freesh_fleet_3_sites_of_48_gpus": solved(alike, lambda p: solve_fleet(p, gap=0.0)),
        "freesh_fleet_20_sites_4_partitions_9_classes_8_modes": solved(large, lambda p: solve_fleet(p, gap=1e-3)),
        "freesh_fleet_20_sites_crowded_2_s": solved(crowded, lambda p: solve_fleet(p, 2.0, gap=1e-3)),
    }


def ticks(call: Callable[[], Any], repeats: int = 500) -> dict[str, float]:
    call()
    took_ms = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        took_ms.append((time.perf_counter() - started) * 1e3)
    return {"p50_ms": float(np.percentile(took_ms, 50)), "p99_ms": float(np.percentile(took_ms, 99))}


def queue(queued: int = 10_000) -> dict[str, dict[str, float]]:
    """A queue by laxity of which one is served when one comes."""
    rng, config = np.random.default_rng(5), OrderConfig()
    queue: FairQueue[int] = FairQueue(config)
    numbers = itertools.count()

    def come() -> None:
        number = next(numbers)
        arrival_s, tokens = number * 0.01, int(rng.integers(1, 800))
        work_s = 0.3 + 0.05 * tokens
        queue.push(number, Waiting(arrival_s, 0, tokens, work_s, due_s(arrival_s, work_s, config)))

    def tick() -> None:
        come()
        queue.advance(next(numbers) * 0.01)
        queue.pop()

    for _ in range(queued):
        come()
    return {f"freesh_llf_line_{queued}_queued": ticks(tick)}


def engine_queue(queued: int = 10_000, running: int = 256) -> dict[str, dict[str, float]]:
    """The same inside an engine: one comes and leaves, it is seen who gives way to the first, and one goes next."""
    rng, clock = np.random.default_rng(7), itertools.count(0.0, 0.01)
    requests = [(float(at), float(left)) for at, left in rng.uniform(0.3, 40.0, (queued + 1, 2))]
    now = [0.0]
    waiting: LaxityQueue[Any] = LaxityQueue(lambda request: request, lambda: now[0], requests[:-1])
    seats = [
        Seat(n, *rng.uniform(0.0, 40.0, 2).tolist(), 16, left) for n, left in enumerate(rng.uniform(0, 40, running))
    ]

    def tick() -> None:
        now[0] = next(clock)
        waiting.add_request(requests[-1])
        waiting.remove_request(requests[-1])
        heads = [Head(request, request[0], 64, request[1]) for request in waiting.first(8)]
        displaced(heads, seats, 0, 16, now[0], 1.0, 4)
        waiting.add_request(waiting.pop_request())

    return {f"freesh_llf_engine_{queued}_waiting_{running}_running": ticks(tick)}


def clocks(gpus: int = 1000) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(6)
    mhz, congested = rng.uniform(300.0, 1410.0, gpus).tolist(), (rng.random(gpus) < 0.2).tolist()
    config = MiadConfig()

    def tick() -> None:
        for clock, late in zip(mhz, congested, strict=True):
            next_clock_mhz(clock, late, 300.0, 1410.0, config)

    return {"freesh_miad_1000_gpus": ticks(tick)}


def timings() -> dict[str, Any]:
    return {**queue(), **engine_queue(), **clocks(), **carbon()}


if __name__ == "__main__":
    solve_fleet(fleet(99, 3, 2, 4, 4))  # loads what is loaded on first use
    started = time.perf_counter()
    print(json.dumps({**timings(), "took_s": time.perf_counter() - started}, indent=2))
