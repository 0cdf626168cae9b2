"""FREESH's primal-dual clocks in the simulator, by the profiles of its engines."""

from __future__ import annotations

from typing import Any

from core.simulator import shipped_scenarios
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import read_scenario


def test_clocks_save_energy_and_keep_the_limits_when_the_rule_is_primal_dual() -> None:
    file = shipped_scenarios.folder() / "dynamollm-70b-h100.yaml"
    scenario = read_scenario(file, ("workload.duration_s=60", "workload.rate_scale=3"))
    requests = requests_of(scenario)

    def run(clock: str) -> tuple[float, float]:
        found: Any = run_scenario(scenario, requests, f"freesh {{frozen: [carbon, scale], shard: off, clock: {clock}}}")
        return sum(float(spent.sum()) for spent in found.outcome.spent_j.values()), found.figures["slo_attainment"]

    top_j, top_share = run("fixed")
    energy_j, share = run("primal_dual")
    assert energy_j < 0.85 * top_j
    assert share >= top_share - 0.02
