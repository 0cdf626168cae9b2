"""Simulated services that take turns on a GPU, on the compiled kernel: who is awake, how long requests wait, energy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.engine.overheads import Overheads, cold_start_s, wake_s
from core.simulator.fields import ScenarioError
from core.simulator.kernel.simulated import SimulationError
from core.simulator.runs import runner
from core.simulator.runs.runner import Run
from core.simulator.scenario.scenario import parse_scenario

LOOK_S = 1.0
GPU, MODEL, LARGER = "H100-SXM-80GB", "Llama3-8B", "Qwen2.5-14B"


def run(policy: dict[str, Any], gpus: int = 1, services: int = 3, requests_s: float = 40.0) -> Run:
    """Services of one model, each asked every so many seconds for 10 minutes."""
    workload = {"generate": "poisson", "rate_rps": 1.0 / requests_s, "duration_s": 600, "lengths": "azure-conv"}
    scenario = parse_scenario(
        {
            "name": "turns",
            "seed": 3,
            "policy": {"name": "least_loaded", **policy},
            "overload": "allow",
            "fleet": [
                {"name": model, "count": 1, "model": model, "gpu": GPU, "tp": 1, "engine": "vllm-v1"}
                for model in (MODEL, LARGER)
            ],
            "services": {
                f"s{n}": {"model": LARGER if n == 1 else MODEL, "workload": workload} for n in range(services)
            },
            "slo": {"ttft_s": 20.0},
            "sites": {"site": {"gpus": {GPU: gpus}, "carbon_g_per_kwh": 400}},
        },
        Path("turns.yaml"),
    )
    return runner.run_scenario(scenario, runner.requests_of(scenario))


def test_services_take_turns_on_one_gpu_and_each_request_has_its_answer() -> None:
    found = run({"sleep": "level"}).figures
    assert found["finished"] == found["requests"] > 30
    assert found["gpu_hours"] * 3600.0 <= found["simulated_s"], "one engine at a time"


@pytest.mark.parametrize("kind", ["level", "stop"])
def test_first_token_waits_for_a_look_and_the_waking_when_its_service_sleeps(kind: str) -> None:
    found = run({"sleep": kind, "tuning": {"sleep": {"idle_s": 0.0}}}, gpus=3, requests_s=200.0).figures
    takes_s = wake_s(Overheads(), 1, MODEL, 1) if kind == "level" else cold_start_s(Overheads(), model_name=MODEL)
    assert takes_s < found["ttft_s"]["p50"] < takes_s + LOOK_S + 2.0


def test_service_stays_awake_for_as_long_as_its_policy_says() -> None:
    short = run({"sleep": "level", "tuning": {"sleep": {"idle_s": 0.0}}}, gpus=3).figures
    long = run({"sleep": "level", "tuning": {"sleep": {"idle_s": 600.0}}}, gpus=3).figures
    assert short["energy_wh"] < 0.7 * long["energy_wh"]
    assert short["ttft_s"]["p50"] > long["ttft_s"]["p50"]


def test_weights_that_find_no_memory_are_loaded_anew() -> None:
    """Of 16 and 30 GB one fits: whoever is asked again has been displaced."""
    roomy = run({"sleep": "level"}, services=2).figures
    tight = run({"sleep": "level", "tuning": {"sleep": {"host_memory_gb": 31.0}}}, services=2).figures
    assert roomy["ttft_s"]["p99"] < 20.0 < tight["ttft_s"]["p99"]


def test_decisions_say_who_wakes_and_who_sleeps() -> None:
    texts = [own.summary for own in run({"sleep": "level"}).outcome.decisions]
    assert any("wakes, which takes" in text for text in texts)
    assert any("sleeps" in text for text in texts)


def test_policy_that_splits_requests_is_refused() -> None:
    with pytest.raises((SimulationError, ScenarioError), match=r"policy\.sleep"):
        run({"name": "disaggregated", "sleep": "stop"})
