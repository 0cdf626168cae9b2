"""Four services on three GPUs that are cut into halves: every policy serves them, and each GPU is paid for once."""

from __future__ import annotations

import pytest

from core.simulator import shipped_scenarios
from core.simulator.policies import POLICIES
from core.simulator.runs.runner import Run, requests_of, run_scenario
from core.simulator.scenario.scenario import read_scenario
from tests.unit.core.simulator.policies.looking import GpuCount
from tests.unit.core.simulator.policies.test_two_services import alike

HALF = "H100-SXM-80GB/2"


def run(policy: str, *settings: str, seconds: int = 60) -> tuple[Run, float]:
    """Runs the shipped scenario for some seconds, and tells the most halves that were in use at once."""
    spans = [f"services.{name}.workload.duration_s={seconds}" for name in ("1b", "3b", "8b", "q8b")]
    found = read_scenario(shipped_scenarios.folder() / "shared-gpus.yaml", (*spans, *settings))
    count = GpuCount()
    return run_scenario(found, requests_of(found), policy, probes=(count,)), count.most["site", HALF]


# These need several request classes, instances of two roles, or two instances of each service.
NEED_MORE = {"multi_pool", "disaggregated", "dynaserve", "pd_disagg"}


@pytest.mark.parametrize("policy", alike(name for name in POLICIES if name not in NEED_MORE))
def test_every_policy_serves_more_services_than_there_are_gpus(policy: str) -> None:
    done, halves = run(policy)
    assert done.figures["finished"] == done.figures["requests"]
    assert all(own["requests"] > 30 for own in done.figures["by_service"].values())
    assert halves <= 6 + 1e-6


def test_gpu_hours_are_those_of_whole_gpus() -> None:
    """Four halves all the time are two GPUs; the other two halves are one without an engine."""
    done, halves = run("least_loaded", "sites.site.empty_gpus_powered=true")
    assert halves == 4
    hours = done.figures["simulated_s"] / 3600.0
    assert done.figures["gpu_hours"] == pytest.approx(2.0 * hours, rel=1e-6)
    assert done.figures["empty_gpu_hours"] == pytest.approx(hours, rel=1e-6)
