"""Observations from views: what came recently in each class, and what each mode would do with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from core.observations.demand.carbon_ahead import SiteAhead
from core.observations.demand.class_arrivals import counted
from core.observations.demand.class_view import ClassFacts, ClassView, Declared, engine_choice, observed
from core.observations.demand.loop_windows import whole_stretches, window_s
from core.observations.mode_profile import Lengths
from core.simulator.kernel.commands import FleetView
from core.simulator.policies.world import ClassInfo, PartitionInfo, ServiceInfo, SiteInfo, World
from core.types import ClockObservation, Limits, Mode


def recent(view: FleetView, cells: Collection[int], period_s: float) -> NDArray[np.int64]:
    """Returns (stretches, 3): requests, prompt and predicted output tokens of `cells` in each whole stretch of the
    window."""
    first, end = whole_stretches(view.now_s, period_s)
    found: NDArray[np.int64] = view.arrived[sorted(cells), max(0, first) : end].sum(axis=0)
    return found


def class_view(
    world: World,
    service: ServiceInfo,
    info: ClassInfo,
    cells: Collection[int],
    view: FleetView,
    period_s: float,
    steps: int,
    modes: Sequence[Mode],
) -> ClassView:
    """Observes demand, lengths and profiles of one class."""
    declared = declared_load(world, cells, counts=view.now_s < window_s(period_s))
    seen, typical = counted(recent(view, cells, period_s)), Lengths(*info.typical_tokens)
    facts = ClassFacts(info.name, info.limits, typical, seen, declared, info.profiles)
    return observed(facts, engine_choice(service.model, service.engine, lambda: modes, info.profiled), steps)


def declared_load(world: World, cells: Collection[int], counts: bool) -> Declared | None:
    """Returns the load that is expected of the cells together. `counts`: its rate does, beside its lengths."""
    loads = [load for c in sorted(cells) if c < len(world.declared) and (load := world.declared[c]) is not None]
    expected = sum(load.rps for load in loads)
    if not expected:
        return None
    lengths = Lengths(
        sum(load.rps * load.prompt_tokens for load in loads) / expected,
        sum(load.rps * load.output_tokens for load in loads) / expected,
    )
    return Declared(expected if counts else 0.0, lengths)


def site_ahead(world: World, site: SiteInfo, now_s: float, step_s: float, steps: int) -> SiteAhead:
    """Returns a site with its intensity and its price in each coming step."""
    span = site.name, now_s, now_s + steps * step_s, step_s
    return SiteAhead(site.name, site.pue, world.intensity(*span) or (None,) * steps, world.prices(*span))


def clock_seen(view: FleetView, slot: int, min_mhz: float, max_mhz: float, limits: Limits) -> ClockObservation:
    """Returns an instance as clock rules see it, over the time since the fastest loop last ran."""
    return ClockObservation(
        now_s=view.now_s,
        instance=view.instances[slot].name,
        sm_clock_mhz=float(view.mhz[slot]),
        min_mhz=min_mhz,
        max_mhz=max_mhz,
        running=int(view.running[slot]),
        waiting=int(view.waiting[slot]),
        ttft_s=_known(view.ttft_s[slot]),
        tpot_s=_known(view.tpot_s[slot]),
        e2e_s=_known(view.e2e_s[slot]),
        limits=limits,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def cells_of(partition: PartitionInfo, number: int) -> tuple[int, ...]:
    """Returns the cells of a class, by its number in the partition."""
    return tuple(cell for cell, found in sorted(partition.cell_class.items()) if found == number)


def first_view(world: World) -> FleetView:
    """Returns the fleet before its first second: nobody there, nothing seen."""
    none, ints = np.zeros(0), np.zeros(0, np.int64)
    return FleetView(
        0.0, (), ints, ints, none, ints, ints, ints, none, none, none, (), ints, np.zeros((world.cells, 0, 3), np.int64)
    )
