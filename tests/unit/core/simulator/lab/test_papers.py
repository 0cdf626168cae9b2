"""What the laboratory computes without a run, and that its settings are ones that scenarios have."""

from __future__ import annotations

import math

import pytest
import yaml

from core.engine.engine_model import EngineModel
from core.engine.parameter_sets import set_of
from core.simulator import shipped_scenarios
from core.simulator.lab.experiments import EXPERIMENTS
from core.simulator.lab.papers import dynamollm_week
from core.simulator.lab.papers.dynamollm_week import TUESDAY, estimate
from core.simulator.scenario.scenario import policy_of, read_scenario


def ours(experiment: str, label: str) -> float | None:
    return next(row for row in EXPERIMENTS[experiment].rows if row.label == label).ours({})


@pytest.fixture
def day():
    return estimate("conversation", 11, TUESDAY)


def test_a_day_saves_energy_carbon_and_servers_when_the_load_has_valleys(day):
    assert 0.0 < day.servers_saved < 1.0
    assert day.servers_saved < day.energy_saved < 1.0  # fewer servers, and slower clocks on those
    assert day.short_steps <= 3
    assert 0.0 < day.carbon_saved < 1.0


def test_deeper_valleys_save_more_when_a_service_is_used_at_work_only(day):
    assert estimate("coding", 11, TUESDAY).servers_saved > day.servers_saved


def test_nothing_is_saved_when_the_load_stands_at_its_peak(monkeypatch):
    flat = type("Flat", (), {"rates": (1.0,) * 12})()
    monkeypatch.setattr(dynamollm_week, "week_curve", lambda _: flat)
    found = dynamollm_week.estimate.__wrapped__("conversation", 11)
    assert found.servers_saved == pytest.approx(0.0, abs=0.1)


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


@pytest.mark.parametrize(("service", "model", "tp"), [("chat", "gpt2-large", 1), ("assistant", "Qwen3-8B", 2)])
def test_mu_serves_objectives_are_five_times_what_an_answer_of_512_tokens_takes_alone(service, model, tp):
    document = yaml.safe_load((shipped_scenarios.folder() / "muserve-v100.yaml").read_text(encoding="utf-8"))
    (engine,) = {group["engine"] for group in document["fleet"]}
    instance = EngineModel(model, "V100-16GB", tp, engine)
    prompt = document["services"][service]["workload"]["lengths"]["prompt"]["exponential"]
    decoding = (instance.iteration(1380.0, (), 1, prompt + n).t_s for n in range(1, 512))
    alone_s = instance.iteration(1380.0, [(prompt, 0)]).t_s + math.fsum(decoding)
    assert document["services"][service]["slo"]["e2e_s"] == pytest.approx(5.0 * alone_s, rel=0.01)


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
