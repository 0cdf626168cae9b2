"""What a simulated engine counts, written as vLLM writes it for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

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
    """Counters and histograms of one engine since it started; seconds and tokens."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self.time_to_first_token_s = Histogram(_TTFT_S)
        self.inter_token_latency_s = Histogram(_TOKEN_S)
        self.time_per_output_token_s = Histogram(_TOKEN_S)  # a request's mean
        self.e2e_s = Histogram(_REQUEST_S)


def render(counters: EngineCounters, model: str, running: int, waiting: int, kv_usage: float) -> str:
    """Prometheus text with vLLM's metric names. `kv_usage`: 0..1."""
    label = f'model_name="{model}",engine="0"'
    lines: list[str] = []

    def one(name: str, kind: str, value: float) -> None:
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.append(f"vllm:{name}{{{label}}} {value}")

    one("num_requests_running", "gauge", running)
    one("num_requests_waiting", "gauge", waiting)
    one("kv_cache_usage_perc", "gauge", kv_usage)
    one("prompt_tokens_total", "counter", counters.prompt_tokens)
    one("generation_tokens_total", "counter", counters.generation_tokens)
    one("num_preemptions_total", "counter", counters.preemptions)
    lines.append("# TYPE vllm:request_success_total counter")
    lines.extend(
        f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count}'
        for reason, count in sorted(counters.finished.items())
    )
    for name, histogram in (
        ("time_to_first_token_seconds", counters.time_to_first_token_s),
        ("inter_token_latency_seconds", counters.inter_token_latency_s),
        ("request_time_per_output_token_seconds", counters.time_per_output_token_s),
        ("e2e_request_latency_seconds", counters.e2e_s),
    ):
        lines.extend(_histogram(name, label, histogram))
    return "\n".join(lines) + "\n"


def _histogram(name: str, label: str, histogram: Histogram) -> list[str]:
    lines = [f"# TYPE vllm:{name} histogram"]
    seen = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        seen += count
        lines.append(f'vllm:{name}_bucket{{{label},le="{bound}"}} {seen}')
    lines.append(f"vllm:{name}_sum{{{label}}} {histogram.total!r}")
    lines.append(f"vllm:{name}_count{{{label}}} {seen}")
    return lines
