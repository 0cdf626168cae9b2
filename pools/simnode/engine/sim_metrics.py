"""The counters of a simulated engine, written as vLLM writes them for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .hand_over import Arriving

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_REQUEST_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)
_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_TRANSFER_BYTES = tuple(2.0**power for power in range(11, 35, 2))
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # level 0, 1, 2


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class EngineCounters:
    """Counters and histograms of one engine since it started; seconds, tokens and bytes."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.transferred_tokens = 0  # of those, whose cache came from another engine
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self.time_to_first_token_s = Histogram(_TTFT_S)
        self.inter_token_latency_s = Histogram(_TOKEN_S)
        self.time_per_output_token_s = Histogram(_TOKEN_S)  # a request's mean
        self.e2e_s = Histogram(_REQUEST_S)
        self.queue_time_s = Histogram(_REQUEST_S)
        self.request_prompt_tokens = Histogram(_REQUEST_TOKENS)  # of those that ended
        self.request_generation_tokens = Histogram(_REQUEST_TOKENS)
        self.iteration_tokens = Histogram(_ITERATION_TOKENS)
        self.transfer_s = Histogram(_TRANSFER_S)
        self.transfer_bytes = Histogram(_TRANSFER_BYTES)

    def prompt(self, tokens: int, transferred: int) -> None:
        """A prompt is in the cache, that much of it from another engine."""
        self.prompt_tokens += tokens
        self.transferred_tokens += transferred

    def transferred(self, arriving: Arriving) -> None:
        self.transfer_s.observe(arriving.transfer_s)
        self.transfer_bytes.observe(arriving.size_bytes)


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """The state of an engine. `loading` of those `waiting` wait for their cache. `kv_usage`: 0..1."""

    running: int
    waiting: int
    kv_usage: float
    loading: int = 0
    sleep_level: int = 0
    kv_expired: int = 0  # caches kept for other engines that nobody fetched, so far


def render(counters: EngineCounters, model: str, gauges: EngineGauges) -> str:
    """Returns Prometheus text with vLLM's metric names."""
    text = _Text(f'model_name="{model}",engine="0"')
    text.family("num_requests_running", "gauge", gauges.running)
    text.family("num_requests_waiting", "gauge", gauges.waiting)
    reasons = {"capacity": gauges.waiting - gauges.loading, "deferred": gauges.loading}
    text.family("num_requests_waiting_by_reason", "gauge", reasons, "reason")
    text.family("kv_cache_usage_perc", "gauge", gauges.kv_usage)
    states = {state: float(level == gauges.sleep_level) for level, state in enumerate(SLEEP_STATES)}
    text.family("engine_sleep_state", "gauge", states, "sleep_state")
    text.family("prompt_tokens_total", "counter", counters.prompt_tokens)
    computed = counters.prompt_tokens - counters.transferred_tokens
    sources = {"local_compute": computed, "external_kv_transfer": counters.transferred_tokens}
    text.family("prompt_tokens_by_source_total", "counter", sources, "source")
    text.family("generation_tokens_total", "counter", counters.generation_tokens)
    text.family("num_preemptions_total", "counter", counters.preemptions)
    text.family("request_success_total", "counter", counters.finished, "finished_reason")
    text.family("nixl_num_kv_expired_reqs_total", "counter", gauges.kv_expired)
    for name, histogram in (
        ("time_to_first_token_seconds", counters.time_to_first_token_s),
        ("inter_token_latency_seconds", counters.inter_token_latency_s),
        ("request_time_per_output_token_seconds", counters.time_per_output_token_s),
        ("e2e_request_latency_seconds", counters.e2e_s),
        ("request_queue_time_seconds", counters.queue_time_s),
        ("request_prompt_tokens", counters.request_prompt_tokens),
        ("request_generation_tokens", counters.request_generation_tokens),
        ("iteration_tokens_total", counters.iteration_tokens),
        ("nixl_xfer_time_seconds", counters.transfer_s),
        ("nixl_bytes_transferred", counters.transfer_bytes),
    ):
        text.histogram(name, histogram)
    return "\n".join(text.lines) + "\n"


class _Text:
    """Prometheus text in the making; `labels` are on every sample."""

    def __init__(self, labels: str) -> None:
        self.lines: list[str] = []
        self._labels = labels

    def family(self, name: str, kind: str, value: float | Mapping[str, float], label: str = "") -> None:
        """Adds one sample, or one for each value of `label`."""
        self.lines.append(f"# TYPE vllm:{name} {kind}")
        if isinstance(value, Mapping):
            self.lines += [f'vllm:{name}{{{self._labels},{label}="{key}"}} {one}' for key, one in sorted(value.items())]
        else:
            self.lines.append(f"vllm:{name}{{{self._labels}}} {value}")

    def histogram(self, name: str, histogram: Histogram) -> None:
        self.lines.append(f"# TYPE vllm:{name} histogram")
        seen = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            seen += count
            self.lines.append(f'vllm:{name}_bucket{{{self._labels},le="{bound}"}} {seen}')
        self.lines.append(f"vllm:{name}_sum{{{self._labels}}} {histogram.total!r}")
        self.lines.append(f"vllm:{name}_count{{{self._labels}}} {seen}")
