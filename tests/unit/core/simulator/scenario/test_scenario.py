"""Scenario files, their figures, and the two commands."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from click.testing import CliRunner

from core.algorithms.fleet.gpu_parts import Share
from core.algorithms.queue.queueing import WINDOW_FACTOR
from core.controllers.fleet.scale_threshold import ScaleThresholdConfig
from core.controllers.fleet.shard_threshold import ShardThresholdConfig
from core.engine import gpu_types
from core.simulator.fields import ScenarioError
from core.simulator.kernel.driver import MACRO, Stepping
from core.simulator.kernel.outcome import Outcome
from core.simulator.policies import FreeshConfig, ThresholdConfig
from core.simulator.runs import runner
from core.simulator.runs.runner import Loader, capacity, requests_of, run_scenario
from core.simulator.scenario.scenario import DeclaredLoad, Scenario, policy_of, read_scenario
from greenserve.cli import cli
from greenserve.env import ROOT
from tests.oracles.token_by_token import REFERENCE

SCENARIOS = ROOT / "scenarios"
SMALL = """
fleet: {count: 2, model: Llama3-70B, gpu: A100-80GB, tp: 4, site: here}
workload: {generate: azure-conv-like, rate_rps: 2, requests: 300}
classes: [{name: short, output_max: 100}, {name: long, output_min: 100}]
slo: {ttft_s: 2, tpot_s: 0.1, itl_p99_s: 0.5, e2e_s: 60}
sites: {here: {pue: 1.5, carbon_g_per_kwh: [100, 300], usd_per_kwh: 0.2}}
"""
KEYS = {
    *("requests", "energy_wh", "energy_wh_by", "carbon_g", "cost_usd", "gpu_hours", "slo_attainment"),
    *("slo_attainment_by", "ttft_s", "tpot_s", "itl_s", "e2e_s", "goodput_rps", "goodput_tokens_s"),
    *("violation_rate", "jain_lengths", "wall_s", "simulated_rps"),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def figures(path: Path, *settings: str, policy: str | None = None, stepping: Stepping = MACRO) -> dict[str, Any]:
    scenario = read_scenario(path, settings)
    return run_scenario(scenario, requests_of(scenario), policy, stepping).figures


def test_figures_hang_together_when_a_scenario_has_run(small: Path) -> None:
    found = figures(small)
    assert set(found) >= KEYS
    assert found["energy_wh"] == pytest.approx(sum(found["energy_wh_by"].values()), rel=1e-9)
    assert found["carbon_g"] == pytest.approx(found["energy_wh"] / 1000 * 1.5 * 100)  # all within the first hour
    assert found["cost_usd"] == pytest.approx(found["energy_wh"] / 1000 * 1.5 * 0.2)
    assert found["gpu_hours"] == pytest.approx(8 * found["simulated_s"] / 3600)
    assert found["clock_mhz"] == pytest.approx(1410.0)
    assert 0.0 < found["slo_attainment"] <= 1.0
    assert set(found["slo_attainment_by"]) == {"short", "long"}
    assert set(found["slo_attainment_by"]["long"]) == {"ttft", "tpot_mean", "itl_p99", "e2e"}
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p90"] <= found["ttft_s"]["p99"]
    assert 0.0 < found["jain_lengths"] <= 1.0


def test_carbon_follows_the_hours_when_a_run_is_longer_than_one(small: Path) -> None:
    found = figures(small, "workload.rate_rps=0.04", "workload.requests=280")  # about two hours, half of it dearer
    mean = found["carbon_g"] / (found["energy_wh"] / 1000 * 1.5)
    assert 180 < mean < 220


def test_figures_are_the_same_when_modes_or_repetitions_differ(small: Path) -> None:
    timing = {"wall_s", "simulated_rps", "stepping"}
    macro, again, reference = figures(small), figures(small), figures(small, stepping=REFERENCE)
    assert {k: v for k, v in macro.items() if k not in timing} == {k: v for k, v in again.items() if k not in timing}
    assert macro["energy_wh"] == pytest.approx(reference["energy_wh"], rel=1e-9)
    assert macro["e2e_s"] == pytest.approx(reference["e2e_s"], rel=1e-9)
    assert macro["itl_s"]["p99"] == pytest.approx(reference["itl_s"]["p99"], rel=0.006)
    assert figures(small, "seed=2")["energy_wh"] != macro["energy_wh"]


def test_capacity_is_found_when_it_lies_far_from_the_scenarios_rate(tmp_path: Path) -> None:
    """One at a time for 10 ms each, evenly spaced: within its limit up to 100 requests a second, and not beyond."""
    path = tmp_path / "server.yaml"
    path.write_text(
        "fleet: {count: 1, max_sequences: 1, fixed_costs: {base_s: 0.01, busy_w: 1}}\n"
        "workload: {generate: gamma, cv: 0, rate_rps: 7, requests: 3000, prompt_tokens: 1, output_tokens: 1}\n"
        "slo: {ttft_s: 0.02}\n"
    )
    found = capacity(read_scenario(path), None, 0.99)
    assert found["rate_scale"] == pytest.approx(100.0 / 7.0, rel=0.02)
    assert found["rate_rps"] == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize("policy", ["single_pool", "least_loaded", "multi_pool", "threshold", "freesh"])
def test_every_request_is_served_when_the_policy_changes(small: Path, policy: str) -> None:
    assert figures(small, policy=policy)["finished"] == 300


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fleet.modle=x", r"fleet\[0\].modle: unknown field; did you mean model"),
        ("fleet.model=Llama9", r"fleet\[0\]: unknown model 'Llama9'"),
        ("fleet.gpu=T4", r"fleet\[0\]: unknown gpu 'T4'"),
        ("fleet.tp=1", "no room for a KV cache"),
        ("fleet.tp=3", r"fleet\[0\].tp: 3 GPUs cannot share 64 attention heads .*; choose one of 1, 2, 4, 8"),
        ("fleet.tp_choices=[4, 6]", r"fleet\[0\].tp_choices: 6 GPUs cannot share 64 attention heads"),
        ("fleet.count=0", r"fleet\[0\].count: must be from 1"),
        ("fleet.mhz=9999", "outside the A100-80GB's range"),
        ("fleet.site=there", "site 'there' is not among sites: here"),
        ("fleet=", "fleet: missing"),
        ("policy=best", "policy: unknown 'best'; known: greenserve"),
        ("workload.rate_rps=0", "workload.rate_rps: must be above 0"),
        ("workload.prefix_hit_ratio=2", "workload.prefix_hit_ratio: must be at most 1"),
        ("slo.ttft_s=fast", "slo.ttft_s: must be a number, not 'fast'"),
        ("sites.here.pue=0.5", "sites.here.pue: must be at least 1"),
        (
            "sites.here.nodes={A100-80GB: [4, 1]}",
            r"sites\.here\.nodes\.A100-80GB: must be the GPUs of each node, 0 together",
        ),
        ("sites.here.carbon_g_per_kwh=[1, x]", "one for each hour"),
        ("classes.0.name=long", "two have the same name"),
        ("classes.7.name=x", "there are 2 items"),
        ("seed", "write it as key=value"),
    ],
)
def test_scenario_is_refused_when_a_field_is_wrong(small: Path, setting: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_scenario(small, [setting])


def two_services(*settings: str) -> Scenario:
    return read_scenario(SCENARIOS / "two-services.yaml", [f"services.8b.{setting}" for setting in settings])


def test_services_say_their_part_of_the_gpus() -> None:
    parts = {own.name: own.share for own in two_services("weight=2", "min_gpus=4", "max_gpus=8").services}
    assert parts == {"70b": Share(), "8b": Share(2.0, 4, 8)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_gpus=2", r"services.8b.max_gpus: 2 is below min_gpus, 4; raise it, or lower min_gpus"),
        ("weight=0", r"services.8b.weight: must be above 0"),
        ("min_gpus=-1", r"services.8b.min_gpus: must be at least 0"),
    ],
)
def test_part_that_cannot_be_meant_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        two_services("min_gpus=4", setting)


def test_scenario_is_refused_when_it_can_never_serve_its_load(small: Path) -> None:
    overload = ("workload.rate_rps=40", "workload.requests=20000")
    with pytest.raises(ScenarioError, match="can never serve its load"):
        figures(small, *overload)
    assert figures(small, *overload, "overload=allow")["finished"] == 20_000


def test_fleet_is_refused_when_multi_pool_has_too_few_instances(small: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot make a pool for each"):
        figures(small, "fleet.count=1", policy="multi_pool")


def test_simulate_writes_json_and_parquet_when_asked(small: Path, tmp_path: Path) -> None:
    out, tables = tmp_path / "out.json", tmp_path / "tables"
    result = CliRunner().invoke(cli, ["simulate", str(small), "--json", str(out), "--parquet", str(tables)])
    assert result.exit_code == 0, result.output
    assert "SLO attainment" in result.output
    found = json.loads(out.read_text())
    rows = polars.read_parquet(tables / "requests.parquet")
    assert rows.height == found["requests"] == 300
    energy = polars.read_parquet(tables / "energy.parquet")
    assert energy["energy_j"].sum() == pytest.approx(found["energy_wh"] * 3600, rel=1e-9)


def test_simulate_says_what_is_wrong_when_input_is_bad(small: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    for arguments, message in (
        ([str(tmp_path / "none.yaml")], "cannot be read"),
        ([str(small), "--policy", "best"], "policy: unknown 'best'"),
        ([str(small), "--trace", str(empty)], "the trace is empty"),
        ([str(small), "--set", "fleet.gpu=T4"], "unknown gpu 'T4'"),
    ):
        result = CliRunner().invoke(cli, ["simulate", *arguments])
        assert result.exit_code == 2
        assert message in result.output


def test_compare_gives_ratios_to_the_first_when_policies_differ(small: Path) -> None:
    arguments = ["compare", str(small), "--policy", "single_pool", "--policy", "least_loaded", "--json", "-"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["ratios"]["single_pool"]["energy_wh"] == 1.0
    assert found["ratios"]["least_loaded"]["energy_wh"] == pytest.approx(
        found["runs"][1]["energy_wh"] / found["runs"][0]["energy_wh"]
    )


def test_compare_tells_knobs_apart_when_a_policy_is_named_twice(small: Path) -> None:
    knobs = ["threshold", "threshold {loops: [clock]}", "threshold {loops: [clock], clock_floor_mhz: 1980}"]
    arguments = ["compare", str(small), *(word for knob in knobs for word in ("--policy", knob))]
    result = CliRunner().invoke(cli, [*arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    runs = json.loads(result.output)["runs"]
    assert [run["policy"] for run in runs] == knobs
    assert [sorted(run["holds"]) for run in runs] == [["clock", "scale", "shard"], ["clock"], ["clock"]]
    assert runs[2]["energy_wh"] > runs[1]["energy_wh"]
    printed = CliRunner().invoke(cli, arguments)
    assert "decisions, clock" in printed.output
    wrong = CliRunner().invoke(cli, [*arguments, "--policy", "threshold {alfa: 1}"])
    assert (wrong.exit_code, "did you mean alpha" in wrong.output) == (2, True)


def test_policy_keeps_the_scenarios_keys_when_only_some_are_overridden(small: Path) -> None:
    scenario = read_scenario(small, ["policy={name: threshold, alpha: 1.5, loops: [scale]}"])
    assert policy_of(scenario, "threshold {loops: [clock]}") == ThresholdConfig(
        loops=("clock",), scale=ScaleThresholdConfig(alpha=1.5), shard=ShardThresholdConfig(alpha=1.5)
    )
    assert policy_of(scenario, "freesh {order: fcfs}") == FreeshConfig(order="fcfs")
    assert policy_of(scenario, None) == scenario.policy


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_scenario_of_the_repository_is_valid(path: Path) -> None:
    read_scenario(path)


def test_partial_result_is_left_when_interrupted(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the process while it simulates, and it stops where its accounts are complete."""
    out = tmp_path / "out.json"
    simulate, interrupted_s = runner.simulate, []

    def interrupted(*arguments: Any, progress: Callable[[int, float], None] | None, **options: Any) -> Outcome:
        def step(arrived: int, now_s: float) -> None:
            assert progress is not None
            if not interrupted_s:
                interrupted_s.append(now_s)
                signal.raise_signal(signal.SIGINT)
            progress(arrived, now_s)

        return simulate(*arguments, progress=progress and step, **options)

    monkeypatch.setattr(runner, "simulate", interrupted)
    more = ["--set", "workload.requests=3000", "--json", str(out), "--parquet", str(tmp_path)]
    result = CliRunner().invoke(cli, ["simulate", str(small), *more])
    assert result.exit_code == 130, result.output
    assert "Interrupted" in result.output
    found = json.loads(out.read_text())
    assert found["partial"]
    assert [found["simulated_s"]] == pytest.approx(interrupted_s)
    assert 0 < found["finished"] < found["requests"] < 3000
    assert polars.read_parquet(tmp_path / "requests.parquet").height == found["requests"]


