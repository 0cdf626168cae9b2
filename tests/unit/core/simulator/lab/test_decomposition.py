from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.engine.engine_model import engine_model
from core.engine.load_profile import clocks
from core.simulator.lab.bound import Bound, clairvoyant
from core.simulator.lab.decomposition import PERIOD_S, Watched, decompose, energy_by_kind, table, watch
from core.simulator.lab.tail_latency import Ceiling
from core.simulator.runs.runner import requests_of
from core.simulator.scenario.scenario import Scenario, parse_scenario
from core.types import Mode

MODE = Mode("H100-SXM-80GB", 8)
MHZ = clocks(engine_model("Llama2-70B", MODE.gpu, MODE.tp, "vllm-v1").gpu_params)
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
    """Half of each profile's load keeps the tail, in place of a minute of trials."""
    found = clairvoyant(scenario, requests_of(scenario).blocks())
    return replace(found, with_tail=replace(found, ceilings={MODE: Ceiling(MHZ, np.full(MHZ.size, 0.5))}))


def test_causes_add_up_to_what_the_run_took(scenario: Scenario, bound: Bound) -> None:
    watched = watch(scenario, "greenserve", None)
    assert len(watched.fleets) >= 120 / PERIOD_S
    found = decompose(scenario, watched, bound)
    assert found.total_wh == pytest.approx(watched.figures["energy_wh"])
    assert abs(found.rest_wh) < 0.3 * found.total_wh
    rows = table("greenserve", found).rows
    assert (rows[0][0], rows[-1][0], rows[-1][2]) == ("clairvoyant bound", "greenserve", "100.0")


def test_clocks_and_instances_cost_when_they_are_more_than_the_load_needs(scenario: Scenario, bound: Bound) -> None:
    assert bound.with_tail is not None
    figures = {"energy_wh": 500.0, "energy_wh_by": {"transition": 0.0}}

    def fleet(count: int, mhz: float) -> Watched:
        return Watched(figures, ({(MODE, mhz): count},) * 24)

    few, many = (decompose(scenario, fleet(count, float(MHZ[0])), bound) for count in (2, 4))
    assert many.fleet_wh > few.fleet_wh
    fast = decompose(scenario, fleet(4, float(MHZ[-1])), bound)
    assert fast.clock_wh > many.clock_wh
    assert fast.fleet_wh == pytest.approx(many.fleet_wh)


def test_a_bound_without_the_tail_is_refused(scenario: Scenario, bound: Bound) -> None:
    with pytest.raises(ValueError, match="needs the bound with the tail"):
        decompose(scenario, Watched({}, ()), replace(bound, with_tail=None))


def test_energy_is_listed_by_kind() -> None:
    own = {"energy_wh_by": {"prefill": 1.0, "decode": 2.0, "idle": 3.0, "transition": 4.0}}
    assert energy_by_kind({"one": own}).rows == (("one", "1", "2", "3", "4"),)
