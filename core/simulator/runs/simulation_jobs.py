"""A run as a value: what another process, here or elsewhere, needs to know to do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.simulator.figures.run_figures import POWER_BIN_S
from core.simulator.runs.runner import requests_of, run_scenario, warm_up
from core.simulator.scenario.scenario import read_scenario


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """A scenario under a policy. Paths are absolute, and readable where the job runs."""

    scenario: str
    settings: tuple[str, ...]
    policy: str
    trace: str | None = None

    def run(self, progress: Callable[[float | None, float], None] | None = None) -> dict[str, Any]:
        """Returns the figures. Raises what `read_scenario`, `requests_of` and `run_scenario` do."""
        scenario = read_scenario(Path(self.scenario), self.settings)
        warm_up(scenario)
        requests = requests_of(scenario, None if self.trace is None else Path(self.trace))
        return run_scenario(scenario, requests, self.policy, on_progress=progress, most_bin_s=POWER_BIN_S).figures
