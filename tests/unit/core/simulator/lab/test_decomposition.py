from __future__ import annotations

from pathlib import Path

import pytest

from core.engine.engine_model import engine_model
from core.simulator.lab.bound import Bound, least_energy
from core.simulator.lab.decomposition import PERIOD_S, Watched, decompose, energy_by_kind, table, watch
from core.simulator.runs.runner import requests_of
from core.simulator.scenario.scenario import Scenario, parse_scenario
from core.types import Mode

MODE = Mode("H100-SXM-80GB", 8)
DOCUMENT = {
    "fleet": {"count": 4, "model": "Llama2-70B", "gpu": MODE.gpu, "tp": 8, "tp_choices": [8], "name": "node"},
    "workload": {"generate": "poisson", "lengths": "azure-conv", "rate_rps": 8, "duration_s": 120},
    "slo": {"ttft_s": 1.0, "tpot_s": 0.1},
    "policy": "greenserve",
}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return parse_scenario(DOCUMENT, Path("lab.yaml"))


@pytest.fixture(scope="module")
def bound(scenario: Scenario) -> Bound:
    return least_energy(scenario, requests_of(scenario).blocks())


def test_causes_add_up_to_what_the_run_took(scenario: Scenario, bound: Bound) -> None:
    watched = watch(scenario, "greenserve", None)
    assert len(watched.fleets) >= 120 / PERIOD_S
    found = decompose(scenario, watched, bound)
    assert found.total_wh == pytest.approx(watched.figures["energy_wh"])
    assert found.work_wh > 0.0
    rows = table("greenserve", found).rows
    assert (rows[0][0], rows[-1][0], rows[-1][2]) == ("bound", "greenserve", "100.0")


def test_what_an_instance_more_draws_idle_is_that_of_spare_ones(scenario: Scenario, bound: Bound) -> None:
    figures = {"energy_wh": 500.0, "energy_wh_by": {"transition": 20.0}}
    few, many = (decompose(scenario, Watched(figures, ({MODE: count},) * 24), bound) for count in (2, 4))
    idle_w = engine_model("Llama2-70B", MODE.gpu, MODE.tp, "vllm-v1").idle_watts(210.0)
    assert many.spare_wh - few.spare_wh == pytest.approx(2 * idle_w * 120.0 / 3600.0)
    assert many.work_wh - few.work_wh == pytest.approx(few.spare_wh - many.spare_wh)
    assert many.transition_wh == 20.0


def test_energy_is_listed_by_kind() -> None:
    own = {"energy_wh_by": {"prefill": 1.0, "decode": 2.0, "idle": 3.0, "transition": 4.0}}
    assert energy_by_kind({"one": own}).rows == (("one", "1", "2", "3", "4"),)
