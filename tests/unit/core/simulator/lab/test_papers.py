"""What the laboratory computes without a run, and that its settings are ones that scenarios have."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml

from core.engine.engine_model import EngineModel
from core.engine.parameter_sets import set_of
from core.policy.dynamo_classes import request_classes
from core.simulator import shipped_scenarios
from core.simulator.lab.experiments import EXPERIMENTS
from core.simulator.lab.measures import Steps, figure
from core.simulator.lab.papers import dynamollm_week, throttllem_projection
from core.simulator.lab.papers.dynamollm_week import DAYS, HOURS
from core.simulator.lab.papers.freesh import NOON
from core.simulator.lab.papers.muserve_predictor import accuracy, classes_off, f1_score
from core.simulator.scenario.scenario import policy_of, read_scenario
from core.simulator.workload.curves import PRESETS, week_curve


def ours(experiment: str, label: str) -> float | None:
    return next(row for row in EXPERIMENTS[experiment].rows if row.label == label).ours({})


@pytest.mark.parametrize("service", dynamollm_week.SERVICES)
def test_the_hours_that_are_run_have_the_mean_of_the_week_that_they_stand_for(service):
    week = week_curve(PRESETS[service.preset])
    hours = int(3600.0 / week.step_s)
    simulated = []
    for run in (service.run("single_pool", day, hour) for day in DAYS for hour in HOURS):
        scenario = read_scenario(shipped_scenarios.folder() / "dynamollm-70b-h100.yaml", run.settings)
        generator = scenario.services[0].workload.generator
        first = round(generator.start_s / week.step_s)
        simulated.append(np.mean(week.rates[first : first + hours]))
    times = np.repeat(list(DAYS.values()), len(HOURS))
    assert np.average(simulated, weights=times) == pytest.approx(np.mean(week.rates), rel=0.01)


def test_hours_of_the_week_have_the_carbon_of_the_demos_solar_day():
    scenario = read_scenario(shipped_scenarios.folder() / "freesh-three-sites.yaml")
    assert {hour: scenario.sites["location-1"].intensity_g_per_kwh(3600.0 * hour) for hour in HOURS} == HOURS


def test_pools_of_nine_are_those_of_the_scenario():
    experiment = EXPERIMENTS["dynamollm-pools"]
    settings = next(run.settings for run in experiment.runs if run.label == "9 pools")
    classes, pools = (
        [replace(own, name="") for own in partition.classes]
        for partition in read_scenario(shipped_scenarios.folder() / "dynamollm-70b-h100.yaml", settings)
        .services[0]
        .partitions
    )
    assert classes == pools


@pytest.mark.parametrize("factor", [10, 20])
def test_looser_slos_are_judged_by_what_the_policy_keeps(factor):
    experiment = EXPERIMENTS["dynamollm-pools"]
    run = next(run for run in experiment.runs if f"SLO {factor} times" in run.label)
    scenario = read_scenario(shipped_scenarios.folder() / "dynamollm-70b-h100.yaml", run.settings)
    judged, known = (partition.classes for partition in scenario.services[0].partitions)
    knobs = policy_of(scenario, run.policy).knobs
    assert (knobs.partition, knobs.slo_factor) == ("strict", factor)
    assert [own.slo.ttft_s for own in judged] == [own.slo.ttft_s * factor / 5.0 for own in known]
    assert [own.slo.ttft_s for own in known] == [own.limits.ttft_s for own in request_classes()]


def test_chunks_hide_nearly_all_of_the_transfer_when_tokens_take_longer_than_their_way():
    removed = ours("dynaserve", "exposed transfer that chunks remove")
    assert removed is not None
    assert 85.0 < removed < 100.0


@pytest.fixture(scope="module")
def speed_errors():
    """Of trees that are learned from many points, and from few."""
    label = "error of predicted speed, learned from {} of the points"
    return [ours("throttllem", label.format(share)) for share in ("90%", "10%")]


def test_speed_is_learned_worse_when_fewer_points_are_known(speed_errors):
    many, few = speed_errors
    assert many is not None
    assert few is not None
    assert 0.0 < many < few < 10.0


def test_projections_are_off_by_an_iteration_when_all_prompts_fit_in_one(monkeypatch):
    monkeypatch.setattr(throttllem_projection, "_CLOCKS_MHZ", (1410.0,))
    monkeypatch.setattr(throttllem_projection, "_REQUESTS", 6)
    monkeypatch.setattr(throttllem_projection, "_MOST_OUTPUT", 60)
    found = throttllem_projection.projection_errors.__wrapped__(False, 300)
    assert 0.0 < found.batch < 0.05  # the first request begins by itself, and the others end an iteration later
    assert found.kv < 0.05
    assert found.drift_s < 0.0005


@pytest.mark.parametrize("name", ["throttllem", "throttllem-engines", "throttllem-loads"])
def test_throttllem_knows_true_lengths_when_a_label_says_exact_and_has_the_clocks_that_it_says(name):
    experiment = EXPERIMENTS[name]
    for run in (run for run in experiment.runs if run.policy.startswith("throttllem")):
        scenario = read_scenario(shipped_scenarios.folder() / f"{experiment.scenario}.yaml", run.settings)
        predictor, policy = scenario.services[0].predictor, policy_of(scenario, run.policy)
        assert predictor.size == policy.predictor_error
        assert (predictor.kind == "oracle") == ("exact" in run.label)
        assert (policy.clock_floor_mhz == 1050.0) == ("1,050 MHz" in run.label)


@pytest.mark.parametrize("name", [own.name for own in EXPERIMENTS.values() if own.scenario == "freesh-three-sites"])
def test_freesh_chooses_between_the_two_partitions_of_the_paper(name):
    experiment = EXPERIMENTS[name]
    for settings in {run.settings for run in experiment.runs if not run.policy.startswith("freesh_baseline")}:
        scenario = read_scenario(shipped_scenarios.folder() / f"{experiment.scenario}.yaml", settings)
        assert [len(partition.classes) for partition in scenario.services[0].partitions] == [4, 4]


def test_the_hour_from_noon_has_noons_carbon():
    scenario = read_scenario(shipped_scenarios.folder() / "freesh-three-sites.yaml", NOON)
    assert [site.intensity_g_per_kwh(0.0) for site in scenario.sites.values()] == [188.0, 470.0, 656.0]


@pytest.mark.parametrize(("service", "model", "tp"), [("chat", "gpt2-large", 1), ("assistant", "Qwen3-8B", 2)])
def test_mu_serves_objectives_are_five_times_what_an_answer_of_512_tokens_takes_alone(service, model, tp):
    document = yaml.safe_load((shipped_scenarios.folder() / "muserve-v100.yaml").read_text(encoding="utf-8"))
    (engine,) = {group["engine"] for group in document["fleet"]}
    instance = EngineModel(model, "V100-16GB", tp, engine)
    prompt = document["services"][service]["workload"]["lengths"]["prompt"]["exponential"]
    decoding = (instance.iteration(1380.0, (), 1, prompt + n).t_s for n in range(1, 512))
    alone_s = instance.iteration(1380.0, [(prompt, 0)]).t_s + math.fsum(decoding)
    assert document["services"][service]["slo"]["e2e_s"] == pytest.approx(5.0 * alone_s, rel=0.01)


def test_a_predictor_is_scored_by_how_many_classes_it_is_off():
    confusion = np.array([[6.0, 2.0, 0.0], [0.0, 4.0, 0.0], [4.0, 0.0, 4.0]])
    assert accuracy(confusion) == pytest.approx(0.7)
    assert classes_off(confusion) == pytest.approx((2 * 1 + 4 * 2) / 20)
    assert classes_off(confusion, 2) == pytest.approx((2 * 1 + 4 * 4) / 20)
    assert f1_score(confusion) == pytest.approx((12 / 18 + 8 / 10 + 8 / 12) / 3)


def test_a_shape_holds_by_the_share_of_steps_that_go_its_way():
    results = {f"{n}": {"clock_mhz": mhz} for n, mhz in enumerate((400.0, 500.0, 450.0, 600.0))}
    rising = tuple(figure(label, "clock_mhz") for label in results)
    assert Steps(rising)(results) == pytest.approx(200.0 / 3.0)
    assert Steps(rising, down=True)(results) == pytest.approx(100.0 / 3.0)


def test_mu_serves_experiments_run_on_the_v100_of_locked_clocks():
    for name in ("muserve", "muserve-order"):
        scenario = read_scenario(shipped_scenarios.folder() / f"{EXPERIMENTS[name].scenario}.yaml")
        assert {set_of(spec.engine).number for group in scenario.groups for spec in group.instances} == {2}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "dynaserve"])
def test_settings_and_policies_are_understood_when_the_scenario_reads_them(name):
    experiment = EXPERIMENTS[name]
    for settings in {run.settings for run in experiment.runs}:
        scenario = read_scenario(shipped_scenarios.folder() / f"{experiment.scenario}.yaml", settings)
        for run in experiment.runs:
            if run.settings == settings:
                policy_of(scenario, run.policy)
