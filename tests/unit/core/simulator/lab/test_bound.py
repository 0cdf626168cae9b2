from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.simulator.kernel.arrivals import Arrivals
from core.simulator.kernel.simulated import SimulationError
from core.simulator.lab.bound import least_energy
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
    floor = least_energy(own, requests.blocks())
    for policy in ("single_pool", "greenserve"):
        figures = run_scenario(own, requests_of(own), policy).figures
        assert figures["slo_attainment"] > 0.95
        assert floor.energy_wh < figures["energy_wh"]
    assert floor.short == 0


def test_bounds_of_bursts_are_below_a_fleet_that_is_there_for_them():
    rates = [{"for_s": 59, "rps": 2}, {"for_s": 1, "rps": 60}]
    bursts = {"generate": "poisson", "rates": rates, "duration_s": 240, "lengths": "azure-conv"}
    own = scenario(workload=bursts)
    changes, stays = (least_energy(own, requests_of(own).blocks(), stays) for stays in (False, True))
    figures = run_scenario(own, requests_of(own), "greenserve {scale: static}").figures
    assert figures["slo_attainment"] >= 0.99
    assert changes.energy_wh < stays.energy_wh < figures["energy_wh"]
    assert changes.keeps
    assert stays.keeps


def test_bound_rises_with_the_load():
    found = [least_energy(scenario(), [arrivals(rps, 3)]) for rps in (2.0, 8.0, 20.0)]
    assert found[0].energy_wh < found[1].energy_wh < found[2].energy_wh
    assert [len(own.intervals) for own in found] == [3, 3, 3]


def test_minutes_that_no_fleet_carries_are_counted_as_such():
    found = least_energy(scenario(), [arrivals(2000.0, 1)])
    assert (found.short, [own.fit for own in found.intervals]) == (1, [None])


def test_minutes_without_requests_cost_nothing():
    one = arrivals(2.0, 1)
    later = Arrivals(one.arrival_s + 120.0, one.prompt_tokens, one.output_tokens, one.service, one.tenant)
    found = least_energy(scenario(), [one, later])
    assert found.intervals[1].fit is None
    assert found.short == 0


def test_bound_is_refused_when_there_are_several_services():
    own = DOCUMENT["workload"]
    services = {name: {"model": "Llama2-70B", "workload": own} for name in ("chat", "code")}
    document = {key: value for key, value in DOCUMENT.items() if key not in ("workload", "slo")}
    two = parse_scenario(document | {"services": services}, Path("lab.yaml"))
    with pytest.raises(SimulationError, match="the bound is of one service"):
        least_energy(two, [arrivals(2.0, 1)])


def test_bound_makes_carbon_least_where_it_is_known_of_all_sites():
    group = {**DOCUMENT["fleet"], "count": 2}
    two = [{**group, "site": "east"}, {**group, "name": "other", "site": "west"}]
    known = {"east": {"carbon_g_per_kwh": 300}, "west": {"carbon_g_per_kwh": 100}}
    light, heavy = (least_energy(scenario(fleet=two, sites=known), [arrivals(rps, 1)]) for rps in (2.0, 80.0))
    assert {part.site for part in light.intervals[0].fit.parts} == {"west"}
    assert light.carbon_g == pytest.approx(light.energy_wh * 0.1)
    assert {part.site for part in heavy.intervals[0].fit.parts} == {"east", "west"}
    blind = least_energy(scenario(fleet=two, sites={"east": known["east"], "west": {}}), [arrivals(2.0, 1)])
    assert blind.carbon_g is None


def heap(times: int, at_s: float = 30.0, prompt: int = 1000) -> Arrivals:
    ones = np.ones(times, np.int64)
    return Arrivals(np.full(times, at_s) + np.arange(times) * 1e-3, prompt * ones, 20 * ones, 0 * ones, 0 * ones)


def joined(*parts: Arrivals) -> Arrivals:
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "service", "tenant")
    both = [np.concatenate([getattr(part, name) for part in parts]) for name in columns]
    order = np.argsort(both[0], kind="stable")
    return Arrivals(*(column[order] for column in both))


def test_requests_in_a_heap_need_more_than_as_many_spread_evenly():
    one = {**DOCUMENT["fleet"], "tp_choices": [4]}
    even = least_energy(scenario(fleet=one), [arrivals(1.0, 1)])
    at_once = least_energy(scenario(fleet=one), [joined(heap(60), arrivals(0.02, 1))])
    assert even.gpu_hours < at_once.gpu_hours


def test_one_of_a_hundred_may_be_late_in_whichever_minutes_save_most():
    one = {**DOCUMENT["fleet"], "tp_choices": [4]}
    own = scenario(fleet=one)
    calm = arrivals(40.0, 3)
    few, many = (least_energy(own, [joined(heap(n, 30.0, 2000), calm)]) for n in (20, 400))
    assert few.keeps
    assert few.gpu_hours < many.gpu_hours


def test_a_fleet_that_stays_takes_no_less_than_one_that_changes():
    busy = arrivals(30.0, 1)
    later = replace(busy, arrival_s=busy.arrival_s + 300.0)
    load = [joined(arrivals(1.0, 5), later)]
    changes, stays = least_energy(scenario(), load), least_energy(scenario(), load, stays=True)
    assert len(stays.intervals) == 1
    assert changes.energy_wh < stays.energy_wh
    assert changes.gpu_hours < stays.gpu_hours


def test_objectives_that_no_fleet_keeps_are_said_to_be_none():
    tight = scenario(slo={"ttft_s": 0.3, "tpot_s": 0.1})
    assert not least_energy(tight, [heap(3000)]).keeps
    assert least_energy(tight, [arrivals(1.0, 1)]).keeps
