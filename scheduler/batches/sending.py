"""Lines through the gateway, like any client's requests: an event loop in a thread of its own, spoken to by queues."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import aiohttp

WHOLE_S = 900.0  # of one line: the wait in the gateway's queue and the longest response
CONNECT_S = 5.0
PROBE_S = 2.0
MAX_RETRY_AFTER_S = 600.0
WAITING = "greenserve_gateway_requests_waiting"


@dataclass(frozen=True, slots=True)
class Request:
    """One line on its way. `line` is its row's key."""

    line: int
    path: str
    secret: str
    request_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The end of a request. `status` None: there was no answer, `error` says why; `unsent`: nobody received it.

    `final`: the gateway says that to send it again is of no use.
    """

    line: int
    status: int | None
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float | None = None
    error: str = ""
    unsent: bool = False
    final: bool = False


class Sender(Protocol):
    """Sends requests in the background. No call blocks but `collect`."""

    def send(self, request: Request) -> None: ...

    def collect(self, timeout_s: float) -> list[LineOutcome]:
        """Returns the requests that have ended, after at most `timeout_s`. One that was dropped is never among them."""

    def drop(self, lines: Collection[int]) -> None:
        """Gives up requests: the gateway sees their client leave, and has their engines stop."""

    def waiting(self) -> int | None:
        """Returns how many requests stood in the gateway's queues a moment ago; None: not known."""

    def close(self) -> None: ...


class GatewaySender:
    """Sender by HTTP. `start` and `close` it in one thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended: queue.SimpleQueue[LineOutcome] = queue.SimpleQueue()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: int | None = None
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="batches-sender", daemon=True)
        self._thread.start()
        self._ready.wait()

    def send(self, request: Request) -> None:
        self._loop.call_soon_threadsafe(self._begin, request)

    def collect(self, timeout_s: float) -> list[LineOutcome]:
        found: list[LineOutcome] = []
        try:
            found.append(self._ended.get(timeout=timeout_s))
            while True:
                found.append(self._ended.get_nowait())
        except queue.Empty:
            return found

    def drop(self, lines: Collection[int]) -> None:
        for line in lines:
            self._loop.call_soon_threadsafe(self._cancel, line)

    def waiting(self) -> int | None:
        return self._waiting

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    # -- in the loop's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=WHOLE_S, connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self._session:
            watching = asyncio.create_task(self._watch())
            self._ready.set()
            await self._stop.wait()
            left = [watching, *self._tasks.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _begin(self, request: Request) -> None:
        if not self._stop.is_set():
            self._tasks[request.line] = asyncio.create_task(self._exchange(request))

    def _cancel(self, line: int) -> None:
        if (task := self._tasks.get(line)) is not None:
            task.cancel()

    async def _exchange(self, request: Request) -> None:
        headers = {
            "Authorization": f"Bearer {request.secret}",
            "Content-Type": "application/json",
            "X-Request-Id": request.request_id,
        }
        try:
            async with self._session.post(self._url + request.path, data=request.body, headers=headers) as response:
                body = await response.read()
                outcome = LineOutcome(
                    request.line,
                    response.status,
                    body,
                    response.headers.get("x-request-id", ""),
                    _seconds(response.headers.get("retry-after")),
                    final=response.headers.get("x-should-retry") == "false",
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            unsent = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
            outcome = LineOutcome(request.line, None, error=f"{type(error).__name__}: {error}"[:300], unsent=unsent)
        finally:
            self._tasks.pop(request.line, None)
        self._ended.put(outcome)

    async def _watch(self) -> None:
        """Asks each second whether others wait."""
        timeout = aiohttp.ClientTimeout(total=PROBE_S)
        while True:
            began_s = time.monotonic()
            try:
                async with self._session.get(f"{self._url}/metrics", timeout=timeout) as response:
                    self._waiting = _gauge(await response.text(), WAITING)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                self._waiting = None
            await asyncio.sleep(max(0.1, 1.0 - (time.monotonic() - began_s)))


def _gauge(page: str, name: str) -> int | None:
    """The sum of its samples: each of several gateways has its own. None: there is none."""
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(int(float(value)) for value in found) if found else None


def _seconds(header: str | None) -> float | None:
    """Reads the seconds of a Retry-After. A date, which our gateway does not send, gives None."""
    try:
        found = float(header or "")
    except ValueError:
        return None
    return min(MAX_RETRY_AFTER_S, max(0.0, found)) if found == found else None
