"""What runs live beside what the simulator says of the same fleet, requests and policy: `make test-twin`.

Each policy gets a product of its own, which begins with the declared load as a new fleet does. `TWIN=all` takes the
other presets too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import read_scenario
from tests.e2e.product import running

MINUTES = 10
FIRST, OTHERS = ("single_pool", "greenserve", "freesh"), ("dynamollm", "throttllem", "muserve")
POLICIES = (*FIRST, *(OTHERS if os.environ.get("TWIN") == "all" else ()))

pytestmark = [pytest.mark.twin, pytest.mark.slow("ten minutes live for each policy")]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> dict[str, Path]:
    """The folder that each twin wrote, by policy."""
    found = {}
    for policy in POLICIES:
        out = tmp_path_factory.mktemp(policy)
        with running(tmp_path_factory.mktemp(f"{policy}-var"), traffic_rps=0.0) as product:
            trace = str(test_data / "azure_llm_2023_conv.csv.gz")
            options = ("--trace", trace, "--policy", policy, "--minutes", str(MINUTES), "--out", str(out))
            print(product.cli("twin", *options, timeout_s=60 * (MINUTES + 10)).stdout)
        found[policy] = out
    return found


def _twin(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "twin.json").read_text())
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_live_and_simulated_are_one(twins: dict[str, Path], policy: str) -> None:
    off = {row["label"]: row for row in _twin(twins[policy])["rows"] if not row["holds"]}
    assert not off


def test_a_margin_that_is_another_in_one_world_shows(twins: dict[str, Path]) -> None:
    live = _twin(twins["greenserve"])["live"]
    scenario = read_scenario(twins["greenserve"] / "scenario.yaml")
    found = run_scenario(scenario, requests_of(scenario), "greenserve {plan_tpot_share: 0.2, clock_tpot_share: 0.3}")
    assert abs(found.figures["energy_wh"] / live["energy_wh"] - 1.0) > 0.05
