"""Reads vLLM's Prometheus metrics, under the names of current and of older versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from core.ports import EngineReading
from pools.metric_names import VLLM, VLLM_KV_USAGE

from ..http_client import HttpClient
from .engine_access import OPEN, EngineAccess

TIMEOUT_S = 0.5
_FORGET_AFTER_S = 60.0

# The gaps themselves tell of now; a request's mean, the last choice, only of requests that have ended.
_TPOT = (*VLLM.itl, *VLLM.tpot)

# Lengths of requests that have ended. An engine without them serves as well; only its lengths are not known.
_REQUESTS = f"{VLLM.output_lengths[0]}_count"
_REQUEST_PROMPT = f"{VLLM.prompt_lengths[0]}_sum"
_REQUEST_OUTPUT = f"{VLLM.output_lengths[0]}_sum"

_LENGTHS = (_REQUESTS, _REQUEST_PROMPT, _REQUEST_OUTPUT)

_VALUES = frozenset((*VLLM.running, *VLLM.waiting, *VLLM_KV_USAGE, *VLLM.prompt_tokens, *VLLM.output_tokens, *_LENGTHS))
_MEANS = frozenset(name + suffix for name in (*VLLM.ttft, *_TPOT, *VLLM.e2e) for suffix in ("_sum", "_count"))


@dataclass(slots=True)
class _LastReading:
    """The state that is kept of an engine between two readings."""

    url: str
    access: EngineAccess
    client: HttpClient
    seen_s: float
    means: dict[str, tuple[float, float]] = field(default_factory=dict)  # histogram -> (sum, count)


@dataclass(frozen=True, slots=True)
class Samples:
    """Values by metric name, summed over the engine's label sets (data-parallel ranks), and how many those were."""

    totals: dict[str, float]
    counts: dict[str, int]


def parse(text: str) -> Samples:
    """Returns the samples of Prometheus text that are read here. Lines of other metrics are skipped."""
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if not line.startswith(VLLM.prefix):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name not in _VALUES and name not in _MEANS:
            continue
        try:
            value = float(line.rpartition("}")[2].split()[0] if "}" in line else line.split()[1])
        except (IndexError, ValueError):
            continue  # a broken line counts as a missing metric, which the reading names
        totals[name] = totals.get(name, 0.0) + value
        counts[name] = counts.get(name, 0) + 1
    return Samples(totals, counts)


def parse_reading(page: bytes) -> EngineReading:
    """Reads one page of metrics; means, which need two, are None."""
    return _reading(time.time(), parse(page.decode(errors="replace")), {})


class VllmMetrics:
    """`ports.EngineMetrics` for vLLM and for what speaks like it. Blocks for at most its time-out."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        timeout_s: float = TIMEOUT_S,
        access: Callable[[str], EngineAccess] = lambda uid: OPEN,
    ) -> None:
        """Speaks to each instance as `access` says of its uid."""
        self._access = access
        self._clock = clock
        self._timeout_s = timeout_s
        self._engines: dict[str, _LastReading] = {}

    def scrape(self, uid: str, url: str) -> EngineReading:
        now_s = self._clock()
        engine = self._engine(uid, url, now_s)
        text = engine.client.call("GET", "/metrics").decode(errors="replace")
        return _reading(now_s, parse(text), engine.means)

    def close(self) -> None:
        for engine in self._engines.values():
            engine.client.close()
        self._engines.clear()

    def _engine(self, uid: str, url: str, now_s: float) -> _LastReading:
        engine, access = self._engines.get(uid), self._access(uid)
        if engine is None or engine.url != url or engine.access != access:
            for old in [key for key, known in self._engines.items() if now_s - known.seen_s > _FORGET_AFTER_S]:
                self._engines.pop(old).client.close()
            engine = self._engines[uid] = _LastReading(
                url, access, HttpClient(url, self._timeout_s, access.headers, access.trust), now_s
            )
        engine.seen_s = now_s
        return engine


def _reading(now_s: float, samples: Samples, before: dict[str, tuple[float, float]]) -> EngineReading:
    missing: list[str] = []

    def total(names: tuple[str, ...]) -> float | None:
        for name in names:
            if name in samples.totals:
                return samples.totals[name]
        missing.append(names[0])
        return None

    def share(names: tuple[str, ...]) -> float | None:
        for name in names:
            if name in samples.totals:
                return samples.totals[name] / samples.counts[name]
        missing.append(names[0])
        return None

    def mean(names: tuple[str, ...]) -> float | None:
        for name in names:
            if f"{name}_sum" in samples.totals and f"{name}_count" in samples.totals:
                return _mean_since(name, samples.totals[f"{name}_sum"], samples.totals[f"{name}_count"], before)
        missing.append(names[0])
        return None

    running, waiting = total(VLLM.running), total(VLLM.waiting)
    return EngineReading(
        at_s=now_s,
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        kv_usage=share(VLLM_KV_USAGE),
        prompt_tokens_total=total(VLLM.prompt_tokens),
        generation_tokens_total=total(VLLM.output_tokens),
        ttft_s=mean(VLLM.ttft),
        tpot_s=mean(_TPOT),
        e2e_s=mean(VLLM.e2e),
        missing=tuple(missing),
        requests_total=samples.totals.get(_REQUESTS),
        request_prompt_tokens_total=samples.totals.get(_REQUEST_PROMPT),
        request_output_tokens_total=samples.totals.get(_REQUEST_OUTPUT),
    )


def _mean_since(name: str, total: float, count: float, before: dict[str, tuple[float, float]]) -> float | None:
    """Returns a histogram's mean since the reading before; None when nothing was added, or there was none before."""
    known = before.get(name)
    before[name] = (total, count)
    if known is None or count <= known[1] or total < known[0]:  # going down: the engine was restarted
        return None
    return (total - known[0]) / (count - known[1])
