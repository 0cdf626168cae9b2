"""Five services on one fleet that is enough for all and not ample: every policy serves each of them all the time."""

from __future__ import annotations

from typing import Any

import pytest

from core.policy.presets import PRESETS
from core.simulator import shipped_scenarios
from core.simulator.policies import POLICIES
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import Scenario, read_scenario
from tests.unit.core.simulator.policies.looking import GpuCount, Serving

SERVICES = ("chat", "assist", "code", "complete", "digest")
LONG = {"alpaserve": "placed by mu-Serve's search, as muserve is", "dynaserve": "asks for a pair each time"}


def scenario(**workload: float) -> Scenario:
    """The shipped scenario for some seconds. `workload`: other fields of every service's workload."""
    fields = {"duration_s": 10.0, **workload}
    settings = [f"services.{name}.workload.{key}={value}" for name in SERVICES for key, value in fields.items()]
    return read_scenario(shipped_scenarios.folder() / "five-services.yaml", settings)


def each() -> list[Any]:
    found = []
    for name in (*POLICIES, "single_pool {tp: 2}", "disaggregated {tp: 2}"):
        marks = [pytest.mark.slow(why) for start, why in LONG.items() if name.startswith(start)]
        found.append(pytest.param(name, marks=marks))
    return found


@pytest.mark.parametrize("policy", each())
def test_all_five_services_are_served_all_the_time_on_gpus_that_there_are(policy: str) -> None:
    searched = PRESETS[policy.split()[0]].family == "placement"
    found = scenario(rate_scale=0.1) if searched else scenario()
    count, serving = GpuCount(), Serving()
    done = run_scenario(found, requests_of(found), policy, probes=(count, serving))
    assert done.figures["finished"] == done.figures["requests"]
    assert done.figures["rejected"] == 0
    assert all(done.figures["by_service"][name]["requests"] > 0 for name in SERVICES)
    models = {service.model for service in found.services}
    assert all(models <= seen for seen in serving.models), "a service has no instance"
    for (site, gpu), used in count.most.items():
        assert used <= found.site_fleets[site].gpus[gpu] + 1e-6
