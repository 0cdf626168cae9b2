"""Measures one step on a running engine: rows of a run for the sweep, rows of rates for a class's load."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.ports import RetryableError
from core.simulator.workload import TraceRequest
from core.types import Limits
from pools.load_generator import ReplayResult, Seen, replay

from .counter_watch import Log, Watch
from .plan import DECODE, PREFILL, RateSearch, Step

# Of a batch's tokens: before, prompts may still be under way; after, the first sequences may have ended.
WINDOW = (0.25, 0.75)
SLO_FACTOR = 5.0  # times a request by itself (DynamoLLM, table IV)
_FEWEST_PREFILLS, _MOST_PREFILLS = 12, 400  # one after the other, of which the first and the last are not counted
_HINDERED = 1.1
_ENOUGH_READINGS = 3
_FEWEST_ARRIVALS = 12  # in a window, on the mean: p90 of fewer is the worst of them
_LONE = 3
_QUANTILES = (0.5, 0.9)


class NotMeasured(Exception):
    """A step whose conditions did not hold: what was seen is no measurement of it."""


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """What is profiled: base URL, the name it serves, and a key where it asks for one."""

    url: str
    model: str
    key: str = "none"


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort that is spent on a step.

    Meters move every 20 to 100 ms: `prefills_s`, how long prompts are sent, and `idle_s`, how long the idle engine is
    looked at, have many of their steps. `limits`: of a load; None: `SLO_FACTOR` times a request by itself.
    """

    repeats: int = 3
    window_s: float = 10.0
    bisections: int = 2
    prefills_s: float = 1.5
    idle_s: float = 3.0
    limits: Limits | None = None
    seed: int = 1


@dataclass(slots=True)
class SeenRequests:
    """Requests as they end; `began_s` is monotonic, so that their times can be held against a log."""

    began_s: float = field(default_factory=time.monotonic)
    requests: list[Seen] = field(default_factory=list)
    failed: int = 0

    def first_tokens(self) -> list[float]:
        return sorted(self.began_s + one.sent_s + one.ttft_s for one in self.requests)

    def ends(self) -> list[float]:
        return sorted(self.began_s + one.sent_s + one.e2e_s for one in self.requests)


async def measure(step: Step, engine: EngineEndpoint, watch: Watch, effort: Effort) -> list[dict[str, Any]]:
    """Raises NotMeasured, and AdapterError when meter or engine fail."""
    if step.kind == DECODE:
        return await _decodes(step, engine, watch, effort.repeats)
    if step.kind == PREFILL:
        first = await _prefill(step, engine, watch, _FEWEST_PREFILLS)
        many = int(effort.prefills_s / first["t_s"] * first["iterations"])
        count = max(_FEWEST_PREFILLS, min(many, _MOST_PREFILLS))
        return _unhindered([await _prefill(step, engine, watch, count) for _ in range(effort.repeats)])
    return await _load(step, engine, watch, effort)


async def warm_up(engine: EngineEndpoint) -> None:
    """The first requests of an engine take seconds. Raises RetryableError when it does not serve."""
    seen = await _send(engine, [TraceRequest(0.0, 64, 16)] * 2)
    if seen.failed:
        raise RetryableError(f"{engine.url} did not serve a request for {engine.model}")


async def idle_watts(watch: Watch, seconds: float) -> float | None:
    """Mean power with nothing to do; None: no meter."""
    async with watch.log() as log:
        await asyncio.sleep(seconds)
    times = log.energy_j.at_s
    return mean_watts(log, times[0], times[-1]) if len(times) > 1 else None


async def _send(
    engine: EngineEndpoint,
    requests: Sequence[TraceRequest],
    concurrency: int | None = None,
    seen: SeenRequests | None = None,
) -> SeenRequests:
    seen = seen or SeenRequests()
    seen.began_s = time.monotonic()
    keys = {"profiler": engine.key}
    result: ReplayResult = await replay(
        requests, engine.url, keys, engine.model, exact=True, on_seen=seen.requests.append, concurrency=concurrency
    )
    seen.failed = sum(result.failed.values())
    return seen


