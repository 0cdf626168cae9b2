"""Divides a policy's energy beyond the clairvoyant bound by its causes, minute by minute.

A probe notes the fleet each five seconds: how many instances serve at which clock. For the minute's mean load and
lengths the profiles tell what just this fleet would draw (as if the load were even), and what it would draw at the
slowest sufficient clock. The steps from the bound to the run are the causes; they add up to what the run took.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.engine.engine_model import engine_model
from core.engine.load_profile import LoadProfile, modelled
from core.observations.mode_profile import Lengths
from core.simulator.figures.run_figures import ENERGY_KINDS
from core.simulator.kernel.commands import SERVING, Answer, FleetView
from core.simulator.kernel.outcome import Floats
from core.simulator.lab.bound import MINUTE_S, Bound, Minute
from core.simulator.lab.experiment import Table
from core.simulator.lab.measures import Figures, Results
from core.simulator.lab.tail_latency import Ceiling
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario
from core.types import Mode

Fleet = Mapping[tuple[Mode, float], int]  # how many instances serve, by kind and clock
PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A run's figures, and its fleet at each multiple of PERIOD_S."""

    figures: Figures
    fleets: tuple[Fleet, ...]


class Probe:
    """A Control that only looks."""

    name = "probe"
    period_s = PERIOD_S

    def __init__(self) -> None:
        self.fleets: list[Fleet] = []

    def step(self, view: FleetView) -> Answer:
        serving = np.flatnonzero(view.state == SERVING).tolist()
        kinds = ((view.instances[i], float(view.mhz[i])) for i in serving)
        self.fleets.append(Counter((Mode(spec.gpu, spec.tp), mhz) for spec, mhz in kinds))
        return Answer()


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The parts of a run's energy, in Wh. They add up to what the run took; one may be below 0.

    `bound_wh`: of the clairvoyant bound that keeps limits in the mean; `tail_wh`: more, for 99 of 100 requests in time;
    `fleet_wh`: for having other instances than that has; `clock_wh`: for clocks above what these need;
    `transition_wh`: of starts; `rest_wh`: load that is uneven within the minute and over instances, and what drains.
    """

    bound_wh: float
    tail_wh: float
    fleet_wh: float
    clock_wh: float
    transition_wh: float
    rest_wh: float

    @property
    def total_wh(self) -> float:
        return math.fsum((*self.steps.values(), self.bound_wh))

    @property
    def steps(self) -> dict[str, float]:
        return {
            "limits kept by 99 of 100, not in the mean": self.tail_wh,
            "other instances than the bound's: over-provision, and its lack": self.fleet_wh,
            "clocks above what these need": self.clock_wh,
            "transitions": self.transition_wh,
            "load uneven in the minute and over instances, draining": self.rest_wh,
        }


def watch(scenario: Scenario, policy: str, trace: Path | None) -> Watched:
    """Runs once more, with a probe."""
    probe = Probe()
    found = run_scenario(scenario, requests_of(scenario, trace), policy, probes=(probe,))
    return Watched(found.figures, tuple(probe.fleets))


def decompose(scenario: Scenario, watched: Watched, bound: Bound) -> Decomposition:
    """Computes the decomposition of a watched run. `bound`: the scenario's, with the tail.

    Raises:
        ValueError: The bound is without it.
    """
    with_tail = bound.with_tail
    if with_tail is None:
        raise ValueError("the decomposition needs the bound with the tail")
    found = _Computation(scenario, with_tail.ceilings)
    slow_wh = own_wh = 0.0
    for n, minute in enumerate(with_tail.minutes):
        first, last = (round(at * MINUTE_S / PERIOD_S) for at in (n, n + 1))
        for fleet in watched.fleets[first:last]:
            hours = min(1.0, minute.span_s / MINUTE_S) * PERIOD_S / 3600.0
            slow_w, own_w = found.watts(minute, fleet)
            slow_wh, own_wh = slow_wh + slow_w * hours, own_wh + own_w * hours
    took, transition_wh = float(watched.figures["energy_wh"]), float(watched.figures["energy_wh_by"]["transition"])
    return Decomposition(
        bound_wh=bound.energy_wh,
        tail_wh=with_tail.energy_wh - bound.energy_wh,
        fleet_wh=slow_wh - with_tail.energy_wh,
        clock_wh=own_wh - slow_wh,
        transition_wh=transition_wh,
        rest_wh=took - transition_wh - own_wh,
    )


class _Computation:
    """Computes what a fleet draws under a minute's load."""

    def __init__(self, scenario: Scenario, ceilings: Mapping[Mode, Ceiling]) -> None:
        self._service = world_of(scenario).services[0]
        self._ceilings = ceilings
        self._profiles: dict[tuple[Mode, Lengths], LoadProfile | None] = {}

    def watts(self, minute: Minute, fleet: Fleet) -> tuple[float, float]:
        """Returns the fleet's power at the slowest clocks that keep the tail, and at its own.

        Every instance has the same part of the load.
        """
        serving = sum(fleet.values())
        if not serving:
            return 0.0, 0.0
        slow_w = own_w = 0.0
        for (mode, mhz), count in fleet.items():
            profile = self._profile(mode, minute.lengths)
            if profile is None:
                continue
            each_rps = minute.rps / serving
            watts = _watts(profile, each_rps)
            enough = self._ceilings[mode].cut(profile).rps[:, -1] >= each_rps
            slow_w += count * float(watts[enough].min(initial=np.inf) if enough.any() else watts[-1])
            own_w += count * float(np.interp(mhz, profile.mhz, watts))
        return slow_w, own_w

    def _profile(self, mode: Mode, lengths: Lengths | None) -> LoadProfile | None:
        """None: no request came, or none that fits such an instance."""
        if lengths is None or mode not in self._ceilings:
            return None
        if (mode, lengths) not in self._profiles:
            worker = engine_model(self._service.model, mode.gpu, mode.tp, self._service.engine)
            tokens = lengths.prompt_tokens, lengths.output_tokens
            self._profiles[mode, lengths] = modelled(worker, *tokens, self._ceilings[mode].mhz)
        return self._profiles[mode, lengths]


def _watts(profile: LoadProfile, rps: float) -> Floats:
    """Returns the power of one instance by clock, (clocks,).

    Beyond what one carries at a clock it draws what it does at the most.
    """
    return np.array([np.interp(rps, loads, watts) for loads, watts in zip(profile.rps, profile.watts, strict=True)])


def energy_by_kind(results: Results) -> Table:
    """Lists the energy of each run by kind."""
    rows = [(label, *(f"{own['energy_wh_by'][kind]:,.0f}" for kind in ENERGY_KINDS)) for label, own in results.items()]
    return Table("What the energy went into, in Wh.", ("run", *ENERGY_KINDS), tuple(rows))


def table(policy: str, found: Decomposition) -> Table:
    """Lists the parts of a run's energy, in Wh and as shares of the whole."""
    total = found.total_wh

    def row(label: str, energy_wh: float) -> tuple[str, str, str]:
        return label, f"{energy_wh:,.0f}", f"{100.0 * energy_wh / total:.1f}"

    return Table(
        f"Where the energy of {policy} goes, from the bound up, summed over the minutes.",
        ("", "Wh", "%"),
        (
            row("clairvoyant bound", found.bound_wh),
            *(row(label, energy_wh) for label, energy_wh in found.steps.items()),
            row(policy, total),
        ),
    )
