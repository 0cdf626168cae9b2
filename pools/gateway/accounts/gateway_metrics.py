"""Counters and histograms in Prometheus' text format, without a library: a few dictionary writes a request."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from pools import wire

from .credible_usage import NOT_CREDIBLE

LATENCY_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0, 120.0)
TOKEN_BOUNDS_S = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
ROUTING_BOUNDS_S = (25e-6, 50e-6, 100e-6, 200e-6, 300e-6, 500e-6, 1e-3, 5e-3)

PREFIX = "greenserve_gateway_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


class Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Labels) -> list[str]:
        total = 0
        out = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            out.append(f"{name}_bucket{_braces((*labels, ('le', le)))} {total}")
        return [*out, f"{name}_sum{_braces(labels)} {self._sum!r}", f"{name}_count{_braces(labels)} {total}"]


class Metrics:
    """All that the gateway counts. Values that others hold (gauges) are passed to `text`."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = defaultdict(int)  # service, endpoint, status
        self.refusals: dict[int, int] = defaultdict(int)  # HTTP status, of what reached no service
        self.tokens: dict[tuple[str, str], int] = defaultdict(int)  # service, prompt | output
        self.adapter_requests: dict[tuple[str, str, str], int] = defaultdict(int)  # service, adapter, status
        self.adapter_tokens: dict[tuple[str, str, str], int] = defaultdict(int)  # service, adapter, prompt | output
        self.retries = 0
        self.not_credible = 0
        self.lost: dict[str, int] = defaultdict(int)  # service: admitted though late already
        self.queue_s: dict[str, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))
        self.ttft_s: dict[str, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))
        self.tpot_s: dict[str, Histogram] = defaultdict(lambda: Histogram(TOKEN_BOUNDS_S))
        self.itl_max_s: dict[str, Histogram] = defaultdict(lambda: Histogram(TOKEN_BOUNDS_S))
        self.e2e_s: dict[str, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))
        self.routing_s = Histogram(ROUTING_BOUNDS_S)

    def count(self, row: wire.RequestRow) -> None:
        self.requests[row.service, row.endpoint, row.status] += 1
        if row.tokens_source == "usage":
            self.tokens[row.service, "prompt"] += row.prompt_tokens or 0
            self.tokens[row.service, "output"] += row.output_tokens or 0
        if row.adapter is not None:
            self._count_adapter(row, row.adapter)
        self.retries += row.attempts - 1 if row.attempts > 1 else 0
        self.not_credible += row.error.startswith(NOT_CREDIBLE)
        self.lost[row.service] += row.lost
        if row.queue_s is not None:
            self.queue_s[row.service].observe(row.queue_s)
        if row.ttft_s is not None:
            self.ttft_s[row.service].observe(row.ttft_s)
        if row.tpot_s is not None:
            self.tpot_s[row.service].observe(row.tpot_s)
        if row.itl_max_s is not None:
            self.itl_max_s[row.service].observe(row.itl_max_s)
        if row.e2e_s is not None and row.status == "ok":
            self.e2e_s[row.service].observe(row.e2e_s)

    def _count_adapter(self, row: wire.RequestRow, adapter: str) -> None:
        self.adapter_requests[row.service, adapter, row.status] += 1
        if row.tokens_source == "usage":
            self.adapter_tokens[row.service, adapter, "prompt"] += row.prompt_tokens or 0
            self.adapter_tokens[row.service, adapter, "output"] += row.output_tokens or 0

    def text(
        self,
        gauges: dict[str, tuple[str, float]],
        counters: dict[str, tuple[str, float]],
        families: Iterable[tuple[str, str, list[tuple[Labels, float]]]] = (),
        everywhere: Labels = (),
    ) -> bytes:
        """Returns the page. `gauges` and `counters` map a name without prefix to (help, value).

        Args:
            families: Counters with labels: name, help, samples.
            everywhere: Labels of every sample.
        """
        page = _Page(everywhere)
        page.family("requests_total", "counter", "Requests that reached a service, by how they ended.")
        for (service, endpoint, status), n in sorted(self.requests.items()):
            page.sample("requests_total", (("service", service), ("endpoint", endpoint), ("status", status)), n)
        page.family("refusals_total", "counter", "Requests refused before they reached a service, by HTTP status.")
        for code, n in sorted(self.refusals.items()):
            page.sample("refusals_total", (("code", str(code)),), n)
        page.family("tokens_total", "counter", "Tokens by the engines' usage.")
        for (service, kind), n in sorted(self.tokens.items()):
            page.sample("tokens_total", (("service", service), ("kind", kind)), n)
        page.family("adapter_requests_total", "counter", "Requests by a LoRA adapter's name, by how they ended.")
        for (service, adapter, status), n in sorted(self.adapter_requests.items()):
            page.sample("adapter_requests_total", (("service", service), ("adapter", adapter), ("status", status)), n)
        page.family("adapter_tokens_total", "counter", "Tokens of requests by a LoRA adapter's name.")
        for (service, adapter, kind), n in sorted(self.adapter_tokens.items()):
            page.sample("adapter_tokens_total", (("service", service), ("adapter", adapter), ("kind", kind)), n)
        page.family("retries_total", "counter", "Attempts beyond the first.")
        page.sample("retries_total", (), self.retries)
        page.family("usage_not_credible_total", "counter", "Answers whose engine reported token counts that cannot be.")
        page.sample("usage_not_credible_total", (), self.not_credible)
        page.family("lost_total", "counter", "Requests served although they could not keep their own limits any more.")
        for service, n in sorted(self.lost.items()):
            page.sample("lost_total", (("service", service),), n)
        page.histograms("queue_seconds", "Requests that waited in a queue of the gateway: for how long.", self.queue_s)
        page.histograms("time_to_first_token_seconds", "Streams: arrival to the first token relayed.", self.ttft_s)
        page.histograms("time_per_output_token_seconds", "Streams: mean time of a token after the first.", self.tpot_s)
        page.histograms("inter_token_max_seconds", "Streams: the longest wait between two events.", self.itl_max_s)
        page.histograms("request_duration_seconds", "Finished requests: arrival to the last byte.", self.e2e_s)
        page.family("routing_seconds", "histogram", "Choosing an instance.")
        page.lines += self.routing_s.lines(PREFIX + "routing_seconds", everywhere)
        for name, text, samples in families:
            page.family(name, "counter", text)
            for labels, value in samples:
                page.sample(name, labels, value)
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, (text, value) in values.items():
                page.family(name, kind, text)
                page.sample(name, (), value)
        return ("\n".join(page.lines) + "\n").encode()


class _Page:
    def __init__(self, everywhere: Labels) -> None:
        self.lines: list[str] = []
        self._everywhere = everywhere

    def family(self, name: str, kind: str, text: str) -> None:
        self.lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]

    def sample(self, name: str, labels: Labels, value: float) -> None:
        self.lines.append(f"{PREFIX}{name}{_braces((*self._everywhere, *labels))} {value!r}")

    def histograms(self, name: str, text: str, by_service: dict[str, Histogram]) -> None:
        self.family(name, "histogram", text)
        for service, histogram in sorted(by_service.items()):
            self.lines += histogram.lines(PREFIX + name, (*self._everywhere, ("service", service)))


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = (f'{key}="{_escaped(value)}"' for key, value in labels)
    return "{" + ",".join(quoted) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