async def _decodes(step: Step, engine: EngineEndpoint, watch: Watch, repeats: int) -> list[dict[str, Any]]:
    """Repeats a batch, with outputs long enough for all of its sequences to decode at once for a while."""
    while True:
        try:
            return [await _decode(step, engine, watch) for _ in range(repeats)]
        except NotMeasured:
            if 2 * step.output_tokens > step.longest_output:
                raise
            step = replace(step, output_tokens=2 * step.output_tokens)


async def _decode(step: Step, engine: EngineEndpoint, watch: Watch) -> dict[str, Any]:
    """Measures one batch of equal requests between two counts of tokens, at which its contexts are known exactly."""
    async with watch.log() as log:
        seen = await _send(engine, [TraceRequest(0.0, step.prompt_tokens, step.output_tokens)] * step.batch)
    if seen.failed:
        raise NotMeasured(f"{step.words}: {seen.failed} of {step.batch} requests failed")
    tokens, before = log.generated_tokens, log.generated_tokens.value[0]
    low, high = (before + share * step.batch * step.output_tokens for share in WINDOW)
    start_s, end_s = tokens.time_of(low), tokens.time_of(high)
    if start_s is None or end_s is None or tokens.value[-1] - before != step.batch * step.output_tokens:
        raise NotMeasured(f"{step.words}: the engine's count of tokens is not that of this run; does it serve others?")
    if seen.first_tokens()[-1] > start_s or seen.ends()[0] < end_s:
        raise NotMeasured(f"{step.words}: its prompts came in one after the other, so that no moment had all of them")
    middle = sum(WINDOW) / 2.0 * step.output_tokens
    return {
        "mhz": step.mhz,
        "prefill_tokens": 0,
        "batch": step.batch,
        "context_tokens": step.batch * (step.prompt_tokens + middle),
        "iterations": round((high - low) / step.batch),
        "t_s": end_s - start_s,
        **_energy(log, start_s, end_s),
    }


def _unhindered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Repeats in which the engine did not wait for its client: a slow client only ever lengthens them."""
    each = [row["t_s"] / row["iterations"] for row in rows]
    return [row for row, t_s in zip(rows, each, strict=True) if t_s <= _HINDERED * min(each)]


async def _prefill(step: Step, engine: EngineEndpoint, watch: Watch, count: int) -> dict[str, Any]:
    """Sends prompts of which one is computed while the next waits, so that the engine never does."""
    async with watch.log() as log:
        seen = await _send(engine, [TraceRequest(0.0, step.prompt_tokens, 1)] * count, concurrency=2)
    if seen.failed:
        raise NotMeasured(f"{step.words}: {seen.failed} of {count} requests failed")
    ends = seen.ends()
    start_s, end_s = ends[0], ends[-2]  # nothing waits behind the last
    return {
        "mhz": step.mhz,
        "prefill_tokens": step.prompt_tokens,
        "batch": 0,
        "context_tokens": 0.0,
        "iterations": count - 2,
        "t_s": end_s - start_s,
        **_energy(log, start_s, end_s),
    }


async def _load(step: Step, engine: EngineEndpoint, watch: Watch, effort: Effort) -> list[dict[str, Any]]:
    """Tries rates of Poisson arrivals, until they are too high. The first row is of requests that are alone."""
    request = TraceRequest(0.0, step.prompt_tokens, step.output_tokens)
    async with watch.log() as log:
        lone = await _send(engine, [request] * _LONE, concurrency=1)
    if not lone.requests:
        raise NotMeasured(f"{step.words}: its requests failed")
    limits = effort.limits or _limits(lone)
    alone_s = _quantile([one.e2e_s for one in lone.requests], 0.5)
    rows = [_rate_row(step, 0.0, lone, log, (lone.began_s, lone.ends()[-1]), "")]
    search = RateSearch(1.0 / alone_s, effort.bisections)
    draw = random.Random(f"{effort.seed} {step.key}")
    while (rps := search.next()) is not None:
        window_s = max(effort.window_s, _FEWEST_ARRIVALS / rps)
        seen = SeenRequests()
        async with watch.log() as log:
            try:
                async with asyncio.timeout(2.0 * window_s + 4.0 * alone_s):
                    await _send(engine, _poisson(request, rps, window_s, draw), seen=seen)
            except TimeoutError:
                seen.failed += 1  # those that were cut off
            await asyncio.sleep(seen.began_s + window_s - time.monotonic())  # quiet moments count too
        why = saturation(seen, log, limits, window_s)
        span = (seen.began_s + 0.2 * window_s, seen.began_s + window_s)
        rows.append(_rate_row(step, rps, seen, log, span, why))
        search.tell(rps, bool(why))
    return rows


def _poisson(request: TraceRequest, rps: float, window_s: float, draw: random.Random) -> list[TraceRequest]:
    found, at_s = [], draw.expovariate(rps)
    while at_s < window_s:
        found.append(TraceRequest(at_s, request.prompt_tokens, request.output_tokens))
        at_s += draw.expovariate(rps)
    return found or [request]


def _limits(lone: SeenRequests) -> Limits:
    """Returns limits by DynamoLLM's rule (table IV): a factor over a request by itself."""
    tpot = [one.tpot_s for one in lone.requests if one.tpot_s is not None]
    return Limits(
        ttft_s=SLO_FACTOR * _quantile([one.ttft_s for one in lone.requests], 0.5),
        tpot_s=SLO_FACTOR * _quantile(tpot, 0.5) if tpot else None,
    )


