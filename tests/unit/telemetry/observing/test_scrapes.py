"""Recorded pages of each engine, read under its own names."""

from __future__ import annotations

import pytest

from pools.metric_names import DCGM_ENERGY, SGLANG, TENSORRT_LLM, VLLM, EngineNames
from pools.simnode.engine.sim_metrics import EngineCounters, EngineGauges, render
from telemetry.observing.engine_courses import EngineCourse, engine_course
from telemetry.observing.scrapes import Scrape, Target, TargetKind, samples_of
from tests.fakes.observed_fleet import LENGTH_S, page


def course_of(name: str, without: str = "\0") -> EngineCourse:
    texts = ("\n".join(line for line in page(name, share).splitlines() if without not in line) for share in (0.0, 1.0))
    scrapes = tuple(Scrape(k * LENGTH_S, samples_of(text)) for k, text in enumerate(texts))
    found = engine_course(Target(name, TargetKind.ENGINE, scrapes))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "engine", "requests", "prompt_tokens", "output_tokens"),
    [
        ("vllm", VLLM, 300, 256_093, 56_073),
        ("sglang", SGLANG, 240, 223_046, 42_724),
        ("trtllm", TENSORRT_LLM, 150, 133_713, 24_338),
    ],
)
def test_page_of_each_engine_is_read_by_its_own_names(
    name: str, engine: EngineNames, requests: float, prompt_tokens: float, output_tokens: float
) -> None:
    course = course_of(name)
    assert course.names is engine
    assert course.model == "Qwen/Qwen2.5-14B-Instruct"
    assert course.missing == ()
    assert course.requests() == requests
    counted = course.counted(engine.prompt_tokens), course.counted(engine.output_tokens)
    assert counted == (prompt_tokens, output_tokens)
    for names in (engine.ttft, engine.e2e):
        buckets = course.buckets(names)
        assert buckets is not None
        assert buckets.count == requests


def test_lengths_are_those_of_what_was_counted_between_the_scrapes() -> None:
    buckets = course_of("vllm").buckets(VLLM.prompt_lengths)
    assert buckets is not None
    assert (buckets.count, buckets.total) == (300, 256_093)
    assert sum(count for _, _, count in buckets.buckets) == 300


def test_metric_that_a_page_lacks_is_named() -> None:
    assert course_of("vllm", without="vllm:time_to_first_token_seconds").missing == VLLM.ttft
    gaps_alone = course_of("vllm", without="vllm:request_time_per_output_token_seconds")
    assert gaps_alone.missing == (), "one of TPOT and ITL is enough"


def test_page_without_a_counter_of_requests_counts_them_by_their_latencies() -> None:
    assert course_of("vllm", without="vllm:request_success").requests() == 300


def test_simulated_engine_is_read_as_vllm_and_lacks_the_prefix_cache_alone() -> None:
    text = render(EngineCounters(), "llama3-70b", EngineGauges(0, 0, 0.0))
    found = engine_course(Target("simulated", TargetKind.ENGINE, (Scrape(0.0, samples_of(text)),)))
    assert found is not None
    assert (found.names, found.model) == (VLLM, "llama3-70b")
    assert found.missing == (VLLM.cached_tokens[0], VLLM.queried_tokens[0])


def test_gauge_that_goes_down_is_no_reset() -> None:
    used = 'vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen2.5-14B-Instruct"} '
    first, last = page("vllm", 0.0), page("vllm", 1.0)
    assert f"{used}0.11" in last
    scrapes = (Scrape(0.0, samples_of(first)), Scrape(300.0, samples_of(last.replace(f"{used}0.11", f"{used}0.01"))))
    found = engine_course(Target("vllm", TargetKind.ENGINE, scrapes))
    assert found is not None
    assert [step.reset for step in found.steps] == [False]
    assert found.requests() == 300


def test_one_page_counts_nothing() -> None:
    found = engine_course(Target("vllm", TargetKind.ENGINE, (Scrape(0.0, samples_of(page("vllm"))),)))
    assert found is not None
    assert (found.requests(), found.buckets(VLLM.ttft)) == (None, None)


def test_page_of_the_exporter_is_no_engine() -> None:
    samples = samples_of(page("dcgm"))
    assert engine_course(Target("dcgm", TargetKind.ENGINE, (Scrape(0.0, samples),))) is None
    energies = {key.label("UUID"): value for key, value in samples.items() if key.name == DCGM_ENERGY}
    assert energies["GPU-0003"] == 1_000_000_000


def test_broken_line_of_a_known_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        samples_of("other_metric nothing\nvllm:prompt_tokens_total nothing\n")


def test_data_parallel_ranks_of_a_page_are_engines_of_their_own() -> None:
    text = page("vllm") + 'vllm:num_requests_running{engine="1",model_name="Qwen/Qwen2.5-14B-Instruct"} 0\n'
    scrapes = (Scrape(0.0, samples_of(text)),)
    found = engine_course(Target("vllm", TargetKind.ENGINE, scrapes))
    assert found is not None
    assert found.ranks == 2
