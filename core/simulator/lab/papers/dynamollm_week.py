"""DynamoLLM's day and weeks, computed as the paper computes them (V-E): in steps of time, from profiles, no request.

Each half hour the servers that the nine pools need for its peak (`hand_down`), each five minutes the TP degrees, counts
and clocks that draw least within them (eq. 1, as `core.controllers.fleet.right_size` solves it). Forecasts are right
and changes are free. The baseline is one pool that keeps all servers at TP 8 and the top clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from core.algorithms.fleet.hand_down import ClassLoad, Sizing, size
from core.algorithms.fleet.site_mix import Offer, best_mix
from core.engine.engine_model import engine_model
from core.engine.load_profile import LoadProfile, clocks, modelled
from core.observations.limits import planned
from core.observations.mode_profile import Lengths, mode_profile
from core.policy.dynamo_classes import RequestClass, request_classes, strictest
from core.policy.presets import PRESETS
from core.policy.request_classes import ClassGrid
from core.simulator import shipped_scenarios
from core.simulator.kernel.outcome import Floats
from core.simulator.scenario.scenario import read_scenario
from core.simulator.workload.curves import PRESETS as SHAPES
from core.simulator.workload.curves import WEEK_STEP_S, week_curve
from core.simulator.workload.lengths import AZURE_CONV, Fixed
from core.simulator.workload.lengths import Lengths as Drawn
from core.types import Limits, Mode, PoolKey

MODEL, ENGINE, GPU, GPUS = "Llama2-70B", "vllm-v1", "H100-SXM-80GB", 8
DEGREES = (2, 4, 8)
# The Coding service's lengths: the medians of the public coding hour (Splitwise, ISCA 2024).
LENGTHS = {"conversation": AZURE_CONV, "coding": Drawn(Fixed(1500.0), Fixed(13.0))}
TUESDAY = (288, 576)  # its steps of five minutes: a typical work day
_EPOCH = 6  # steps of a scale epoch
_DRAWS = 20_000  # requests from which the classes' shares and mean lengths come
_KNOBS = PRESETS["dynamollm"].knobs
_BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Estimate:
    """Energy and operational carbon of both, and the servers that each has. `short_steps`: too few for the limits."""

    baseline_wh: float
    energy_wh: float
    baseline_g: float
    carbon_g: float
    servers: int
    mean_servers: float
    short_steps: int

    @property
    def energy_saved(self) -> float:
        return 1.0 - self.energy_wh / self.baseline_wh

    @property
    def carbon_saved(self) -> float:
        return 1.0 - self.carbon_g / self.baseline_g

    @property
    def servers_saved(self) -> float:
        return 1.0 - self.mean_servers / self.servers


@dataclass(frozen=True, slots=True)
class _Class:
    known: RequestClass
    share: float  # of the requests
    lengths: Lengths
    node_rps: float  # that one server carries


@cache
def estimate(preset: str, servers: int, steps: tuple[int, int] | None = None) -> Estimate:
    """Simulates a week of `preset`'s shape (some `steps` of it) on `servers`, at the rate whose peak the nine pools
    just hold."""
    classes = _classes(preset)
    shape = np.array(week_curve(SHAPES[preset]).rates)
    rates = _most_rps(classes, servers) * (shape if steps is None else shape[slice(*steps)])
    intensity = _intensity(rates.size)
    hours = WEEK_STEP_S / 3600.0
    baseline_w = np.array([_single_w(classes, servers, float(rps)) for rps in rates])
    own_w, nodes, short = np.zeros(rates.size), [], 0
    for first in range(0, rates.size, _EPOCH):
        epoch = rates[first : first + _EPOCH]
        sizing = _sized(classes, float(epoch.max()))
        nodes += [sum(sizing.nodes)] * epoch.size
        for n, rps in enumerate(epoch.tolist(), first):
            watts, failed = _pools_w(classes, sizing, rps)
            own_w[n] += watts
            short += failed
    return Estimate(
        baseline_wh=float(baseline_w.sum() * hours),
        energy_wh=float(own_w.sum() * hours),
        baseline_g=float(baseline_w @ intensity * hours / 1e3),
        carbon_g=float(own_w @ intensity * hours / 1e3),
        servers=servers,
        mean_servers=float(np.mean(nodes)),
        short_steps=short,
    )


@cache
def _classes(preset: str) -> tuple[_Class, ...]:
    """Returns the classes of table IV that occur among a service's requests."""
    prompts, outputs = LENGTHS[preset].draw(np.random.default_rng(1), _DRAWS)
    known = request_classes()
    grid = ClassGrid(known)
    names = np.array([grid.name(p, o) for p, o in zip(prompts.tolist(), outputs.tolist(), strict=True)])
    found = []
    for own in known:
        mine = names == own.name
        if mine.any():
            lengths = Lengths(float(prompts[mine].mean()), float(outputs[mine].mean())).rounded
            node = mode_profile(MODEL, ENGINE, Mode(GPU, max(DEGREES)), lengths, _planned(own.limits)).max_rps
            found.append(_Class(own, float(mine.mean()), lengths, node))
    return tuple(found)


