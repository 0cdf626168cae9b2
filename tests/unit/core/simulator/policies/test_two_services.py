"""Two services on one fleet: every policy serves both, and no GPU serves twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from core.policy.presets import PRESETS
from core.simulator import shipped_scenarios
from core.simulator.kernel.commands import OFF, Answer, FleetView
from core.simulator.policies import POLICIES, CellLoad, build
from core.simulator.runs.runner import Run, requests_of, run_scenario
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario, policy_of, read_scenario


def scenario(**workload: float) -> Scenario:
    """The shipped scenario for half a minute; `workload`: rate of a service by name."""
    spans = [f"services.{name}.workload.duration_s=30" for name in ("70b", "8b")]
    rates = [f"services.{name}.workload.rate_rps={rps}" for name, rps in workload.items()]
    return read_scenario(shipped_scenarios.folder() / "two-services.yaml", (*spans, *rates))


@dataclass
class GpuCount:
    """A control that only looks: the most GPUs in use at once, by site and type."""

    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    name: str = "count"
    period_s: float = 1.0

    def step(self, view: FleetView) -> Answer:
        used: Counter[tuple[str, str]] = Counter()
        for slot in np.flatnonzero(view.state != OFF).tolist():
            spec = view.instances[slot]
            used[spec.site, spec.gpu] += spec.tp * spec.gpu_share
        self.most |= used
        return Answer()


def run(policy: str, found: Scenario) -> tuple[Run, GpuCount]:
    count = GpuCount()
    return run_scenario(found, requests_of(found), policy, probes=(count,)), count


SEARCHED = pytest.mark.slow("placed by mu-Serve's search, as muserve is")


def alike(policies: Iterable[str]) -> list[Any]:
    """Of those that place models by one search, muserve alone is tested each time."""
    return [pytest.param(name, marks=SEARCHED) if name.startswith("alpaserve") else name for name in policies]


@pytest.mark.parametrize("policy", alike([*POLICIES, "single_pool {tp: 2}", "disaggregated {tp: 2}"]))
def test_both_services_are_served_on_gpus_of_their_own(policy: str) -> None:
    found = scenario()
    done, count = run(policy, found)
    assert done.figures["finished"] == done.figures["requests"]
    assert done.figures["rejected"] == 0
    assert all(own["requests"] > 50 for own in done.figures["by_service"].values())
    for (site, gpu), used in count.most.items():
        assert used <= found.site_fleets[site].gpus[gpu] + 1e-6


def first_fleet(policy: str, found: Scenario, rps: dict[str, float], *sites: str) -> Counter[tuple[str, str, str, int]]:
    """Instances by (model, site, GPU type, TP degree) when so many requests a second of each service are declared.

    `sites`: those that there are; none given: all.
    """
    cells = {service.name: len(service.cells) for service in found.services}
    declared = tuple(CellLoad(rps[name] / count, 1155.0, 211.0) for name, count in cells.items() for _ in range(count))
    world = world_of(found, declared)
    if sites:
        here = tuple(site for site in world.sites if site.name in sites)
        world = replace(world, sites=here, templates=tuple(s for s in world.templates if s.site in sites))
    plan = build(policy_of(found, policy), world)
    specs = (member.spec for member in plan.members)
    return Counter((spec.model, spec.site, spec.gpu, spec.tp) for spec in specs)


@pytest.mark.parametrize("policy", alike(name for name in POLICIES if PRESETS[name].family != "static"))
def test_first_fleet_is_the_same_when_services_come_in_another_order(policy: str) -> None:
    found, rps = scenario(), {"70b": 3.0, "8b": 6.0}
    assert first_fleet(policy, found, rps) == first_fleet(policy, replace(found, services=found.services[::-1]), rps)


@pytest.mark.parametrize("policy", ["freesh", "min_energy", "freesh_baseline", "greenserve"])
@pytest.mark.parametrize("rps", [{"70b": 60.0, "8b": 6.0}, {"70b": 3.0, "8b": 900.0}])
def test_small_service_has_instances_beside_one_that_wants_all_gpus(policy: str, rps: dict[str, float]) -> None:
    gpus: Counter[str] = Counter()
    for (model, _, _, tp), count in first_fleet(policy, scenario(), rps, "location-2").items():
        gpus[model] += tp * count
    assert gpus.total() >= 8
    assert min(gpus["Llama3-70B"], gpus["Llama3-8B"]) >= 1
