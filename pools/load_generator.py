"""Replays a trace, through the gateway or to an engine, open loop: requests leave when the trace says.

A prompt is a list of token ids of the right length (no tokenizer of a gated model is needed). The true output length
goes along in `vllm_xargs`, which simulated engines obey and the gateway passes on unread; or, with `exact`, in
`max_tokens` and `ignore_eos`, which real engines obey too.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import aiohttp

from core.simulator.workload import TraceRequest

TOKEN_ID = 11  # any id will do: lengths are what is replayed
DRAWN_IDS = range(100, 1900)  # words of every vocabulary, none of them special
CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 180.0  # longer than the gateway's own limits, so that it is the one to say what went wrong
_PATH = "/v1/completions"
_TAIL_BYTES = 4096  # the usage chunk and the end marker fit

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a replay. `lag_s` is how late the last request left: above a second, this client is too slow."""

    sent: int
    ok: int
    failed: int
    in_flight: int
    lag_s: float


@dataclass(slots=True)
class ReplayResult:
    """The figures of a replay. Percentiles (p50, p90, p99) are of requests that ended well; None: there were none."""

    sent: int = 0
    ok: int = 0
    failed: dict[str, int] = field(default_factory=dict)  # reason -> requests
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_s: dict[str, float | None] = field(default_factory=dict)
    e2e_s: dict[str, float | None] = field(default_factory=dict)
    wall_s: float = 0.0
    max_lag_s: float = 0.0


class RequestFailed(Exception):
    """One request did not end well; the text is the reason it is counted under."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that ended well, as its client saw it. `sent_s`: since the replay began; tokens from `usage`."""

    sent_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between its tokens; None: it had one token."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