def _planned(limits: Limits) -> Limits:
    return planned(limits, _KNOBS.plan_ttft_share, _KNOBS.plan_tpot_share)


def _sized(classes: Sequence[_Class], rps: float) -> Sizing:
    last = len(classes) - 1
    loads = [own.share * rps for own in classes]
    own = [
        ClassLoad(PoolKey("site", c.known.name), (load,), c.node_rps) for c, load in zip(classes, loads, strict=True)
    ]
    return size(own, loads, lambda i, need: max(1, math.ceil(need)) if i == last else math.floor(need))


def _most_rps(classes: Sequence[_Class], servers: int) -> float:
    low, high = 0.0, servers * max(own.node_rps for own in classes)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if sum(_sized(classes, middle).nodes) <= servers else (low, middle)
    return low


def _pools_w(classes: Sequence[_Class], sizing: Sizing, rps: float) -> tuple[float, int]:
    """Watts of all pools, and how many could not keep their limits: those run all they have at the top clock."""
    carried = np.zeros(len(classes))
    total, short = 0.0, 0
    for n, own in enumerate(classes):
        carried[n] += own.share * rps
        served = carried * (1.0 - sizing.shares[n])
        carried = carried - served
        load = float(served.sum())
        if sizing.nodes[n] == 0 or load <= 0.0:
            continue
        prompt = float(served @ [c.lengths.prompt_tokens for c in classes]) / load
        output = float(served @ [c.lengths.output_tokens for c in classes]) / load
        limits = strictest(
            _planned(c.known.limits) for c, part in zip(classes, served, strict=True) if part > 0.01 * load
        )
        watts = _least_w(Lengths(prompt, output).rounded, sizing.nodes[n], _rounded(load), limits)
        short += watts is None
        total += _top_w(Lengths(prompt, output).rounded, sizing.nodes[n], load) if watts is None else watts
    return total, short


@cache
def _least_w(lengths: Lengths, nodes: int, rps: float, limits: Limits) -> float | None:
    fits = [
        fit
        for tp in DEGREES
        if (profile := _profile(tp, lengths)) is not None
        and (fit := best_mix([Offer(Mode(GPU, tp), profile, nodes * GPUS // tp)], rps, rps, limits)) is not None
        and not fit.short
    ]
    return min((fit.watts for fit in fits), default=None)


@cache
def _profile(tp: int, lengths: Lengths) -> LoadProfile | None:
    worker = engine_model(MODEL, GPU, tp, ENGINE)
    return modelled(worker, lengths.prompt_tokens, lengths.output_tokens, clocks(worker.gpu_params))


def _rounded(rps: float) -> float:
    """Rounds a rate to 1 %, so that a week's loads are few."""
    return float(math.exp(round(100.0 * math.log(rps)) / 100.0))


def _top_w(lengths: Lengths, nodes: int, rps: float) -> float:
    profile = _profile(max(DEGREES), lengths)
    assert profile is not None, "TP 8 holds every class"
    top = profile.top()
    return nodes * float(top.at(np.array([min(rps / nodes, top.max_rps)]))[2][0, 0])


def _single_w(classes: Sequence[_Class], servers: int, rps: float) -> float:
    prompt = sum(own.share * own.lengths.prompt_tokens for own in classes)
    output = sum(own.share * own.lengths.output_tokens for own in classes)
    return _top_w(Lengths(prompt, output).rounded, servers, rps)


def _intensity(steps: int) -> Floats:
    """g/kWh of the demo's solar day, over and over: the paper's week of CAISO is not in its text."""
    site = read_scenario(shipped_scenarios.folder() / "freesh-three-sites.yaml").sites["location-1"]
    return np.array([site.intensity_g_per_kwh(step * WEEK_STEP_S % 86400.0) or 0.0 for step in range(steps)])