def test_picture_is_drawn_when_asked(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "instance.html"
    result = CliRunner().invoke(cli, ["simulate", str(small), "--picture", str(out)])
    assert result.exit_code == 0, result.output
    drawn = out.read_text()
    for about in ("batch, sequences", "power, W", "KV cache, share", "waiting, requests"):
        assert drawn.count(f'"text": "{about}"') == 2, "in the light theme and in the dark one"


@pytest.mark.parametrize(
    ("policy", "factor"),
    [
        ("dynamollm {order: edf}", 1.0),
        ("dynamollm {order: edf, slo_factor: 10}", 2.0),
        ("dynamollm", None),
        ("freesh {order: edf}", None),
    ],
)
def test_requests_are_due_by_their_class_s_limits_where_a_policy_has_them(policy: str, factor: float | None) -> None:
    found = read_scenario(
        SCENARIOS / "dynamollm-spike.yaml", ["workload.requests=200", "length_predictor.gaussian=0.3"]
    )
    scenario = replace(found, policy=policy_of(found, policy))
    loader = Loader(scenario, [scenario.groups[0].instances[0]])
    one = loader.load(requests_of(scenario).first[0])
    if factor is None:
        alone_s = (one.deadline_s - one.arrival_s) / WINDOW_FACTOR
        exact = one.predicted_tokens == one.output_tokens
        assert (one.due_s - one.arrival_s)[exact] == pytest.approx(WINDOW_FACTOR * alone_s[exact])
        return
    ttft_s = np.select([one.prompt_tokens < 256, one.prompt_tokens < 1024], [0.25, 0.4], 2.0)
    expected_s = factor * (ttft_s + 0.1 * (one.predicted_tokens - 1))
    assert one.due_s - one.arrival_s == pytest.approx(expected_s)
    assert len(set(ttft_s)) == 3
    assert (one.predicted_tokens != one.output_tokens).any()


OWN_TYPE = """
gpu_types:
  Lab-80GB:
    {peak_tflops: 312, memory_gb: 85, memory_gb_per_s: 2039, link_gb_per_s: 600, tdp_w: 300, min_mhz: 210,
     max_mhz: 1410, like: A100-80GB, source: a test}
"""


@pytest.fixture
def own_type(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "own.yaml"
    path.write_text(SMALL.replace("A100-80GB", "Lab-80GB") + OWN_TYPE)
    yield path
    gpu_types.declare(())


def test_scenario_stands_by_itself_when_it_brings_its_gpu_types(small: Path, own_type: Path) -> None:
    usual, frugal = figures(small), figures(own_type)
    assert frugal["requests"] == usual["requests"]
    assert frugal["energy_wh"] < usual["energy_wh"]  # of a type of a lower TDP
    assert [one.name for one in gpu_types.declared()] == ["Lab-80GB"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("gpu_types.Lab-80GB.like=H20-96GB", r"gpu_types\.Lab-80GB\.like: 'H20-96GB' is none of"),
        ("gpu_types.Lab-80GB.tdp_w=many", r"gpu_types\.Lab-80GB\.tdp_w: 'many' is not a number"),
        ("gpu_types.Lab-80GB.colour=red", r"gpu_types\.Lab-80GB\.colour: unknown"),
        ("gpu_types.A100-80GB.tdp_w=300", r"gpu_types\.A100-80GB: is a type that is shipped"),
    ],
)
def test_field_is_named_when_a_gpu_type_is_wrong(own_type: Path, setting: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        read_scenario(own_type, (setting,))


FLEET = """
cut_fleet: true
fleet: {model: Llama3-70B, gpu: A100-80GB, tp: 4, tp_choices: [4], site: here}
sites: {here: {gpus: {A100-80GB: 8}, gpus_per_node: 4, empty_gpus_powered: true}}
workload: {generate: poisson, rate_rps: 3, requests: 60, lengths: exponential, prompt_tokens: 500, output_tokens: 100}
slo: {ttft_s: 2, tpot_s: 0.1}
"""


def test_policies_begin_with_what_is_declared_where_a_scenario_says_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    no_spare = "greenserve {tuning: {right_size: {learn_s: 0}}}"
    few, many = (
        figures(path, f"declared={{rps: {rps}, prompt_tokens: 500, output_tokens: 100}}", policy=no_spare)
        for rps in (0.5, 12.0)
    )
    assert few["gpu_hours"] < many["gpu_hours"]
    assert few["gpu_hours"] + few["empty_gpu_hours"] == pytest.approx(8 * few["simulated_s"] / 3600.0)
    with pytest.raises(ScenarioError, match=r"declared\[0\].rps: missing; a declared load has rps, prompt_tokens"):
        figures(path, "declared={prompt_tokens: 500, output_tokens: 100}")


def test_policies_know_of_no_load_where_a_scenario_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    nothing, known = (figures(path, *more, policy="threshold") for more in ((), ("declared=requests",)))
    assert nothing["gpu_hours"] == pytest.approx(8 * nothing["simulated_s"] / 3600.0), "it begins with all GPUs"
    assert known["gpu_hours"] < nothing["gpu_hours"]
    with pytest.raises(ScenarioError, match="declared: unknown 'all'; known: requests"):
        figures(path, "declared=all")


def test_load_that_a_scenario_declares_is_that_of_each_service_without_one(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    workload = "{generate: poisson, rate_rps: 3, requests: 60}"
    own = "{rps: 2, prompt_tokens: 9, output_tokens: 7}"
    path.write_text(
        "fleet: {model: Llama3-70B, gpu: A100-80GB, tp: 4}\nslo: {ttft_s: 2}\ndeclared: requests\n"
        f"services: {{a: {{workload: {workload}}}, b: {{workload: {workload}, declared: {own}}}}}\n"
    )
    first, second = read_scenario(path).services
    assert (first.declared, second.declared) == (None, (DeclaredLoad(2.0, 9.0, 7.0),))


def test_loops_without_a_period_of_their_own_take_the_scenarios(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET + "periods: {carbon_s: 60, shard_s: 20}\n")
    scenario = read_scenario(path)
    found = policy_of(scenario, "freesh {shard_period_s: 45}")
    assert isinstance(found, FreeshConfig)
    assert (found.carbon_period_s, found.step_s, found.scale_period_s, found.shard_period_s) == (60, 10, 1800, 45)


def test_profiles_of_a_class_count_before_the_engine_model(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    profiles = "{A100-80GB/TP4: {max_rps: 0.5, power_w: 900, source: measured}}"
    known = FLEET + "declared: requests\n"
    path.write_text(known + f"classes: [{{name: all, profiles: {profiles}}}]\n")
    slow = figures(path, policy="min_energy {alpha: 1.0}")
    path.write_text(known)
    assert slow["gpu_hours"] > figures(path, policy="min_energy {alpha: 1.0}")["gpu_hours"]


def test_epochs_are_when_the_scenario_says_that_they_are_due(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET + "epochs_due: {scale_s: 13.5}\n")
    scenario = read_scenario(path)
    run = run_scenario(scenario, requests_of(scenario), "greenserve")
    at_s = [decision.at_s for decision in run.outcome.decisions if decision.loop == "scale"]
    assert at_s[:2] == [3.5, 13.5]
