"""An experiment's runs as values: its jobs, its bound and what is worked out of them.

The command line and the dashboard run the same.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.simulator import shipped_scenarios
from core.simulator.lab import decomposition
from core.simulator.lab.bound import Bound, least_energy
from core.simulator.lab.decomposition import Decomposition
from core.simulator.lab.experiment import Experiment, Run
from core.simulator.lab.found import Found
from core.simulator.lab.measures import CALCULATED, Results
from core.simulator.runs.runner import requests_of
from core.simulator.runs.simulation_jobs import SimulationJob
from core.simulator.scenario.scenario import read_scenario
from core.simulator.workload.public_traces import PUBLIC_TRACES
from core.simulator.workload.rate_table import read_rates, settings_of


@dataclass(frozen=True, slots=True)
class Given:
    """Names what takes the workload's place in experiments that run on a trace; nothing: the scenario's own generator.

    With `rates`, a file of a rate table, requests come at these times `scale`, and `trace` is of lengths alone.
    """

    trace: Path | None = None
    rates: Path | None = None
    scale: float = 1.0

    def instead(self, experiment: Experiment) -> tuple[Path | None, tuple[str, ...]]:
        """Returns the trace that takes the place, and the settings that do. Raises TraceError."""
        if experiment.trace is None:
            return None, ()
        return (self.trace, ()) if self.rates is None else (None, _at_rates(self, _scenario(experiment)))


@cache
def _at_rates(given: Given, scenario: Path) -> tuple[str, ...]:
    assert given.rates is not None
    workload = read_scenario(scenario).services[0].workload
    return settings_of(read_rates(given.rates), given.scale, workload, given.trace)


def job_of(experiment: Experiment, run: Run, given: Given) -> SimulationJob:
    """Raises TraceError: the rates cannot be used."""
    trace, settings = given.instead(experiment)
    place = None if trace is None else str(trace.resolve())
    return SimulationJob(str(_scenario(experiment)), (*settings, *run.settings), run.policy, place)


def bound_of(experiment: Experiment, given: Given) -> Bound | None:
    """Returns the bound of its requests; None: the experiment has none.

    Raises:
        SimulationError: The scenario is not one of which a bound is known.
        TraceError: The trace cannot be used.
    """
    if not experiment.bound:
        return None
    trace, settings = given.instead(experiment)
    scenario = read_scenario(_scenario(experiment), settings)
    return least_energy(scenario, requests_of(scenario, trace).blocks())


def found_of(experiment: Experiment, results: Results, failed: Mapping[str, str], given: Given) -> Found:
    """Joins what came of its runs with the bound and with what no run has; `failed`: what was wrong, by label.

    Raises:
        SimulationError: The scenario is not one of which a bound is known.
        TraceError: The trace cannot be used.
    """
    bound = bound_of(experiment, given) if results else None
    notes = [] if as_published(experiment, given) else [_in_place(experiment, given)]
    if bound is not None and bound.short:
        minutes = f"{bound.short} of {len(bound.intervals)} minutes"
        notes.append(f"The fleet is too small: in {minutes} more comes than it carries, which the bound leaves out.")
    known = {**results, CALCULATED: calculated_of(experiment)}
    return Found(known, failed, bound, _decomposed(experiment, results, bound, given), tuple(notes))


def calculated_of(experiment: Experiment) -> dict[str, float]:
    """Works out the figures that no run has, by their names. Takes seconds."""
    return {own.name: own.work_out() for own in experiment.calculated}


def _in_place(experiment: Experiment, given: Given) -> str:
    names = [path.name for path in (given.rates, given.trace) if path is not None]
    words = f"On {' with lengths like those of '.join(names)}" if names else "On requests of the scenario's generator"
    title = PUBLIC_TRACES[experiment.trace or ""].title
    return f"{words}, in the place of {title}: what is published is not of these requests."


def as_published(experiment: Experiment, given: Given) -> bool:
    """Says whether an experiment runs on the requests that its paper's figures are compared on."""
    if experiment.trace is None:
        return True
    trace = given.trace
    if trace is None or given.rates is not None:
        return False
    return is_public(trace, experiment.trace)


def is_public(trace: Path, name: str) -> bool:
    """Says whether a file, or what it has compressed, is the public trace of a name. Raises OSError."""
    data = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    return hashlib.sha256(data).hexdigest() == PUBLIC_TRACES[name].sha256


def _decomposed(experiment: Experiment, results: Results, bound: Bound | None, given: Given) -> Decomposition | None:
    """Takes the energy of the run apart that the experiment names; it is done again for that."""
    run = next((run for run in experiment.runs if run.label == experiment.decomposed), None)
    if run is None or run.label not in results or bound is None:
        return None
    trace, settings = given.instead(experiment)
    scenario = read_scenario(_scenario(experiment), (*settings, *run.settings))
    watched = decomposition.watch(scenario, run.policy, trace)
    return decomposition.decompose(scenario, watched, bound)


def _scenario(experiment: Experiment) -> Path:
    return shipped_scenarios.folder() / f"{experiment.scenario}.yaml"
