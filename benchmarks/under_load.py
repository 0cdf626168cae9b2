"""Times an engine's iterations while it serves a mix of requests, as it will in use.

The sweep times batches of equal requests, each kind by itself: on a GPU with processors to spare that is all there is
to an iteration. Where engine and front end share processors it is not, and where each new length of a prompt has to be
prepared for it is not either. Here requests of all lengths come as clients send them (closed loops of several sizes, so
that the engine is never idle), and the engine's own counters say what became of each stretch of time: how many
iterations, prompt tokens and output tokens. A line through those stretches is the mean of what requests suffer.

Stretches overlap nothing and leave nothing out, so a hold-up of the machine is in them: their sum, not their best.

In a mix prompts and outputs come in the ratio of the mix whatever the load, so that a line through it alone tells the
two apart by chance. A last loop has the same prompts with one token of output each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise

import numpy as np
from scipy.optimize import nnls

from core.ports import PermanentError
from core.simulator.kernel.simulated import FixedCosts
from core.simulator.workload import TraceRequest
from pools.agent.http_client import HttpClient
from pools.load_generator import replay
from pools.profiler.measurements import EngineEndpoint

CONCURRENCIES = (1, 2, 4, 8, 16)
_PROMPTS_AT_ONCE = 2  # with one the engine is idle between them
_LEVEL_S = 10.0
_SETTLE_S = 1.0  # of a level: its first requests come all at once
# A prompt's tokens are counted when it ends, and its time before: in stretches of half a second, of which a long prompt
# takes half, a fifth of the time of prompts was put down to iterations.
_PERIOD_S = 2.0
_TIMEOUT_S = 5.0
_ITERATIONS = "vllm:iteration_tokens_total_count"
_PROMPT = "vllm:prompt_tokens_total"
_OUTPUT = "vllm:generation_tokens_total"
_FIRST_TOKENS = "vllm:time_to_first_token_seconds_count"
_READ = (_ITERATIONS, _PROMPT, _OUTPUT, _FIRST_TOKENS)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What an engine did in `span_s` seconds, in which it always had something to do."""

    span_s: float
    iterations: float
    prompt_tokens: float
    decoded_tokens: float  # outputs without first tokens, which come out of prompts


@dataclass(frozen=True, slots=True)
class Fit:
    """`error`: root mean square of how far the line is off on a stretch, as a share."""

    costs: FixedCosts
    error: float

    def span_s(self, stretches: Sequence[Stretch]) -> float:
        """How long all of it would have taken."""
        costs = self.costs
        return sum(
            costs.base_s * one.iterations
            + costs.prefill_token_s * one.prompt_tokens
            + costs.decode_s * one.decoded_tokens
            for one in stretches
        )


def fit(stretches: Sequence[Stretch]) -> Fit:
    """span = base x iterations + prefill x prompt tokens + decode x decoded tokens, no term below 0.

    Contexts are those of the load. Raises PermanentError when the stretches do not tell the terms apart.
    """
    terms = np.array([[one.iterations, one.prompt_tokens, one.decoded_tokens] for one in stretches])
    span_s = np.array([one.span_s for one in stretches])
    if np.linalg.matrix_rank(terms) < terms.shape[1]:
        raise PermanentError("the load was too even to tell what an iteration, a prompt and an output token take")
    largest = terms.max(axis=0)
    solution, _ = nnls(terms / largest / span_s[:, None], np.ones(span_s.size))
    base_s, prefill_s, decode_s = (float(value) for value in solution / largest)
    error = float(np.sqrt(np.mean((terms @ (solution / largest) / span_s - 1.0) ** 2)))
    return Fit(FixedCosts(max(base_s, 1e-9), prefill_s, decode_s), error)


async def measure_under_load(
    engine: EngineEndpoint,
    requests: Sequence[TraceRequest],
    concurrencies: Sequence[int] = CONCURRENCIES,
    level_s: float = _LEVEL_S,
    settle_s: float = _SETTLE_S,
) -> tuple[Stretch, ...]:
    """Serves `requests` in turn, so many at once for `level_s` each, then prompts alone. Arrival times are not used.

    `concurrencies` are to be those that the line is for: an iteration's time is no straight line over all batches.

    Raises PermanentError for an engine without the counters, or when requests fail, and AdapterError.
    """
    client = HttpClient(engine.url, _TIMEOUT_S)
    stretches: list[Stretch] = []
    try:
        for concurrency in concurrencies:
            stretches += await _level(engine, client, requests, concurrency, level_s, settle_s)
        prompts = [replace(one, output_tokens=1) for one in requests]
        stretches += await _level(engine, client, prompts, _PROMPTS_AT_ONCE, level_s, settle_s)
    finally:
        client.close()
    return tuple(stretches)


async def _level(
    engine: EngineEndpoint,
    client: HttpClient,
    requests: Sequence[TraceRequest],
    concurrency: int,
    level_s: float,
    settle_s: float,
) -> list[Stretch]:
    at_once = cycle([replace(one, at_s=0.0) for one in requests])
    stop = asyncio.Event()
    keys = {"profiler": engine.key}
    load = asyncio.create_task(
        replay(at_once, engine.url, keys, engine.model, exact=True, concurrency=concurrency, stop=stop)
    )
    try:
        await asyncio.sleep(settle_s)
        until_s = time.monotonic() + level_s
        readings = [await _read(client)]
        while time.monotonic() < until_s:
            await asyncio.sleep(_PERIOD_S)
            readings.append(await _read(client))
        stop.set()
        result = await load
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    if result.failed:
        raise PermanentError(f"requests failed under load: {result.failed}")
    return _stretches(readings)


def _stretches(readings: Sequence[tuple[float, dict[str, float]]]) -> list[Stretch]:
    return [
        Stretch(
            end_s - start_s,
            end[_ITERATIONS] - start[_ITERATIONS],
            end[_PROMPT] - start[_PROMPT],
            (end[_OUTPUT] - end[_FIRST_TOKENS]) - (start[_OUTPUT] - start[_FIRST_TOKENS]),
        )
        for (start_s, start), (end_s, end) in pairwise(readings)
    ]


async def _read(client: HttpClient) -> tuple[float, dict[str, float]]:
    """When, and the counters. Raises PermanentError for one that is missing."""
    began_s = time.monotonic()
    page = (await asyncio.to_thread(client.call, "GET", "/metrics")).decode(errors="replace")
    at_s = (began_s + time.monotonic()) / 2.0
    found: dict[str, float] = {}
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in _READ:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    if missing := [name for name in _READ if name not in found]:
        raise PermanentError(f"the engine does not count {', '.join(missing)}: it cannot be timed under load")
    return at_s, found
