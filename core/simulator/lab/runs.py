"""An experiment's runs as values: its jobs, its bound and what is worked out of them.

The command line and the dashboard run the same.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path

from core.simulator import shipped_scenarios
from core.simulator.lab import decomposition
from core.simulator.lab.bound import Bound, clairvoyant
from core.simulator.lab.decomposition import Decomposition
from core.simulator.lab.experiment import Experiment, Run
from core.simulator.lab.found import Found
from core.simulator.lab.measures import CALCULATED, Results
from core.simulator.runs.runner import requests_of
from core.simulator.runs.simulation_jobs import SimulationJob
from core.simulator.scenario.scenario import read_scenario
from core.simulator.workload.public_traces import PUBLIC_TRACES


def job_of(experiment: Experiment, run: Run, trace: Path | None) -> SimulationJob:
    """`trace` takes the workload's place in experiments that have one; None: the scenario's own generator."""
    own = _own(experiment, trace)
    place = None if own is None else str(own.resolve())
    return SimulationJob(str(_scenario(experiment)), run.settings, run.policy, place)


def _own(experiment: Experiment, trace: Path | None) -> Path | None:
    """Returns the trace where it takes the workload's place."""
    return None if experiment.trace is None else trace


def bound_of(experiment: Experiment, trace: Path | None) -> Bound | None:
    """Returns the clairvoyant bound of its requests; None: the experiment has none.

    Raises:
        SimulationError: The scenario is not one of which a bound is known.
        TraceError: The trace cannot be used.
    """
    if not experiment.bound:
        return None
    scenario = read_scenario(_scenario(experiment))
    return clairvoyant(scenario, requests_of(scenario, _own(experiment, trace)).blocks(), tail=True)


def found_of(experiment: Experiment, results: Results, failed: Mapping[str, str], trace: Path | None) -> Found:
    """Joins what came of its runs with the bound and with what no run has; `failed`: what was wrong, by label.

    Raises:
        SimulationError: The scenario is not one of which a bound is known.
        TraceError: The trace cannot be used.
    """
    bound = bound_of(experiment, trace) if results else None
    notes = []
    if trace is not None and not runs_as_published(experiment, trace):
        title = PUBLIC_TRACES[experiment.trace or ""].title
        notes.append(f"On {trace.name}, in the place of {title}: what is published is not of these requests.")
    if bound is not None and bound.short_minutes:
        minutes = f"{bound.short_minutes} of {len(bound.minutes)} minutes"
        notes.append(f"The fleet is too small: in {minutes} more comes than it carries, which the bound leaves out.")
    known = {**results, CALCULATED: {own.name: own.work_out() for own in experiment.calculated}}
    return Found(known, failed, bound, _decomposed(experiment, results, bound, trace), tuple(notes))


def runs_as_published(experiment: Experiment, trace: Path | None) -> bool:
    """Says whether an experiment runs on the requests that its paper's figures are compared on."""
    if experiment.trace is None or trace is None:
        return experiment.trace is None
    data = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    return hashlib.sha256(data).hexdigest() == PUBLIC_TRACES[experiment.trace].sha256


def _decomposed(
    experiment: Experiment, results: Results, bound: Bound | None, trace: Path | None
) -> Decomposition | None:
    """Takes the energy of the run apart that the experiment names; it is done again for that."""
    run = next((run for run in experiment.runs if run.label == experiment.decomposed), None)
    if run is None or run.label not in results or bound is None:
        return None
    scenario = read_scenario(_scenario(experiment), run.settings)
    watched = decomposition.watch(scenario, run.policy, _own(experiment, trace))
    return decomposition.decompose(scenario, watched, bound)


def _scenario(experiment: Experiment) -> Path:
    return shipped_scenarios.folder() / f"{experiment.scenario}.yaml"
