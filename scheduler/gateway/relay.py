"""One call, from dispatch to record: attempts on instances, the response relayed as it comes, the ending.

Nothing has gone to the client: a failure is tried again elsewhere. Something has: the stream ends with an error event
and the connection is cut. Either way `run` records the call, and only then sends the last bytes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from . import energy
from .dispatch import Dispatcher, Slot
from .errors import SERVER_ERROR, ApiError, squashed, unavailable
from .protocol import ClientConnection
from .records import Call, Ending
from .sse import SseMeter, parse_usage
from .upstream import UpstreamConnection, UpstreamPool
from .validation import with_priority

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_WHOLE_BYTES = 16 << 20  # of a response that is no stream, held until it is complete
BUSY = frozenset({429, 502, 503, 504})  # an engine says: not now
CLIENT_FAULTS = frozenset({400, 413, 422})  # any other refusal by an engine is no fault of the client's
CLIENT_CLOSED = 499  # nginx's code for a client that left before there was a response

LastWords = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. A response that is no stream sends its first byte when it is complete, hence its own bound."""

    first_byte_s: float = 120.0
    whole_response_s: float = 600.0
    idle_s: float = 60.0


class Fate(Enum):
    """How an attempt ended."""

    COMPLETE = auto()
    LOST = auto()
    TIMEOUT = auto()
    CLIENT_STALLED = auto()
    CALLED_BACK = auto()  # it had not begun: it goes elsewhere, or back to its client


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response of an engine."""

    status: int
    headers: bytes
    body: bytes


class Exchange:
    """Serves one call. Hears of the client as its ClientListener and of the engine as its Receiver."""

    __slots__ = (
        "_answer",
        "_call",
        "_client",
        "_client_paused",
        "_connection",
        "_dispatcher",
        "_error",
        "_fate",
        "_gone",
        "_headers",
        "_id_header",
        "_out",
        "_pieces",
        "_pool",
        "_record",
        "_size",
        "_slot",
        "_squashed_for_s",
        "_started",
        "_status",
        "_task",
        "_timeouts",
        "_window_end_s",
        "deadline_s",
        "ending",
    )

    def __init__(
        self,
        call: Call,
        client: ClientConnection,
        dispatcher: Dispatcher,
        pool: UpstreamPool,
        timeouts: Timeouts,
        record: Callable[[Call, Ending], None],
    ) -> None:
        self._call = call
        self._client = client
        self._dispatcher = dispatcher
        self._pool = pool
        self._timeouts = timeouts
        self._record = record
        self._id_header = b"x-request-id: %b\r\n" % (call.request.client_id() or call.request_id.encode())
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._fate: asyncio.Future[Fate] | None = None
        self._answer: Answer | None = None  # the last "not now"
        self._started = False  # bytes have gone to the client
        self._client_paused = False
        self._gone = False
        self._error = ""
        self._slot: Slot | None = None
        self._squashed_for_s: float | None = None
        self.deadline_s = math.inf
        self.ending = Ending()
        self._reset(math.inf)

    def _reset(self, window_end_s: float) -> None:
        """Forgets an attempt that gave nothing to the client."""
        self._status = 0
        self._headers = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._out: list[bytes] = []
        self._window_end_s = window_end_s
        self.ending.meter = None

    # -- the course of a call ----------------------------------------------------------------------

    async def run(self) -> None:
        """Serves the call to its end. Never raises; however it ends, there is a record before the last bytes."""
        ending = self.ending
        last_words: LastWords | None = None
        self._task = asyncio.current_task()
        try:
            if self._gone:
                raise asyncio.CancelledError
            last_words = await self._serve()
        except asyncio.CancelledError:
            if self._gone:
                ending.status, ending.error = "client_gone", "the client closed the connection"
                ending.http_status = self._status if self._started else CLIENT_CLOSED
            else:
                last_words = self._fail("upstream_error", unavailable("The gateway is shutting down.", "shutting_down"))
        except Exception:
            log.exception("request %s failed inside the gateway", self._call.request_id)
            last_words = self._fail("upstream_error", ApiError(500, "Internal error.", kind=SERVER_ERROR))
        finally:
            ending.ended_s = time.monotonic()
            if ending.usage is None and ending.meter is not None:
                ending.usage = ending.meter.usage()
            self._record(self._call, ending)
            if last_words is not None:
                last_words()

    async def _serve(self) -> LastWords:
        call, ending = self._call, self.ending
        tried: set[str] = set()
        while ending.attempts < MAX_ATTEMPTS:
            try:
                slot = await self._dispatcher.place(call, tried)
            except ApiError as error:
                return self._fail("rejected", error)
            if slot is None:
                break
            ending.instance, ending.choice = slot.instance, slot.choice
            ending.attempts += 1
            tried.add(slot.instance.uid)
            window_s = ending.choice.window_s
            self._reset(math.inf if window_s is None else call.request.received_s + window_s)
            fate = await self._attempt(slot)
            if fate is Fate.COMPLETE and (self._status not in BUSY or self._started):
                return self._completed()
            if fate is Fate.CALLED_BACK:
                if self._squashed_for_s is not None:
                    return self._fail("rejected", squashed(self._squashed_for_s))
                ending.attempts -= 1  # no fault of the request's or the engine's
            elif fate is Fate.COMPLETE:
                self._answer = Answer(self._status, self._headers, b"".join(self._pieces))
            elif fate is Fate.TIMEOUT:
                return self._fail("timeout", ApiError(504, self._error, kind=SERVER_ERROR, code="upstream_timeout"))
            elif fate is Fate.CLIENT_STALLED:
                ending.status, ending.http_status, ending.error = "client_gone", self._status, self._error
                return self._client.abort
            elif self._started:
                return self._fail("upstream_error", self._broken_upstream())
            if fate is not Fate.CALLED_BACK and not self._dispatcher.retries.spend(time.monotonic()):
                break
        if self._answer is not None:
            return self._pass_on(self._answer)
        if ending.attempts:
            return self._fail("upstream_error", self._broken_upstream())
        return self._fail("rejected", unavailable(f"No instance of '{call.service.name}' is ready."))

    async def _attempt(self, slot: Slot) -> Fate:
        """Sends the call to one instance and waits for how that ends."""
        self._slot = slot
        health, fate = slot.instance.health, None
        try:
            fate = await self._send(slot)
            return fate
        except OSError as error:
            health.failed(time.monotonic(), refused=True)
            self._error = f"no connection to the engine: {error or type(error).__name__}"
            return Fate.LOST
        finally:
            self._slot = None
            slot.end()
            if fate is Fate.COMPLETE and self._status < 500:
                health.worked()
            elif fate in (Fate.COMPLETE, Fate.LOST, Fate.TIMEOUT):
                health.failed(time.monotonic())
            else:
                health.unknown()

    async def _send(self, slot: Slot) -> Fate:
        connection = self._pool.take(slot.instance.address)
        if connection is not None:
            fate = await self._talk(connection, slot)
            if fate is not Fate.LOST or not connection.silent:
                return fate  # else: closed by the engine while it idled, which is no failure
        return await self._talk(await self._pool.connect(slot.instance.address), slot)

    async def _talk(self, connection: UpstreamConnection, slot: Slot) -> Fate:
        timeouts = self._timeouts
        self._connection = connection
        self._fate = asyncio.get_running_loop().create_future()
        self.deadline_s = time.monotonic() + (timeouts.first_byte_s if self._call.stream else timeouts.whole_response_s)
        fate = None
        try:
            connection.request(self._request_bytes(slot), self)
            fate = await self._fate
            return fate
        finally:
            self._connection = None
            self.deadline_s = math.inf
            if fate is Fate.COMPLETE:
                if self._client_paused:
                    connection.pause(False)
                self._pool.put_back(connection)
            else:
                connection.abort()

    def _request_bytes(self, slot: Slot) -> bytes:
        call = self._call
        trace = b""
        for name in (b"traceparent", b"tracestate"):
            if name in call.request.headers:
                trace += b"%b: %b\r\n" % (name, call.request.headers[name])
        path = b"/v1/chat/completions" if call.chat else b"/v1/completions"
        body = call.body if call.engine_priority is None else with_priority(call.body, call.engine_priority)
        return (
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\naccept: */*\r\n"
            b"x-request-id: %b\r\n%bcontent-length: %d\r\n\r\n%b"
            % (path, slot.instance.netloc, call.request_id.encode(), trace, len(body), body)
        )

    # -- endings -----------------------------------------------------------------------------------

    def _completed(self) -> LastWords:
        """The engine's response is here to its end."""
        ending, meter = self.ending, self.ending.meter
        ending.http_status = self._status
        if meter is not None:
            ending.status = "upstream_error" if meter.failed else "ok"
            ending.error = "the engine sent an error event" if meter.failed else ""
            if not self._started:
                self._client.start_stream(self._status, self._headers + self._id_header)
            rest = meter.ending()
            return lambda: self._client.finish(rest)
        body = b"".join(self._pieces)
        if self._started:  # too large to be held: unread
            ending.status = _status_for(self._status)
            return lambda: self._client.finish(body)
        return self._pass_on(Answer(self._status, self._headers, body))

    def _pass_on(self, answer: Answer) -> LastWords:
        ending = self.ending
        ending.http_status = answer.status
        ending.status = _status_for(answer.status)
        headers = answer.headers + self._id_header
        if ending.status == "ok":
            ending.usage = parse_usage(answer.body)[0]
            if energy.asked(self._call):
                answer = replace(answer, body=self._with_energy(answer.body))
        else:
            ending.error = f"the engine answered {answer.status}: {answer.body[:300].decode(errors='replace')}"
            if ending.status == "rejected" and b"retry-after:" not in headers.lower():
                headers += b"retry-after: 1\r\n"
        return lambda: self._client.respond(answer.status, answer.body, None, headers)

    def _with_energy(self, json: bytes) -> bytes:
        return energy.with_energy(json, self._call, self.ending)

    def _fail(self, status: str, error: ApiError) -> LastWords:
        """An error of ours: a response of its own, or where one has begun, an error event and a cut."""
        ending = self.ending
        ending.status, ending.error = status, error.message
        if self._started:
            ending.http_status = self._status
            event = b"data: %b\n\n" % error.body() if ending.meter is not None else b""
            return lambda: self._client.cut(event)
        ending.http_status = error.status
        headers = self._id_header
        if error.retry_after_s is not None:
            headers += b"retry-after: %d\r\n" % error.retry_after_s
        return lambda: self._client.respond(error.status, error.body(), headers=headers)

    def _broken_upstream(self) -> ApiError:
        return ApiError(502, f"The request failed upstream: {self._error}.", kind=SERVER_ERROR, code="upstream_error")

    # -- the engine speaks (Receiver) --------------------------------------------------------------

    def head(self, status: int, headers: bytes) -> None:
        self._status, self._headers = status, headers
        if self._call.stream and status == 200 and b"text/event-stream" in headers.lower():
            rewrite = self._with_energy if energy.asked(self._call) else None
            self.ending.meter = SseMeter(self._window_end_s, self._call.strip_usage, rewrite)

    def body(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.deadline_s = now_s + self._timeouts.idle_s
        if self._slot is not None:
            self._slot.started()
        meter = self.ending.meter
        if meter is not None:
            relayed = meter.feed(data, now_s)
            if relayed:
                self._out.append(relayed)
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_WHOLE_BYTES:  # the last piece stays back: it must not pass before the record
            self._out += self._pieces[:-1]
            del self._pieces[:-1]

    def read_end(self) -> None:
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        if not self._started:
            self._started = True
            self._client.start_stream(self._status, self._headers + self._id_header)
        self._client.send(data)
        if self._client.paused and not self._client_paused:
            self.client_paused(True)

    def complete(self) -> None:
        self.read_end()
        self._settle(Fate.COMPLETE)

    def lost(self, error: str) -> None:
        self._error = error
        self._settle(Fate.LOST)

    def _settle(self, fate: Fate) -> None:
        if self._fate is not None and not self._fate.done():
            self._fate.set_result(fate)

    # -- the client and the clock ------------------------------------------------------------------

    def client_gone(self) -> None:
        self._gone = True
        if self._task is not None:  # else `run` has not begun, and will see for itself
            self._task.cancel()

    def client_paused(self, paused: bool) -> None:
        """Back-pressure: a client that does not read stops the reading from its engine."""
        self._client_paused = paused
        if self._connection is not None:
            self._connection.pause(paused)
            self.deadline_s = time.monotonic() + self._timeouts.idle_s

    @property
    def unstarted_at(self) -> Slot | None:
        """Where the call was sent and no byte has come from yet; such a call can still go elsewhere."""
        slot = self._slot
        return slot if slot is not None and self._fate is not None and not self._size and not self._status else None

    def call_back(self, squash_for_s: float | None = None) -> None:
        """Takes the call back from its instance, to go elsewhere, or to its client, to be tried again in so long."""
        if self.unstarted_at is not None:
            self._squashed_for_s = squash_for_s
            self._settle(Fate.CALLED_BACK)

    def stop(self) -> None:
        """For shutting down: the call ends now, with an error."""
        if self._task is not None:
            self._task.cancel()

    def check(self, now_s: float) -> None:
        """Called now and then: ends a call that waits too long."""
        if now_s <= self.deadline_s:
            return
        if self._client_paused:
            self._error = f"the client read nothing for {self._timeouts.idle_s:g} s"
            self._settle(Fate.CLIENT_STALLED)
        else:
            what = "went silent" if self._started or self._size else "sent nothing in time"
            self._error = f"The engine {what}."
            self._settle(Fate.TIMEOUT)


def _status_for(http_status: int) -> str:
    """The record's status for what an engine answered."""
    if http_status < 300:
        return "ok"
    if http_status in (429, 503):
        return "rejected"
    return "client_error" if http_status in CLIENT_FAULTS else "upstream_error"
