"""What clock rules know of an engine: its load and lengths from counters, its profile and sensitivities."""

from __future__ import annotations

from typing import Any

import pytest

from core.engine import measured
from core.engine.engine_model import GPUS, engine_model
from core.engine.load_profile import clocks, from_costs, modelled
from core.engine.profiles import profiles_of
from core.observations.clock_given import Sensitivity
from core.observations.mode_profile import Lengths
from pools.agent.clocks.engine_figures import EngineKind, Figures, Load, ProfileShape
from tests.fakes.engine_profiles import rows
from tests.fakes.node import engine_reading

KIND = EngineKind("Llama3-70B", "A100-80GB", 4, "vllm-v1")
PLAIN = ProfileShape()


def counted(ended: float, running: int = 0, waiting: int = 0, prompt: float = 500.0, output: float = 200.0) -> Any:
    return engine_reading(
        running=running,
        waiting=waiting,
        requests_total=ended,
        request_prompt_tokens_total=ended * prompt,
        request_output_tokens_total=ended * output,
    )


def test_load_is_what_came_whether_it_ended_runs_or_waits() -> None:
    load = Load()
    assert load.rps(60.0) is None
    load.add(0.0, counted(10.0, running=2))
    assert (load.rps(60.0), load.lengths) == (None, None)
    load.add(1.0, counted(11.0, running=4, waiting=1))  # one ended, three more are in it
    load.add(2.0, counted(12.0, running=4, waiting=0))
    assert load.rps(60.0) == pytest.approx(2.0)
    assert load.lengths == Lengths(500.0, 200.0).rounded


def test_load_of_a_minute_counts_when_a_period_has_a_lull() -> None:
    load = Load()
    for second in range(0, 121, 5):
        load.add(float(second), counted(ended=second * 2.0))
        load.rps(60.0)
    load.add(125.0, counted(ended=240.0))
    assert load.rps(60.0) == pytest.approx(2.0 * 55.0 / 60.0, rel=0.01)
    load.add(130.0, counted(ended=290.0))
    assert load.rps(60.0) == pytest.approx(10.0)  # a burst counts at once


def test_load_of_five_seconds_counts_when_it_is_asked_for_more_often() -> None:
    load, ended = Load(), 0.0
    load.add(0.0, counted(0.0))
    asked = []
    for half in range(1, 41):
        ended += float(half % 2 == 0)  # one each second, in every other look
        load.add(half / 2.0, counted(ended))
        asked.append(load.rps(60.0))
    assert asked[10:] == pytest.approx([1.0] * 30, rel=0.21)
    load.add(20.5, counted(ended + 10.0))
    assert load.rps(60.0) == pytest.approx(3.0, rel=0.1)  # not 20


def test_lengths_follow_what_requests_are_now_when_they_change() -> None:
    load = Load()
    ended, prompt = 0.0, 0.0
    for second in range(1200):
        ended, prompt = ended + 1.0, prompt + (100.0 if second < 100 else 4000.0)
        totals = {"request_prompt_tokens_total": prompt, "request_output_tokens_total": 50.0 * ended}
        load.add(float(second), engine_reading(requests_total=ended, **totals))
    assert load.lengths is not None
    assert load.lengths.prompt_tokens == pytest.approx(4000.0, rel=0.07)
    assert load.lengths.output_tokens == pytest.approx(50.0, rel=0.05)


def test_nothing_is_counted_when_the_engine_was_started_anew_or_does_not_tell() -> None:
    load = Load()
    load.add(0.0, counted(100.0))
    load.add(1.0, counted(3.0))
    assert (load.rps(60.0), load.lengths) == (None, None)
    load.add(2.0, counted(4.0))
    assert load.rps(60.0) == pytest.approx(1.0)
    silent = Load()
    silent.add(0.0, engine_reading())
    silent.add(1.0, engine_reading())
    assert (silent.rps(60.0), silent.lengths) == (None, None)


