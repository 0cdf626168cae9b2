"""The recorded traffic as a scenario, and what policies save in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from core.simulator.runs.runner import requests_of
from core.simulator.scenario.scenario import parse_scenario
from telemetry.observing.report import find, fleet_of
from telemetry.observing.savings import NoSavings, ObservedFleet, policies_for, savings_of, scenario_of
from telemetry.observing.traffic import ModelTraffic
from tests.fakes.observed_fleet import BEGIN_S, LENGTH_S

from .test_report import recording, terms

START = datetime.fromtimestamp(BEGIN_S, UTC)
MODEL = "Qwen/Qwen2.5-14B-Instruct"
FLEET = ObservedFleet("H100-SXM-80GB", 1, 8, None, {MODEL: "Qwen2.5-14B"}, {"pue": 1.1})
LIMITS = {"ttft_s": 1.0, "tpot_s": 0.1}


def traffic(name: str = "vllm", points: int = 3) -> ModelTraffic:
    (own,) = find(recording(name, points=points), terms()).traffic
    return own


def test_scenario_draws_the_recorded_requests() -> None:
    document, notes = scenario_of([traffic()], FLEET, LIMITS, 7, START)
    assert notes == ()
    scenario = parse_scenario(document, Path("observed.yaml"))
    (block,) = requests_of(scenario).first
    assert len(block) == pytest.approx(300, abs=60)
    assert block.prompt_tokens.mean() == pytest.approx(256_093 / 300, rel=0.15)
    assert block.output_tokens.mean() == pytest.approx(56_073 / 300, rel=0.15)
    assert scenario.services[0].workload.prefix_hit_ratio == pytest.approx(0.25, abs=0.01)
    assert (scenario.seed, scenario.sites["observed"].pue) == (7, 1.1)
    assert [spec.tp for group in scenario.groups for spec in group.instances] == [1]
    assert dict(scenario.sites["observed"].powered_gpus) == {"H100-SXM-80GB": 1}


def test_rates_are_those_of_each_stretch_of_time() -> None:
    own = traffic(points=4)
    assert (own.step_s, len(own.rates_rps)) == (100, 3)
    assert sum(own.rates_rps) * own.step_s == pytest.approx(300.0)
    assert own.requests == 300.0
    assert own.step_s * len(own.rates_rps) == LENGTH_S


def test_lengths_without_a_histogram_are_said_to_be_drawn_from_means() -> None:
    document, notes = scenario_of([traffic("trtllm")], FLEET, LIMITS, 1, START)
    lengths = document["services"]["model-0"]["workload"]["lengths"]
    assert lengths["prompt"]["exponential"] == pytest.approx(133_713 / 150)
    assert any("no histogram of prompt lengths" in note for note in notes)


def test_engine_without_parameters_of_its_own_is_named() -> None:
    document, notes = scenario_of([traffic("sglang")], FLEET, LIMITS, 1, START)
    assert document["fleet"][0]["engine"] == "vllm-v1"
    assert any("no parameters of SGLang" in note for note in notes)


def test_engines_of_several_kinds_are_simulated_as_the_most_frequent() -> None:
    (own,) = find(recording("vllm", "sglang"), terms()).traffic
    assert (own.engines, own.instances, own.requests) == (("vLLM", "SGLang"), 2, 540.0)
    document, notes = scenario_of([own], replace(FLEET, gpus=2), LIMITS, 1, START)
    assert [group["count"] for group in document["fleet"]] == [2]
    assert any("engines of SGLang are simulated as those of vLLM" in note for note in notes)


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        (replace(FLEET, models={}), "Qwen2.5-14B"),  # the known names are listed
        (replace(FLEET, gpu=None), "--gpu TYPE, one of .*H100-SXM-80GB"),
        (replace(FLEET, gpu="H999"), "unknown 'H999'"),
        (replace(FLEET, gpus=0), "give --tp"),
        (replace(FLEET, tp=3), "--tp 3"),
        (replace(FLEET, models={MODEL: "Llama3-70B"}), "has no room"),
    ],
)
def test_what_the_simulator_must_know_is_asked_for(fleet: ObservedFleet, words: str) -> None:
    with pytest.raises(NoSavings, match=words):
        scenario_of([traffic()], fleet, LIMITS, 1, START)


def test_few_requests_are_not_simulated() -> None:
    with pytest.raises(NoSavings, match="too few"):
        scenario_of([replace(traffic(), requests=12.0)], FLEET, LIMITS, 1, START)


def test_fleet_is_the_gpus_with_an_engine() -> None:
    own = terms(models={MODEL: "Qwen2.5-14B"})
    fleet = fleet_of(find(recording("vllm", "dcgm"), own), own, {})
    assert (fleet.gpu, fleet.gpus, fleet.gpus_per_node, fleet.degree(3)) == ("H100-SXM-80GB", 3, 3, 1)
    assert fleet.degree(2) is None


def test_policies_that_have_nothing_to_go_by_or_take_hours_are_left_out() -> None:
    policies, left_out = policies_for(LIMITS, 1_000.0)
    assert (policies[0], left_out) == ("single_pool", {})
    _, unpaced = policies_for({"ttft_s": 1.0}, 1_000.0)
    assert "e2e_s or tpot_s" in unpaced["throttllem"]
    _, many = policies_for(LIMITS, 1e6)
    assert "takes it long" in many["throttllem"]


def figures(energy_wh: float, in_time: float | None, **others: Any) -> dict[str, Any]:
    known = {
        "energy_wh": energy_wh,
        "slo_attainment": in_time,
        "carbon_g": None,
        "gpu_hours": 2.0,
        "simulated_s": 900.0,
    }
    return known | {"requests": 50, "seed": 1} | others


def test_savings_are_shares_of_the_baseline_and_late_policies_are_marked() -> None:
    runs = {
        "single_pool": figures(100.0, 0.98, carbon_g=40.0),
        "late": figures(20.0, 0.97, carbon_g=8.0),
        "greenserve": figures(60.0, 0.985, carbon_g=20.0, gpu_hours=1.0),
    }
    found = savings_of(runs, {"muserve": "stopped"}, 90.0, ("note",))
    assert (found.baseline_wh, found.metered_wh, found.left_out) == (100.0, 90.0, {"muserve": "stopped"})
    best, late = found.policies
    assert (best.policy, best.energy_saved, best.carbon_saved, best.gpu_hours_saved) == ("greenserve", 0.4, 0.5, 0.5)
    assert best.keeps_objectives, "the fleet as it is does not have 99 % either"
    assert not late.keeps_objectives


def test_runs_that_end_late_are_named() -> None:
    runs = {"single_pool": figures(100.0, 1.0), "greenserve": figures(60.0, 1.0, simulated_s=960.0)}
    (note,) = savings_of(runs, {}, None, ()).notes
    assert note.startswith("runs end up to 60 s after the baseline's")
    runs["greenserve"]["simulated_s"] = 930.0
    assert savings_of(runs, {}, None, ()).notes == ()


def test_gpus_that_no_named_engine_has_are_named() -> None:
    _, notes = scenario_of([traffic()], replace(FLEET, gpus=3, tp=1), LIMITS, 1, START)
    assert notes == ("3 GPUs with an engine were metered, and 1 simulated: name the pages of all engines",)


def test_without_the_baseline_there_is_nothing_to_compare_with() -> None:
    found = savings_of({"greenserve": figures(60.0, 1.0)}, {"single_pool": "stopped by Ctrl-C"}, None, ())
    assert (found.policies, found.baseline_wh) == ((), None)
    assert "stopped by Ctrl-C" in found.why_not
