"""Times the simulator: `python -m benchmarks.simulator [TRACE.csv] [--week]`. Prints medians and ratios of this run.

Without the Azure conversation trace (`greenserve trace fetch azure-2023-conv`) it takes generated requests like it.
With --week it adds the generated week of 27.3 million requests under a policy with three loops (some minutes).
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.simulator.kernel.driver import MACRO, WALK, Stepping
from core.simulator.runs.runner import Requests, requests_of, run_scenario, warm_up
from core.simulator.scenario.scenario import Scenario, parse_scenario, read_scenario
from tests.oracles.token_by_token import REFERENCE

SCENARIOS = Path(__file__).parents[1] / "scenarios"
HOUR, WEEK = SCENARIOS / "azure-conv-12xh100.yaml", SCENARIOS / "conversation-week.yaml"
REPEATS = 7
EIGHT_REPLICAS = {  # the setting in which public simulators were timed: 8 replicas of a 70B on TP8, by turns
    "fleet": {"count": 8, "model": "Llama2-70B", "gpu": "H100-SXM-80GB", "tp": 8},
    "workload": {"generate": "azure-conv-like"},
}


def wall_s(
    scenario: Scenario, requests: Requests, repeats: int, stepping: Stepping = MACRO, policy: str | None = None
) -> float:
    runs = (run_scenario(scenario, requests, policy, stepping) for _ in range(repeats))
    return statistics.median(run.figures["wall_s"] for run in runs)


def scaling(scenario: Scenario, factors: tuple[int, ...]) -> list[dict[str, Any]]:
    """The same traffic for 1, 4, 16 times as long."""
    rows = []
    service = scenario.services[0]
    for factor in factors:
        count = 19_366 * factor
        longer = replace(service, workload=replace(service.workload, requests=count))
        requests = requests_of(replace(scenario, services=(longer,)))
        seconds = wall_s(scenario, requests, 3)
        rows.append({"requests": count, "wall_s": seconds, "us_per_request": seconds / count * 1e6})
    return rows


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def week() -> dict[str, Any]:
    scenario = read_scenario(WEEK)
    figures = run_scenario(scenario, requests_of(scenario)).figures
    keys = ("requests", "finished", "slo_attainment", "energy_wh", "gpu_hours", "wall_s", "simulated_rps")
    return {key: figures[key] for key in keys} | {"peak_mb": peak_mb()}


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--week"]
    trace = Path(arguments[0]) if arguments else None
    scenario = read_scenario(HOUR)
    requests = requests_of(scenario, trace)
    warm_up(scenario)
    macro_s = wall_s(scenario, requests, REPEATS)
    memory_mb = peak_mb()
    walk_s = wall_s(scenario, requests, 3, WALK)
    reference_s = wall_s(scenario, requests, 1, REFERENCE)
    eight = parse_scenario(EIGHT_REPLICAS, HOUR)
    result = {
        "trace": str(trace) if trace else "generated",
        "requests": requests.count,
        "macro_wall_s": macro_s,
        "walk_wall_s": walk_s,
        "reference_wall_s": reference_s,
        "macro_over_walk": walk_s / macro_s,
        "macro_over_reference": reference_s / macro_s,
        "peak_mb": memory_mb,
        "eight_replicas_wall_s": wall_s(eight, requests, REPEATS),
        "threshold_wall_s": wall_s(scenario, requests, 3, policy="threshold"),
        "greenserve_wall_s": wall_s(scenario, requests, 3, policy="greenserve"),
        "scaling": scaling(scenario, (1, 4, 16)),
    }
    if "--week" in sys.argv:
        result["week"] = week()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
