"""The same requests with and without a fault, sent by a client that asks again as OpenAI's does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

# OpenAI's Python client: `max_retries`, the pauses between, and which statuses it asks again for.
RETRIES = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
LONGEST_RETRY_AFTER_S = 60.0
CONNECT_S = 5.0
ASKED_AGAIN = {408, 409, 429}

WHOLE, STREAM, CONTINUED = "whole", "stream", "continued"  # CONTINUED: a stream with `x-greenserve-continue`
OK, CUT, BROKEN, SILENT = "ok", "cut", "broken", "silent"  # outcomes of an attempt, beside a status


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    at_s: float
    kind: str
    prompt_tokens: int
    output_tokens: int


def drawn(seed: int, rate_rps: float, length_s: float) -> list[Request]:
    """Returns Poisson arrivals of `length_s`; a longer replay of the same seed begins with the same requests."""
    draw, at_s, found = random.Random(seed), 0.0, list[Request]()
    for number in count():
        at_s += draw.expovariate(rate_rps)
        kind = draw.choice((WHOLE, STREAM, STREAM, CONTINUED))
        lengths = draw.randint(50, 400), draw.randint(10, 80)
        if at_s >= length_s:
            return found
        found.append(Request(number, at_s, kind, *lengths))
    raise AssertionError("arrivals do not end")


@dataclass(frozen=True, slots=True)
class Attempt:
    """`traceparent` is in the request's record, and so finds it; `sent_s` is of the monotonic clock, and `begun_s` how
    long it took until the answer began, or was given up."""

    traceparent: str
    outcome: str
    sent_s: float = 0.0
    begun_s: float = 0.0

    @property
    def asked_again(self) -> bool:
        if self.outcome.isdigit():
            return int(self.outcome) in ASKED_AGAIN or int(self.outcome) >= 500
        return self.outcome != OK


@dataclass(slots=True)
class Asked:
    """A request as its client saw it; `waited_s` from the first attempt to the end of the last."""

    request: Request
    attempts: list[Attempt] = field(default_factory=list)
    waited_s: float = 0.0
    ended: bool = False

    @property
    def answered(self) -> bool:
        return self.ended and self.attempts[-1].outcome == OK


class Replay:
    """Sends requests in a thread of its own, open loop: each leaves when it is due, whatever became of the others.

    Args:
        gateway: its address.
        keys: API keys; they take turns.
        run: below 2**63, another for each replay: with the request's number it is the trace id of all its attempts.
    """

    def __init__(self, gateway: str, keys: Sequence[str], model: str, requests: Sequence[Request], run: int) -> None:
        self._gateway, self._keys, self._model = gateway, keys, model
        self._requests, self._run = requests, run
        self._jitter = random.Random(run)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), daemon=True)
        self._last_s = float("inf")  # of the loop's clock: what is under way then has lost
        self.asked = [Asked(request) for request in requests]

    @property
    def trace_prefix(self) -> str:
        """Of the `traceparent` of all attempts."""
        return f"00-{self._run:016x}"

    def start(self) -> None:
        self._thread.start()

    def finish(self, within_s: float) -> list[Asked]:
        """Waits until all requests have ended, at most `within_s`; what has not is left without an answer."""
        self._last_s = time.monotonic() + within_s
        self._thread.join(within_s + 30.0)
        return self.asked

    async def _play(self) -> None:
        connections = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        began_s = time.monotonic()
        async with aiohttp.ClientSession(self._gateway, connector=connections, timeout=timeout) as session:
            under_way = []
            for asked in self.asked:
                await asyncio.sleep(max(0.0, began_s + asked.request.at_s - time.monotonic()))
                under_way.append(asyncio.create_task(self._ask(session, asked)))
            left = set(under_way)
            while left and time.monotonic() < self._last_s:
                _, left = await asyncio.wait(left, timeout=0.2)
            for task in left:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _ask(self, session: aiohttp.ClientSession, asked: Asked) -> None:
        began_s = time.monotonic()
        try:
            for number in range(RETRIES + 1):
                traceparent = f"{self.trace_prefix}{asked.request.number:016x}-{number + 1:016x}-01"
                sent_s = time.monotonic()
                asked.attempts.append(Attempt(traceparent, SILENT, sent_s))  # until more is known
                outcome, pause_s, begun_s = await self._attempt(session, asked.request, traceparent)
                asked.attempts[-1] = attempt = Attempt(traceparent, outcome, sent_s, begun_s)
                if number == RETRIES or not attempt.asked_again:
                    break
                await asyncio.sleep(pause_s if pause_s is not None else self._pause_s(number))
            asked.ended = True
        finally:
            asked.waited_s = time.monotonic() - began_s

    def _pause_s(self, retry: int) -> float:
        return min(FIRST_PAUSE_S * 2.0**retry, LONGEST_PAUSE_S) * (1.0 - 0.25 * self._jitter.random())

    async def _attempt(
        self, session: aiohttp.ClientSession, request: Request, traceparent: str
    ) -> tuple[str, float | None, float]:
        """Returns the outcome, the pause that the answer asks for, and how long it took to begin."""
        body, head = self._body(request)
        head |= {"traceparent": traceparent, "Authorization": f"Bearer {self._keys[request.number % len(self._keys)]}"}
        begun, sent_s, begun_s = False, time.monotonic(), None
        try:
            async with session.post("/v1/completions", json=body, headers=head) as response:
                begun, begun_s = response.status == 200 and request.kind != WHOLE, time.monotonic() - sent_s
                text = await response.read()
                if response.status != 200:
                    return str(response.status), _retry_after_s(response.headers), begun_s
                return (OK if _is_whole(request, text) else CUT), None, begun_s
        except (aiohttp.ClientError, OSError, TimeoutError):
            return (CUT if begun else BROKEN), None, time.monotonic() - sent_s if begun_s is None else begun_s

    def _body(self, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
        body = {
            "model": self._model,
            "prompt": [11] * request.prompt_tokens,
            "max_tokens": 200,
            "temperature": 0,
            "vllm_xargs": {"sim_output_tokens": request.output_tokens},
        }
        if request.kind == WHOLE:
            return body, {}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body, {"x-greenserve-continue": "true"} if request.kind == CONTINUED else {}


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    with contextlib.suppress(ValueError):
        asked_s = float(headers.get("Retry-After", ""))
        return asked_s if 0.0 < asked_s <= LONGEST_RETRY_AFTER_S else None
    return None


def _is_whole(request: Request, text: bytes) -> bool:
    """Whether an answer has all tokens that were to come, and its proper end."""
    try:
        if request.kind == WHOLE:
            return bool(json.loads(text)["usage"]["completion_tokens"] == request.output_tokens)
        events = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            return False
        usage = [found for event in events[:-1] if (found := json.loads(event).get("usage"))]
        return bool(usage and usage[-1]["completion_tokens"] == request.output_tokens)
    except (ValueError, KeyError, TypeError):
        return False
