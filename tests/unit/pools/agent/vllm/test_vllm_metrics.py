"""The agent's reading of engine metrics, against what simulated engines write and older vLLM wrote."""

from __future__ import annotations

import pytest

from core.ports import EngineReading, RetryableError
from pools.agent.vllm.vllm_metrics import VllmMetrics, _reading, parse
from pools.simnode.engine.sim_metrics import EngineCounters, EngineGauges, Histogram, render
from tests.ports import free_port

OLDER = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:prompt_tokens_total{model_name="m"} 1000.0
vllm:generation_tokens_total{model_name="m"} 50.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 2.0
vllm:time_to_first_token_seconds_count{model_name="m"} 4.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 1.0
vllm:time_per_output_token_seconds_count{model_name="m"} 40.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 9.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 3.0
python_gc_objects_collected_total{generation="0"} 7.0
"""


def read(text: str, before: dict[str, tuple[float, float]] | None = None) -> EngineReading:
    return _reading(1.0, parse(text), {} if before is None else before)


def test_older_names_are_read_when_the_engine_has_no_newer_ones() -> None:
    reading = read(OLDER)
    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 1, 0.25)
    assert (reading.prompt_tokens_total, reading.generation_tokens_total) == (1000.0, 50.0)
    assert reading.missing == ()


def test_missing_metrics_are_named_and_unknown_when_the_engine_lacks_them() -> None:
    reading = read("vllm:num_requests_running 2\n")
    assert reading.running == 2
    assert (reading.waiting, reading.kv_usage, reading.ttft_s) == (None, None, None)
    assert "vllm:num_requests_waiting" in reading.missing
    assert "vllm:time_to_first_token_seconds" in reading.missing
    assert "vllm:num_requests_running" not in reading.missing


def test_latencies_are_means_since_the_reading_before_when_there_was_one() -> None:
    counters = EngineCounters()
    before: dict[str, tuple[float, float]] = {}
    counters.time_to_first_token_s.observe(100.0)
    first = read(render(counters, "m", EngineGauges(0, 0, 0.0)), before)
    assert (first.ttft_s, first.tpot_s) == (None, None)  # nothing to compare with yet
    counters.time_to_first_token_s.observe(0.2)
    counters.time_to_first_token_s.observe(0.4)
    counters.inter_token_latency_s.observe(0.05, times=10)
    second = read(render(counters, "m", EngineGauges(1, 2, 0.5)), before)
    assert second.ttft_s == pytest.approx(0.3)
    assert second.tpot_s == pytest.approx(0.05)
    assert second.e2e_s is None
    assert (second.running, second.waiting, second.kv_usage) == (1, 2, 0.5)
    assert read(render(counters, "m", EngineGauges(0, 0, 0.0)), before).ttft_s is None  # nothing since


def test_latencies_are_unknown_once_when_the_engine_was_restarted() -> None:
    before: dict[str, tuple[float, float]] = {}
    counters = EngineCounters()
    counters.e2e_s.observe(50.0, times=10)
    read(render(counters, "m", EngineGauges(0, 0, 0.0)), before)
    fresh = EngineCounters()
    fresh.e2e_s.observe(1.0)
    assert read(render(fresh, "m", EngineGauges(0, 0, 0.0)), before).e2e_s is None
    fresh.e2e_s.observe(3.0)
    assert read(render(fresh, "m", EngineGauges(0, 0, 0.0)), before).e2e_s == pytest.approx(3.0)


def test_ranks_are_added_up_and_usage_averaged_when_the_engine_is_data_parallel() -> None:
    reading = read(
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.4\n'
    )
    assert reading.running == 5
    assert reading.kv_usage == pytest.approx(0.3)


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running{", "vllm:num_requests_running{} x", "\x00\x01"])
def test_reading_has_no_values_when_the_text_is_broken(text: str) -> None:
    assert read(text).running is None


def test_histogram_is_cumulative_in_prometheus_text_when_rendered() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    counters = EngineCounters()
    counters.e2e_s = histogram
    lines = [
        line for line in render(counters, "m", EngineGauges(0, 0, 0.0)).splitlines() if line.startswith("vllm:e2e")
    ]
    assert [line.rpartition(" ")[2] for line in lines] == ["2", "3", "4", "3.65", "4"]
    assert 'le="+Inf"' in lines[2]


def test_scrape_is_retryable_when_the_engine_is_not_there() -> None:
    with pytest.raises(RetryableError, match="refused"):
        VllmMetrics().scrape("u", f"http://127.0.0.1:{free_port()}")


def test_lengths_of_ended_requests_are_read_and_not_missed_when_the_engine_lacks_them() -> None:
    counters = EngineCounters()
    for prompt, output in ((100, 10), (300, 30)):
        counters.request_prompt_tokens.observe(prompt)
        counters.request_generation_tokens.observe(output)
    reading = read(render(counters, "m", EngineGauges(0, 0, 0.0)))
    assert reading.requests_total == 2.0
    assert (reading.request_prompt_tokens_total, reading.request_output_tokens_total) == (400.0, 40.0)
    older = read(OLDER)
    assert (older.requests_total, older.missing) == (None, ())