def saturation(seen: SeenRequests, log: Log, limits: Limits, window_s: float) -> str:
    """Returns why a rate is too high; empty: it is not."""
    if seen.failed:
        return "requests did not end"
    figures = {
        "TTFT": ([one.ttft_s for one in seen.requests], limits.ttft_s),
        "TPOT": ([one.tpot_s for one in seen.requests if one.tpot_s is not None], limits.tpot_s),
        "E2E": ([one.e2e_s for one in seen.requests], limits.e2e_s),
    }
    for name, (values, limit_s) in figures.items():
        if values and limit_s is not None and _quantile(values, 0.9) > limit_s:
            return f"{name} p90 above {limit_s:.3g} s"
    thirds = [
        [
            waiting
            for at_s, waiting in log.waiting
            if n * window_s / 3.0 <= at_s - seen.began_s < (n + 1) * window_s / 3.0
        ]
        for n in range(3)
    ]
    middle, last = (sum(each) / len(each) if each else 0.0 for each in thirds[1:])
    return "the queue grows" if last > middle + 1.0 else ""


def _rate_row(
    step: Step, rps: float, seen: SeenRequests, log: Log, span: tuple[float, float], why: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "class": step.name,
        "mhz": step.mhz,
        "prompt_tokens": step.prompt_tokens,
        "output_tokens": step.output_tokens,
        "rate_rps": rps,
        "requests": len(seen.requests),
        "failed": seen.failed,
    }
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        values = [value for one in seen.requests if (value := getattr(one, name)) is not None]
        for share in _QUANTILES:
            row[f"{name}_p{share * 100:g}"] = _quantile(values, share) if values else None
    tokens = [log.generated_tokens.value_at(at_s) for at_s in span]
    if tokens[0] is not None and tokens[1] is not None:
        row["tokens_s"] = (tokens[1] - tokens[0]) / (span[1] - span[0])
    row["watts"] = mean_watts(log, *span)
    return row | {"saturated": why}


def _energy(log: Log, start_s: float, end_s: float) -> dict[str, float]:
    """Is empty where no meter measured it."""
    watts = mean_watts(log, start_s, end_s)
    return {} if watts is None else {"energy_j": watts * (end_s - start_s)}


def mean_watts(log: Log, start_s: float, end_s: float) -> float | None:
    """Returns the mean power of a span; None: no meter.

    Between readings inside of the span where there are several, for what lies beside it may draw another power; else
    between its ends, read off the line through the readings around them.
    """
    if end_s <= start_s:
        return None
    inside = [at_s for at_s in log.energy_j.at_s if start_s <= at_s <= end_s]
    if len(inside) >= _ENOUGH_READINGS and inside[-1] - inside[0] > (end_s - start_s) / 2.0:
        start_s, end_s = inside[0], inside[-1]
    before, after = log.energy_j.value_at(start_s), log.energy_j.value_at(end_s)
    return None if before is None or after is None else (after - before) / (end_s - start_s)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
