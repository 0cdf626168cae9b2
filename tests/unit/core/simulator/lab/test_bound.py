from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.simulator.kernel.arrivals import Arrivals
from core.simulator.kernel.simulated import SimulationError
from core.simulator.lab.bound import clairvoyant
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import parse_scenario

DOCUMENT = {
    "fleet": {
        "count": 4, "model": "Llama2-70B", "gpu": "H100-SXM-80GB", "tp": 8, "tp_choices": [4, 8], "name": "node"
    },
    "workload": {"generate": "poisson", "lengths": "azure-conv", "rate_rps": 8, "duration_s": 240},
    "slo": {"ttft_s": 1.0, "tpot_s": 0.1},
    "policy": "greenserve",
}  # fmt: skip


def scenario(**more):
    return parse_scenario(DOCUMENT | more, Path("lab.yaml"))


def arrivals(rps: float, minutes: int) -> Arrivals:
    at = np.linspace(0.0, 60.0 * minutes, round(60 * minutes * rps), endpoint=False)
    ones = np.ones(at.size, np.int64)
    return Arrivals(at, 1000 * ones, 200 * ones, 0 * ones, 0 * ones)


def test_bound_is_below_every_policy_that_keeps_the_objectives():
    own = scenario()
    requests = requests_of(own)
    floor = clairvoyant(own, requests.blocks())
    for policy in ("single_pool", "greenserve"):
        figures = run_scenario(own, requests_of(own), policy).figures
        assert figures["slo_attainment"] > 0.95
        assert floor.energy_wh < figures["energy_wh"]
    assert floor.short_minutes == 0


def test_bound_rises_with_the_load():
    found = [clairvoyant(scenario(), [arrivals(rps, 3)]) for rps in (2.0, 8.0, 20.0)]
    assert found[0].energy_wh < found[1].energy_wh < found[2].energy_wh
    assert [len(own.minutes) for own in found] == [3, 3, 3]


def test_minutes_that_no_fleet_carries_are_counted_as_such():
    found = clairvoyant(scenario(), [arrivals(2000.0, 1)])
    assert (found.short_minutes, [minute.fit for minute in found.minutes]) == (1, [None])


def test_minutes_without_requests_cost_nothing():
    one = arrivals(2.0, 1)
    later = Arrivals(one.arrival_s + 120.0, one.prompt_tokens, one.output_tokens, one.service, one.tenant)
    found = clairvoyant(scenario(), [one, later])
    assert found.minutes[1].fit is None
    assert found.short_minutes == 0


def test_bound_is_refused_when_there_are_several_services():
    own = DOCUMENT["workload"]
    services = {name: {"model": "Llama2-70B", "workload": own} for name in ("chat", "code")}
    document = {key: value for key, value in DOCUMENT.items() if key not in ("workload", "slo")}
    two = parse_scenario(document | {"services": services}, Path("lab.yaml"))
    with pytest.raises(SimulationError, match="the bound is of one service"):
        clairvoyant(two, [arrivals(2.0, 1)])


def test_bound_makes_carbon_least_where_it_is_known_of_all_sites():
    group = {**DOCUMENT["fleet"], "count": 2}
    two = [{**group, "site": "east"}, {**group, "name": "other", "site": "west"}]
    known = {"east": {"carbon_g_per_kwh": 300}, "west": {"carbon_g_per_kwh": 100}}
    light, heavy = (clairvoyant(scenario(fleet=two, sites=known), [arrivals(rps, 1)]) for rps in (2.0, 80.0))
    assert {part.site for part in light.minutes[0].fit.parts} == {"west"}
    assert light.carbon_g == pytest.approx(light.energy_wh * 0.1)
    assert {part.site for part in heavy.minutes[0].fit.parts} == {"east", "west"}
    blind = clairvoyant(scenario(fleet=two, sites={"east": known["east"], "west": {}}), [arrivals(2.0, 1)])
    assert blind.carbon_g is None


@pytest.mark.slow("a bound of many linear programs")
def test_bound_with_the_tail_is_above_the_one_without_and_below_policies():
    own = scenario()
    floor = clairvoyant(own, requests_of(own).blocks(), tail=True)
    assert floor.with_tail is not None
    assert floor.energy_wh < floor.with_tail.energy_wh
    assert floor.with_tail.energy_wh < run_scenario(own, requests_of(own), "single_pool").figures["energy_wh"]