def test_profile_is_made_once_when_lengths_hardly_change() -> None:
    figures = Figures()
    profile = figures.profile(KIND, Lengths(500.0, 200.0).rounded, PLAIN)
    assert profile is not None
    assert figures.profile(KIND, Lengths(498.0, 199.0).rounded, PLAIN) is profile
    assert (
        figures.profile(EngineKind("nobody's", "A100-80GB", 4, "vllm-v1"), Lengths(500.0, 200.0).rounded, PLAIN) is None
    )


def test_profile_is_of_the_clocks_and_the_iteration_that_are_asked_for() -> None:
    figures, lengths = Figures(), Lengths(500.0, 200.0).rounded
    plain = figures.profile(KIND, lengths, PLAIN)
    fine = figures.profile(KIND, lengths, ProfileShape(60.0, "voltage", None, 1024))
    assert plain is not None
    assert fine is not None
    assert (plain.mhz[0], plain.mhz[1] - plain.mhz[0]) == (800.0, 200.0)
    assert (fine.mhz[0], fine.mhz[1] - fine.mhz[0]) == (GPUS["A100-80GB"].f_v, 60.0)
    assert (fine.ttft_s[-1] > plain.ttft_s[-1]).all()  # of an iteration with two chunks
    low = figures.profile(KIND, lengths, ProfileShape(floor_mhz=300.0))
    assert low is not None
    assert low.mhz[0] == 300.0


def test_measured_profile_has_the_same_full_iteration_as_the_engine_model() -> None:
    worker = engine_model(KIND.model, KIND.gpu, KIND.tp, KIND.engine)
    mhz = clocks(worker.gpu_params)
    by_model, by_costs = (
        make(worker, 500.0, 200.0, mhz, chunk_tokens=1024, spare_deviations=2.0) for make in (modelled, from_costs)
    )
    assert by_model is not None
    assert by_costs is not None
    assert by_costs.ttft_s == pytest.approx(by_model.ttft_s, rel=1e-6)
    assert by_costs.rps == pytest.approx(by_model.rps, rel=1e-6)


def test_prompts_depend_on_the_clock_more_than_decodes_do() -> None:
    figures = Figures()
    weights = figures.sensitivity(KIND, Lengths(2000.0, 200.0).rounded, 8).weights
    assert 0.0 < weights["tpot"] < weights["e2e"] < weights["ttft"] <= 1.0
    assert figures.sensitivity(KIND, Lengths(2000.0, 200.0).rounded, 200).weights["tpot"] > weights["tpot"]
    assert figures.sensitivity(KIND, None, 8) == Sensitivity()
    assert (
        figures.sensitivity(EngineKind("nobody's", "A100-80GB", 4, "vllm-v1"), Lengths(512.0, 64.0), 8) == Sensitivity()
    )


def test_shape_counts_where_the_engine_model_does_not_know_the_name() -> None:
    figures, lengths = Figures(), Lengths(500.0, 200.0).rounded
    shape = engine_model(KIND.model, KIND.gpu, KIND.tp, KIND.engine).model_params.key
    own = EngineKind("nobody's", KIND.gpu, KIND.tp, KIND.engine, shape)
    known, found = figures.profile(KIND, lengths, PLAIN), figures.profile(own, lengths, PLAIN)
    assert known is not None
    assert found is not None
    assert found.watts == pytest.approx(known.watts, nan_ok=True)
    assert figures.sensitivity(own, lengths, 8).weights == pytest.approx(figures.sensitivity(KIND, lengths, 8).weights)


def test_what_was_measured_counts_before_the_engine_model() -> None:
    lengths = Lengths(500.0, 200.0).rounded
    modelled_s = Figures().profile(KIND, lengths, PLAIN)
    (profile,) = profiles_of(rows(1.5, 1.0, model=KIND.model, tp=KIND.tp, batches=(1, 64), contexts=(100, 1000)))
    try:
        measured.publish((profile,))
        found = Figures().profile(KIND, lengths, PLAIN)
    finally:
        measured.publish(())
    assert modelled_s is not None
    assert found is not None
    assert found.tpot_s[-1][0] == pytest.approx(1.5 * modelled_s.tpot_s[-1][0], rel=0.02)
