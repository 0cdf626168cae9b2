"""Chooses what the picture of an experiment shows, as values."""

from __future__ import annotations

from dataclasses import replace

from core.chart_values import Bar, BarChart
from core.simulator.lab.bound import Bound
from core.simulator.lab.experiment import Experiment
from core.simulator.lab.measures import Results


def chart_of(experiment: Experiment, results: Results, bound: Bound | None = None) -> BarChart:
    """Returns the experiment's own chart, or the energy of each run that it lists, with the bound.

    Runs that could not be done are left out.
    """
    if experiment.chart is not None:
        return replace(experiment.chart(results), title=experiment.title)
    energy = tuple(Bar(label, own["energy_wh"] / 1e3) for label, own in experiment.shown(results).items())
    least = None if bound is None else (bound.energy_wh / 1e3, "bound")
    return BarChart("energy of each run, kWh (simulated)", energy, experiment.title, least)
