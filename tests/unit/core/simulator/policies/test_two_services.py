"""Two services on one fleet: every policy serves both, and no GPU serves twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from core.algorithms.fleet.gpu_parts import Share
from core.policy.presets import PRESETS
from core.simulator import shipped_scenarios
from core.simulator.policies import POLICIES, CellLoad, build
from core.simulator.policies.greenserve import GreenserveConfig
from core.simulator.policies.greenserve.loops import Greenserve
from core.simulator.policies.loops import Decisions
from core.simulator.policies.view_observations import first_view
from core.simulator.policies.world import World
from core.simulator.runs.runner import Run, requests_of, run_scenario
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario, policy_of, read_scenario
from tests.unit.core.simulator.policies.looking import GpuCount


def scenario(**workload: float) -> Scenario:
    """The shipped scenario for half a minute; `workload`: rate of a service by name."""
    spans = [f"services.{name}.workload.duration_s=30" for name in ("70b", "8b")]
    rates = [f"services.{name}.workload.rate_rps={rps}" for name, rps in workload.items()]
    return read_scenario(shipped_scenarios.folder() / "two-services.yaml", (*spans, *rates))


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


def declared_world(found: Scenario, rps: dict[str, float], *sites: str) -> World:
    """The scenario's world when so many requests a second of each service are declared. `sites`: those that there are;
    none given: all."""
    cells = {service.name: len(service.cells) for service in found.services}
    declared = tuple(CellLoad(rps[name] / count, 1155.0, 211.0) for name, count in cells.items() for _ in range(count))
    world = world_of(found, declared)
    if not sites:
        return world
    here = tuple(site for site in world.sites if site.name in sites)
    return replace(world, sites=here, templates=tuple(s for s in world.templates if s.site in sites))


def first_fleet(policy: str, found: Scenario, rps: dict[str, float], *sites: str) -> Counter[tuple[str, str, str, int]]:
    """Instances by (model, site, GPU type, TP degree) in such a world."""
    plan = build(policy_of(found, policy), declared_world(found, rps, *sites))
    specs = (member.spec for member in plan.members)
    return Counter((spec.model, spec.site, spec.gpu, spec.tp) for spec in specs)


@pytest.mark.parametrize("policy", alike(name for name in POLICIES if PRESETS[name].family != "static"))
def test_first_fleet_is_the_same_when_services_come_in_another_order(policy: str) -> None:
    found, rps = scenario(), {"70b": 3.0, "8b": 6.0}
    assert first_fleet(policy, found, rps) == first_fleet(policy, replace(found, services=found.services[::-1]), rps)


def shared(policy: str, rps: dict[str, float], **shares: Share) -> Counter[str]:
    """GPUs of each model at one site of 14, which both services want whole."""
    found = scenario()
    own = tuple(replace(service, share=shares.get(f"of_{service.name}", Share())) for service in found.services)
    gpus: Counter[str] = Counter()
    for (model, _, _, tp), count in first_fleet(policy, replace(found, services=own), rps, "location-2").items():
        gpus[model] += tp * count
    return gpus


SCARCE = {"70b": 60.0, "8b": 900.0}


@pytest.mark.parametrize("policy", ["greenserve", "single_pool", "throttllem", "threshold"])
def test_weights_share_a_site_that_both_want_whole(policy: str) -> None:
    small, large = (shared(policy, SCARCE, of_8b=Share(weight))["Llama3-8B"] for weight in (0.25, 4.0))
    assert 0 < small < large


@pytest.mark.parametrize("policy", ["greenserve", "freesh", "single_pool", "throttllem", "threshold"])
def test_service_stays_below_its_ceiling(policy: str) -> None:
    assert 0 < shared(policy, SCARCE, of_8b=Share(weight=9.0, max_gpus=5))["Llama3-8B"] <= 5


def test_thresholds_keep_a_floor() -> None:
    without, with_floor = (
        shared("threshold", SCARCE, of_70b=own)["Llama3-70B"] for own in (Share(), Share(min_gpus=8))
    )
    assert without < 8 <= with_floor


def test_decisions_say_whom_scarcity_costs_what_and_why() -> None:
    world, found = declared_world(scenario(), SCARCE, "location-2"), policy_of(scenario(), "greenserve")
    assert isinstance(found, GreenserveConfig)
    policy, decisions = Greenserve(found, world), Decisions()
    policy.begin()
    policy.scale(first_view(world), decisions)
    of_70b, of_8b = (made.summary for made in decisions)
    assert re.search(
        r"70b gets \d+ of the \d+ GPUs that it needs, and [0-9.]+ requests/s find no instance: .* 8b has", of_70b
    )
    assert re.search(r"8b gets \d+ of the \d+ GPUs that it needs.* 70b has", of_8b)


@pytest.mark.parametrize("policy", ["freesh", "min_energy", "freesh_baseline", "greenserve"])
@pytest.mark.parametrize("rps", [{"70b": 60.0, "8b": 6.0}, {"70b": 3.0, "8b": 900.0}])
def test_small_service_has_instances_beside_one_that_wants_all_gpus(policy: str, rps: dict[str, float]) -> None:
    gpus: Counter[str] = Counter()
    for (model, _, _, tp), count in first_fleet(policy, scenario(), rps, "location-2").items():
        gpus[model] += tp * count
    assert gpus.total() >= 8
    assert min(gpus["Llama3-70B"], gpus["Llama3-8B"]) >= 1


@pytest.mark.parametrize("policy", ["freesh", "greenserve_epochs", "freesh_baseline", "min_energy"])
@pytest.mark.parametrize("gpus", [1, 3])
def test_service_with_fewer_gpus_than_classes_serves_all_of_them(policy: str, gpus: int) -> None:
    """It had no plan, and so no instance, where there was none for each class."""
    found = scenario()
    own = tuple(replace(s, share=Share(max_gpus=gpus) if s.name == "8b" else Share()) for s in found.services)
    done, _ = run(policy, replace(found, services=own))
    assert done.figures["finished"] == done.figures["requests"]
    assert done.figures["by_service"]["8b"]["requests"] > 50
