"""Times the simulator: `python benchmarks/simulator.py [TRACE.csv]`. Prints medians and ratios of this run.

Without the Azure conversation trace (`greenserve trace fetch azure-2023-conv`) it takes generated requests like it.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduler.simulator.runner import Arrivals, arrivals, run_scenario, warm_up
from scheduler.simulator.scenario import Scenario, parse_scenario, read_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "azure-conv-12xh100.yaml"
REPEATS = 7
EIGHT_REPLICAS = {  # the setting in which public simulators were timed: 8 replicas of a 70B on TP8, by turns
    "fleet": {"count": 8, "model": "Llama2-70B", "gpu": "H100-SXM-80GB", "tp": 8},
    "workload": {"generate": "azure-conv-like"},
}


def wall_s(scenario: Scenario, found: Arrivals, repeats: int, mode: str = "macro") -> float:
    return statistics.median(run_scenario(scenario, found, mode=mode).figures["wall_s"] for _ in range(repeats))


def scaling(scenario: Scenario, factors: tuple[int, ...]) -> list[dict[str, Any]]:
    """The same traffic for 1, 4, 16 times as long."""
    rows = []
    for factor in factors:
        longer = replace(scenario.workload, requests=19_366 * factor)
        found = arrivals(longer, scenario.seed)
        seconds = wall_s(scenario, found, 3)
        rows.append(
            {"requests": 19_366 * factor, "wall_s": seconds, "us_per_request": seconds / found.arrival_s.size * 1e6}
        )
    return rows


def main() -> None:
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    scenario = read_scenario(SCENARIO)
    found = arrivals(scenario.workload, scenario.seed, trace)
    warm_up(scenario)
    macro_s = wall_s(scenario, found, REPEATS)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    walk_s = wall_s(scenario, found, 3, "walk")
    reference_s = wall_s(scenario, found, 1, "reference")
    eight = parse_scenario(EIGHT_REPLICAS, SCENARIO)
    result = {
        "trace": str(trace) if trace else "generated",
        "requests": int(found.arrival_s.size),
        "macro_wall_s": macro_s,
        "walk_wall_s": walk_s,
        "reference_wall_s": reference_s,
        "macro_over_walk": walk_s / macro_s,
        "macro_over_reference": reference_s / macro_s,
        "peak_mb": peak_mb,
        "eight_replicas_wall_s": wall_s(eight, found, REPEATS),
        "scaling": scaling(scenario, (1, 4, 16)),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