async def replay(
    requests: Iterable[TraceRequest],
    base_url: str,
    api_keys: Mapping[str, str],
    model: str,
    speed: float = 1.0,
    limit: int | None = None,
    max_tokens: int = 1000,
    on_progress: Callable[[ReplayProgress], None] | None = None,
    stop: asyncio.Event | None = None,
    exact: bool = False,
    on_seen: Callable[[Seen], None] | None = None,
    concurrency: int | None = None,
) -> ReplayResult:
    """Sends the requests as streamed completions, spread over the tenants' keys in turn.

    Args:
        requests: in order of arrival; may be endless.
        base_url: of the gateway, with or without `/v1`.
        api_keys: tenant -> key.
        speed: arrivals come this many times as fast; engines stay in real time.
        limit: send at most so many.
        max_tokens: the same for all, at least the longest true output of the trace.
        on_progress: called when a request left or ended; must be quick.
        stop: once set, no more requests leave; those under way are awaited.
        exact: each request makes exactly its output tokens, whatever the model would do (then `max_tokens` is not
            used), and prompts are drawn at random, so that no prefix cache has them.
        on_seen: called with each request that ended well; must be quick.
        concurrency: a closed loop: at most so many under way, the next one leaves when one ends.

    A request that fails is counted with its reason, and the replay goes on. Cancelling it cancels what is under way.
    Raises ValueError for a speed or keys that make no sense.
    """
    if not (speed > 0 and math.isfinite(speed)):
        raise ValueError(f"speed must be above 0, not {speed}")
    if not api_keys:
        raise ValueError("at least one API key is needed")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S)
    origin = base_url.rstrip("/").removesuffix("/v1")
    async with aiohttp.ClientSession(
        base_url=origin, connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as session:
        longest = None if exact else max_tokens
        run = _Replay(session, model, longest, on_progress, on_seen, stop or asyncio.Event(), concurrency)
        return await run.play(islice(requests, limit), list(api_keys.values()), speed)


class _Replay:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        model: str,
        max_tokens: int | None,
        on_progress: Callable[[ReplayProgress], None] | None,
        on_seen: Callable[[Seen], None] | None,
        stop: asyncio.Event,
        concurrency: int | None,
    ) -> None:
        self._session = session
        self._model = model
        self._max_tokens = max_tokens
        self._on_progress = on_progress
        self._on_seen = on_seen
        self._stop = stop
        self._draw = random.Random()
        self._places = None if concurrency is None else asyncio.Semaphore(concurrency)
        self._began_s = 0.0
        self._result = ReplayResult()
        self._failed: Counter[str] = Counter()
        self._ttft_s: list[float] = []
        self._e2e_s: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lag_s = 0.0

    async def play(self, requests: Iterable[TraceRequest], keys: list[str], speed: float) -> ReplayResult:
        result = self._result
        began_s = self._began_s = time.monotonic()
        try:
            for request, key in zip(requests, cycle(keys), strict=False):
                due_s = began_s + request.at_s / speed
                if await self._stopped_before(due_s):
                    break
                if self._places is not None:
                    await self._places.acquire()
                self._lag_s = max(0.0, time.monotonic() - due_s)
                result.max_lag_s = max(result.max_lag_s, self._lag_s)
                task = asyncio.create_task(self._one(request, key))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                result.sent += 1
                self._report()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        result.wall_s = time.monotonic() - began_s
        result.failed = dict(self._failed.most_common())
        result.ttft_s = _quantiles(self._ttft_s)
        result.e2e_s = _quantiles(self._e2e_s)
        return result

    async def _stopped_before(self, due_s: float) -> bool:
        """Waits until it is time, or until it has to stop."""
        delay_s = due_s - time.monotonic()
        if delay_s <= 0:
            await asyncio.sleep(0)  # late: still let others run
            return self._stop.is_set()
        try:
            async with asyncio.timeout(delay_s):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _one(self, request: TraceRequest, key: str) -> None:
        result = self._result
        try:
            seen = await self._send(request, key)
        except RequestFailed as error:
            self._failed[str(error)] += 1
        except TimeoutError:
            self._failed["timeout"] += 1
        except aiohttp.ClientConnectorError:
            self._failed["connection refused"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self._failed[f"connection broken: {type(error).__name__}"] += 1
        else:
            result.ok += 1
            result.prompt_tokens += seen.prompt_tokens
            result.output_tokens += seen.output_tokens
            self._ttft_s.append(seen.ttft_s)
            self._e2e_s.append(seen.e2e_s)
            if self._on_seen is not None:
                self._on_seen(seen)
        finally:
            if self._places is not None:
                self._places.release()
        self._report()

    def _body(self, request: TraceRequest) -> dict[str, Any]:
        common = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        if self._max_tokens is None:
            prompt = self._draw.choices(DRAWN_IDS, k=request.prompt_tokens)
            return {**common, "prompt": prompt, "max_tokens": request.output_tokens, "ignore_eos": True}
        xargs = {"sim_output_tokens": request.output_tokens}
        prompt = [TOKEN_ID] * request.prompt_tokens
        return {**common, "prompt": prompt, "max_tokens": self._max_tokens, "vllm_xargs": xargs}

    async def _send(self, request: TraceRequest, key: str) -> Seen:
        body = json.dumps(self._body(request), separators=(",", ":")).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        sent_s = time.monotonic()
        first_s = None
        tail = b""
        async with await self._post(body, headers) as response:
            if response.status != 200:
                raise RequestFailed(_reason(response.status, await response.read()))
            async for piece in response.content.iter_any():
                if first_s is None:
                    first_s = time.monotonic()
                tail = (tail + piece)[-_TAIL_BYTES:]
        ended_s = time.monotonic()
        prompt_tokens, output_tokens = _usage(tail)
        ttft_s, e2e_s = (first_s or ended_s) - sent_s, ended_s - sent_s
        return Seen(sent_s - self._began_s, prompt_tokens, output_tokens, ttft_s, e2e_s)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """A server closes a connection that idles; one that it closes as the next request leaves is no failure of it.

        As other clients do, the request is sent once more, so long as nothing was answered. Servers that are gone
        refuse it then.
        """
        try:
            return await self._session.post(_PATH, data=body, headers=headers)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._session.post(_PATH, data=body, headers=headers)

    def _report(self) -> None:
        if self._on_progress is not None:
            sent, ok, failed = self._result.sent, self._result.ok, sum(self._failed.values())
            self._on_progress(ReplayProgress(sent, ok, failed, sent - ok - failed, self._lag_s))


def _usage(tail: bytes) -> tuple[int, int]:
    """Returns prompt and output tokens from a stream's last events.

    Raises RequestFailed when it did not end properly.
    """
    events = [line[5:].strip() for line in tail.split(b"\n") if line.startswith(b"data:")]
    if not events or events[-1] != b"[DONE]":
        for event in events:
            if event.startswith(b'{"error"'):
                raise RequestFailed(_reason(200, event))
        raise RequestFailed("stream ended early")
    for event in reversed(events[:-1]):
        usage = _json(event).get("usage")
        if usage:
            return int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    raise RequestFailed("stream without usage")


def _reason(status: int, body: bytes) -> str:
    """Returns the gateway's code for what went wrong, or its status."""
    error = _json(body).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return f"{status} {code}" if code else f"{status}"


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _quantiles(values: list[float]) -> dict[str, float | None]:
    """Returns nearest-rank percentiles by name."""
    ordered = sorted(values)
    return {f"p{q * 100:g}": ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None for q in QUANTILES}
