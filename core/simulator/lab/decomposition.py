"""Divides a policy's energy beyond the bound by its causes.

A probe notes the fleet each five seconds: how many instances of each kind serve. What they draw idle, beyond what the
bound's fleets do, is that of spare instances; what is neither that nor a start is the work's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.engine.engine_model import engine_model
from core.simulator.figures.run_figures import ENERGY_KINDS
from core.simulator.kernel.commands import SERVING, Answer, FleetView
from core.simulator.lab.bound import Bound
from core.simulator.lab.experiment import Table
from core.simulator.lab.least_work import idle_w
from core.simulator.lab.measures import Figures, Results
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario
from core.types import Mode

Fleet = Mapping[Mode, int]  # how many instances of each kind serve
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
        self.fleets.append(Counter(Mode(spec.gpu, spec.tp) for spec in (view.instances[i] for i in serving)))
        return Answer()


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The parts of a run's energy, in Wh. They add up to what the run took; one may be below 0.

    `bound_wh`: of the bound. `spare_wh`: more, for what instances draw idle that the bound does not have at the time.
    `transition_wh`: of starts. `work_wh`: the rest, not measured by itself: the work beyond its least, at other clocks
    and with fewer answers in an iteration, and what the bound neglects.
    """

    bound_wh: float
    spare_wh: float
    transition_wh: float
    work_wh: float

    @property
    def total_wh(self) -> float:
        return math.fsum((*self.steps.values(), self.bound_wh))

    @property
    def steps(self) -> dict[str, float]:
        return {
            "idle power of instances that the bound does not have": self.spare_wh,
            "transitions": self.transition_wh,
            "the rest: the work beyond its least, and what the bound neglects": self.work_wh,
        }


def watch(scenario: Scenario, policy: str, trace: Path | None) -> Watched:
    """Runs once more, with a probe."""
    probe = Probe()
    found = run_scenario(scenario, requests_of(scenario, trace), policy, probes=(probe,))
    return Watched(found.figures, tuple(probe.fleets))


def decompose(scenario: Scenario, watched: Watched, bound: Bound) -> Decomposition:
    """Computes the decomposition of a watched run. `bound`: the scenario's."""
    service = world_of(scenario).services[0]

    def idle_of(mode: Mode) -> float:
        return idle_w(engine_model(service.model, mode.gpu, mode.tp, service.engine))

    own_wh = sum(count * idle_of(mode) for fleet in watched.fleets for mode, count in fleet.items()) * PERIOD_S / 3600.0
    had = [(part, own.span_s) for own in bound.intervals if own.fit is not None for part in own.fit.parts]
    bound_wh = sum(part.count * idle_of(part.mode) * span_s for part, span_s in had) / 3600.0
    took, transition_wh = float(watched.figures["energy_wh"]), float(watched.figures["energy_wh_by"]["transition"])
    spare_wh = own_wh - bound_wh
    return Decomposition(
        bound_wh=bound.energy_wh,
        spare_wh=spare_wh,
        transition_wh=transition_wh,
        work_wh=took - transition_wh - spare_wh - bound.energy_wh,
    )


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
        f"Where the energy of {policy} goes, from the bound up.",
        ("", "Wh", "%"),
        (
            row("bound", found.bound_wh),
            *(row(label, energy_wh) for label, energy_wh in found.steps.items()),
            row(policy, total),
        ),
    )
