"""Short runs of every simulated policy, and what its settings are read as, beside what both were when recorded.

`record` writes both anew, after a change that is meant to move them.
"""

from __future__ import annotations

import json
import typing
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from core.simulator import shipped_scenarios
from core.simulator.policies import read_policy
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import policy_of, read_scenario

RECORDED = Path(__file__).parents[4] / "fixtures" / "policy_runs.json"

_LOADS = {
    "dynamollm-70b-h100": ("workload.duration_s=180", "workload.rate_scale=3"),
    "dynamollm-spike": ("workload.duration_s=330",),
    "three-sites-carbon": ("workload.duration_s=120", "start=2026-01-05T12:00:00+00:00"),
    "freesh-miad": ("workload.duration_s=120",),
    "throttllem-13b-a100": ("workload.duration_s=180",),
    "muserve-queue": ("workload.duration_s=120", "fleet.engine=eager-2023-a100"),  # of set 1, as when it was recorded
    "dynaserve-conv-qwen14b": ("workload.requests=300",),
}
RUNS = {
    "dynamollm-70b-h100": (
        *("single_pool", "least_loaded", "multi_pool", "threshold", "threshold {pools: per_class, routing: weighted}"),
        *("freesh_baseline", "min_energy", "dynamollm", "dynamollm {margin: 0.75, alpha: 1.2, headroom: 1.1}"),
        *("scale_inst", "scale_shard", "scale_freq", "dynamollm {loops: [scale], routing: least_loaded}"),
        *("greenserve", "greenserve {loops: [scale], shortest_first: false, chunk_tokens: 0}"),
        *("greenserve {clock_period_s: 5, clock_step_mhz: 200, warm_pool: 0}", "voltanallm", "biscale"),
    ),
    "dynamollm-spike": ("dynamollm {emergency: false}", "dynamollm {emergency_up_to: ramp}"),
    "three-sites-carbon": (
        *("greenserve_epochs", "freesh", "freesh {partition: medians}", "freesh {loops: [clock], order: fcfs}"),
        *("freesh {routing: least_loaded, order: sjf}", "greenserve {objective: energy}"),
    ),
    "freesh-miad": ("freesh {loops: [clock], clock_increase: 1.5, clock_decrease_mhz: 200}",),
    "throttllem-13b-a100": (
        *("triton", "retail", "throttllem", "throttllem {autoscale: false, predictor_error: 0}"),
        *("triton {engines: 1, autoscale: true, period_s: 60}",),
    ),
    "muserve-queue": (
        *("muserve", "alpaserve", "alpaserve_sched {aging_tokens_per_s: 1}"),
        *("alpaserve_scaling {clock_floor_mhz: 200}", "muserve {order: fcfs}"),
    ),
    "dynaserve-conv-qwen14b": ("dynaserve", "dynaserve {itl_limit_s: 0}", "pd_coloc", "pd_disagg"),
}


def figures(name: str, policy: str) -> dict[str, Any]:
    """Returns what a short run of a policy came to: energies in J, times in s."""
    scenario = read_scenario(shipped_scenarios.folder() / f"{name}.yaml", _LOADS[name])
    outcome = run_scenario(scenario, requests_of(scenario), policy).outcome
    return {
        "requests": outcome.requests,
        "instances": len(outcome.instances),
        "iterations": outcome.iterations,
        "end_s": outcome.end_s,
        "refused": outcome.refused,
        "clock_mhz_s": float((outcome.on_s * outcome.mhz_s).sum()),
        **{f"{kind}_j": float(spent.sum()) for kind, spent in outcome.spent_j.items()},
        **{f"commands of {loop}": n for loop, n in _commands(outcome.decisions).items()},
    }


def _commands(decisions: Any) -> Counter[str]:
    return Counter({loop: sum(d.commands for d in decisions if d.loop == loop) for loop in {d.loop for d in decisions}})


def settings(name: str, policy: str) -> dict[str, Any]:
    """Returns what a policy's text is read as, where a scenario's own keys are below it; no name: by itself."""
    if not name:
        head, brace, rest = policy.partition("{")
        found = read_policy({"name": head.strip(), **(yaml.safe_load(brace + rest) or {})})
    else:
        found = policy_of(read_scenario(shipped_scenarios.folder() / f"{name}.yaml"), policy)
    return typing.cast(dict[str, Any], json.loads(json.dumps(asdict(found))))  # as JSON has it: keys are texts


def record() -> None:
    """Writes the fixture anew, with the texts of policies that it has."""
    texts = json.loads(RECORDED.read_text(encoding="utf-8"))["settings"]
    found = {
        "settings": {name: {text: settings(name, text) for text in own} for name, own in texts.items()},
        "runs": {name: {text: figures(name, text) for text in own} for name, own in RUNS.items()},
    }
    RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
