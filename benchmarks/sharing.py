"""Sets what services of one fleet attain together beside what each attains alone, on as many GPUs as it then had.

    python -m benchmarks.sharing two-services freesh greenserve
    python -m benchmarks.sharing five-services --duration-s 60

Without policies: all but mu-Serve's and AlpaServe's, whose searches take minutes, and those that change nothing, under
which a service has the same instances alone. A service is alone under a ceiling (`max_gpus`) of the most GPUs that it
had at once beside the others, of the types that it had, or as few more as the policy can serve it on, since some give
out whole nodes.
Attainment is in percent of a service's requests.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from core.policy.presets import PRESETS
from core.simulator import shipped_scenarios
from core.simulator.kernel.commands import OFF, Answer, FleetView
from core.simulator.kernel.simulated import SimulationError
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import parse_scenario

POINTS = 2.0  # that sharing may cost a service
MOST_MORE = 8  # GPUs: a node's


@dataclass
class Use:
    """A control that only looks: the most GPUs that each model had at once, and the types of which it ever had some."""

    most: Counter[str] = field(default_factory=Counter)
    types: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    name: str = "use"
    period_s: float = 1.0

    def step(self, view: FleetView) -> Answer:
        now: Counter[str] = Counter()
        for slot in np.flatnonzero(view.state != OFF).tolist():
            spec = view.instances[slot]
            now[spec.model] += spec.tp
            self.types[spec.model].add(spec.gpu)
        self.most |= now
        return Answer()


def attained(document: dict[str, Any], policy: str) -> tuple[dict[str, float], Use]:
    """Returns the percent of requests in time, by service, and what GPUs each model had."""
    found, use = parse_scenario(document, shipped_scenarios.folder() / "shared.yaml"), Use()
    done = run_scenario(found, requests_of(found), policy, probes=(use,))
    by_service = done.figures["by_service"] or {found.services[0].name: done.figures}
    return {name: 100.0 * own["slo_attainment"] for name, own in by_service.items()}, use


def alone(document: dict[str, Any], name: str, max_gpus: int, types: Collection[str]) -> dict[str, Any]:
    """Returns the scenario with one of its services, which has a ceiling and these types of GPU."""
    service = document["services"][name] | {"max_gpus": max_gpus}
    fleet = [group for group in document["fleet"] if name in group["services"] and group["gpu"] in types]
    return document | {"services": {name: service}, "fleet": fleet}


def attained_alone(document: dict[str, Any], name: str, policy: str, use: Use) -> tuple[float, int]:
    """Returns the percent that a service attains alone, and on how many GPUs at most."""
    model = document["services"][name]["model"]
    gpus = use.most[model]
    for max_gpus in range(gpus, gpus + MOST_MORE):
        try:
            return attained(alone(document, name, max_gpus, use.types[model]), policy)[0][name], max_gpus
        except SimulationError:
            continue
    raise SystemExit(f"{policy} cannot serve {name} alone on {gpus + MOST_MORE} GPUs")


def loaded(name: str, duration_s: float | None) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((shipped_scenarios.folder() / f"{name}.yaml").read_text())
    for service in document["services"].values():
        service["workload"] = service["workload"] | ({} if duration_s is None else {"duration_s": duration_s})
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("policies", nargs="*")
    parser.add_argument("--duration-s", type=float)
    given = parser.parse_intermixed_args()
    document = loaded(given.scenario, given.duration_s)
    print("| policy | " + " | ".join(f"{name}: together, alone, GPUs" for name in document["services"]) + " |")
    print("|---" * (1 + len(document["services"])) + "|")
    for policy in given.policies or [
        name for name, own in PRESETS.items() if own.family not in ("placement", "static")
    ]:
        together, use = attained(document, policy)
        cells = []
        for name in document["services"]:
            by_itself, gpus = attained_alone(document, name, policy, use)
            mark = "" if together[name] >= by_itself - POINTS else " **below**"
            cells.append(f"{together[name]:.1f}, {by_itself:.1f}, {gpus}{mark}")
        print(f"| `{policy}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
