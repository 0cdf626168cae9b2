"""A bound for every policy: each minute the best mix of sites, types, TP degrees, counts and clocks, changes free.

It knows the minute's load and mean lengths beforehand, spreads the requests evenly over it, and keeps limits in the
mean: bursts, waits and long prompts of others cost nothing. Where carbon is known of all sites it is made least, else
energy. So it is a floor, and not one that can be reached. Beside it stands the same with the tail:
loads only up to where a simulated pool keeps 99 of 100 requests in their limits (`tail`). What runs in each minute is
still foreseen and changed for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from core.algorithms.fleet.site_mix import Mix, Offer, best_mix
from core.engine.engine_model import engine_model
from core.engine.load_profile import LoadProfile, clocks, modelled
from core.engine.parameter_caches import cached
from core.observations.mode_profile import Lengths
from core.policy.dynamo_classes import strictest
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.kernel.outcome import Floats, Ints
from core.simulator.kernel.simulated import SimulationError
from core.simulator.lab.tail_latency import Ceiling, ceilings
from core.simulator.policies.world import World
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario
from core.types import Limits, Mode

MINUTE_S = 60.0
_STEP_MHZ = 15.0
_Profile = Callable[[Mode, Lengths], LoadProfile | None]


@dataclass(frozen=True, slots=True)
class Minute:
    """What came in a minute (the last one may be shorter), and the fleet for it.

    `fit` None: no request came, or no fleet carries what came.
    """

    span_s: float
    rps: float
    lengths: Lengths | None  # None: no request came
    fit: Mix | None

    @property
    def short(self) -> bool:
        return self.fit is None and self.lengths is not None


@dataclass(frozen=True, slots=True)
class Bound:
    """`short_minutes`: in which no fleet carries what came. `carbon_g`: None where an intensity is not known; else
    it is what was made least. `ceilings`: what it was held to; empty: to the limits in the mean. `with_tail`: the same
    plan held to the tail; None: not worked out.
    """

    energy_wh: float
    gpu_hours: float
    minutes: tuple[Minute, ...]
    short_minutes: int
    carbon_g: float | None = None
    ceilings: Mapping[Mode, Ceiling] = field(default_factory=dict)
    with_tail: Bound | None = None


def clairvoyant(scenario: Scenario, blocks: Iterable[Arrivals], tail: bool = False) -> Bound:
    """Computes the bound of a scenario with one service.

    Args:
        tail: The one with the tail as well, which takes a minute or so.

    Raises:
        SimulationError: More than one service.
    """
    world = world_of(scenario)
    if len(world.services) != 1:
        raise SimulationError("the bound is of one service; split the scenario")
    # Every request in one pool keeps the tightest limits of any class.
    limits = strictest(info.limits for info in world.services[0].partitions[0].classes)
    kept = list(blocks)
    columns = _columns(kept)
    found = _bound(columns, world, limits, lambda mode, lengths: _profile(world, mode, lengths))
    if not tail:
        return found
    ceiling_of = ceilings(scenario, kept)
    with_tail = _bound(columns, world, Limits(), lambda mode, lengths: _with_ceiling(world, mode, lengths, ceiling_of))
    return replace(found, with_tail=replace(with_tail, ceilings=ceiling_of))


def _bound(columns: tuple[Floats, Ints, Ints], world: World, limits: Limits, profile: _Profile) -> Bound:
    minutes: list[Minute] = []
    energy_wh = gpu_hours = carbon_g = 0.0
    clean = True
    for n in range(max(1, math.ceil(float(columns[0][-1]) / MINUTE_S))):
        minute, weighed = _minute(n, columns, world, limits, profile)
        minutes.append(minute)
        clean = clean and weighed
        if minute.fit is not None:
            energy_wh += minute.fit.watts * minute.span_s / 3600.0
            gpu_hours += sum(part.count * part.mode.tp for part in minute.fit.parts) * minute.span_s / 3600.0
            carbon_g += minute.fit.cost * minute.span_s / 3.6e6
    short = sum(minute.short for minute in minutes)
    return Bound(energy_wh, gpu_hours, tuple(minutes), short, carbon_g if clean else None)


def _minute(
    n: int, columns: tuple[Floats, Ints, Ints], world: World, limits: Limits, profile: _Profile
) -> tuple[Minute, bool]:
    """Finds a minute's best mix for its load and mean lengths, and says whether that makes carbon least."""
    at_s, prompt, output = columns
    from_s = n * MINUTE_S
    span_s = min(MINUTE_S, float(at_s[-1]) - from_s)
    g_per_kwh = _g_per_kwh(world, from_s, from_s + max(span_s, 1.0))
    first, last = np.searchsorted(at_s, [from_s, from_s + MINUTE_S]).tolist()
    if last == first or span_s <= 0.0:
        return Minute(span_s, 0.0, None, None), g_per_kwh is not None
    lengths = Lengths(float(prompt[first:last].mean()), float(output[first:last].mean())).rounded
    rps = (last - first) / span_s
    fit = best_mix(_offers(world, g_per_kwh, lengths, profile), rps, rps, limits)
    return Minute(span_s, rps, lengths, None if fit is None or fit.short else fit), g_per_kwh is not None


def _g_per_kwh(world: World, from_s: float, to_s: float) -> dict[str, float] | None:
    """Returns each site's mean intensity, PUE included; None: one is not known."""
    found = {}
    for site in world.sites:
        value = next(iter(world.intensity(site.name, from_s, to_s, to_s - from_s)), None)
        if value is None:
            return None
        found[site.name] = site.pue * value
    return found


def _offers(world: World, g_per_kwh: Mapping[str, float] | None, lengths: Lengths, profile: _Profile) -> list[Offer]:
    found = []
    for site in world.sites:
        worth = site.pue if g_per_kwh is None else g_per_kwh[site.name]
        for mode in world.modes(world.services[0], site.name):
            own, room = profile(mode, lengths), site.gpus.get(mode.gpu, 0) // mode.tp
            if own is not None and room:
                found.append(Offer(mode, own, room, site.name, worth))
    return found


def _profile(world: World, mode: Mode, lengths: Lengths) -> LoadProfile | None:
    service = world.services[0]
    return _at_clocks(service.model, service.engine, mode, lengths, None)


def _with_ceiling(world: World, mode: Mode, lengths: Lengths, ceiling_of: Mapping[Mode, Ceiling]) -> LoadProfile | None:
    """Returns the profile of a mode, cut at the loads at which a pool keeps the tail."""
    ceiling, service = ceiling_of.get(mode), world.services[0]
    if ceiling is None:
        return None
    return _at_clocks(service.model, service.engine, mode, lengths, ceiling)


@cached(maxsize=4096)
def _at_clocks(model: str, engine: str, mode: Mode, lengths: Lengths, ceiling: Ceiling | None) -> LoadProfile | None:
    worker = engine_model(model, mode.gpu, mode.tp, engine)
    mhz = clocks(worker.gpu_params, _STEP_MHZ, worker.gpu_params.f_min) if ceiling is None else ceiling.mhz
    found = modelled(worker, lengths.prompt_tokens, lengths.output_tokens, mhz)
    return found if found is None or ceiling is None else ceiling.cut(found)


def _columns(blocks: Iterable[Arrivals]) -> tuple[Floats, Ints, Ints]:
    rows = [(block.arrival_s, block.prompt_tokens, block.output_tokens) for block in blocks]
    if not rows:
        raise SimulationError("the load is empty: no request to bound")
    at_s, prompt, output = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return at_s, prompt, output
