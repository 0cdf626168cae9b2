"""One call, from dispatch to record: attempts on instances, the response relayed as it comes, the ending.

Nothing has gone to the client: a failure is tried again elsewhere. Something has: the stream ends with an error event
and the connection is cut. Either way the call leaves with its last bytes in hand: they are sent when its record is on
disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from ..accounts import request_energy
from ..errors import SERVER_ERROR, ApiError, none_ready, squashed, unavailable
from ..http.client_protocol import ClientConnection
from ..http.loop_turn import EndOfTurn
from ..http.upstream import UpstreamConnection, UpstreamPool
from ..placing.dispatch import Dispatcher
from ..placing.slot import Slot
from ..requests.answer_model import AnswerModel
from ..requests.call import Call, Ending
from ..requests.endpoint import NOT_OFFERED
from ..requests.engine_errors import openai_error, refusal
from ..requests.engine_order import engine_body
from ..requests.sse import SseMeter

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_WHOLE_BYTES = 16 << 20  # of a response that is no stream, buffered until it is complete
BUSY = frozenset({429, 502, 503, 504})  # an engine says: not now
CLIENT_FAULTS = frozenset({400, 413, 422})  # any other refusal by an engine is no fault of the client's
WAKING = b": waking\n\n"  # a comment, which clients of event streams skip
WAKING_HEAD = b"content-type: text/event-stream; charset=utf-8\r\n"
CLIENT_CLOSED = 499  # nginx's code for a client that left before there was a response

_TYPE_LINE = re.compile(rb"^content-type:[^\n]*\n", re.MULTILINE)
_JSON_LINE = b"content-type: application/json\r\n"
_TRACE = frozenset({b"traceparent", b"tracestate"})

LastWords = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. A response that is no stream sends its first byte when it is complete, hence its own bound."""

    first_byte_s: float = 120.0
    whole_response_s: float = 600.0
    idle_s: float = 60.0


class Fate(Enum):
    """The ways in which an attempt ends."""

    COMPLETE = auto()
    LOST = auto()
    TIMEOUT = auto()
    CLIENT_STALLED = auto()
    CALLED_BACK = auto()  # it had not begun: it goes elsewhere, or back to its client, as if it had not been sent
    SENT_AGAIN = auto()  # it had not begun: the same engine gets it anew, with another number
    MOVED = auto()  # its instance let it wait: the next attempt is paid for from the retry budget


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that all exchanges of a gateway share. Each departs once."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    pool: UpstreamPool
    timeouts: Timeouts
    departures: EndOfTurn[Exchange]  # those that are over but for their record, and their last words after that
    outbox: EndOfTurn[ClientConnection] = field(default_factory=lambda: EndOfTurn(_send_buffered))


def _send_buffered(clients: list[ClientConnection]) -> None:
    for client in clients:
        client.send_buffered()


class Exchange:
    """Serves one call. Hears of the client as its ClientListener and of the engine as its Receiver.

    The usual call finds a place and an open connection at once, and is served by callbacks alone. Whatever must be
    waited for (a place, a new connection, another attempt) is waited for in a task, which then also ends the call.
    """

    __slots__ = (
        "_answer",
        "_client",
        "_client_paused",
        "_connection",
        "_context",
        "_ended",
        "_error",
        "_fate",
        "_gone",
        "_head_sent",
        "_headers",
        "_moves",
        "_pieces",
        "_size",
        "_slot",
        "_squashed_for_s",
        "_started",
        "_status",
        "_task",
        "_token_meter",
        "_tried",
        "_window_end_s",
        "call",
        "deadline_s",
        "ending",
        "last_words",
    )

    def __init__(self, call: Call, client: ClientConnection, context: Context) -> None:
        self.call = call
        self._client = client
        self._context = context
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._fate: asyncio.Future[Fate] | None = None  # what the task waits for; None: there is no task, or not yet
        self._answer: tuple[int, bytes, bytes] | None = None  # the last "not now": status, headers, body
        self._tried: list[str] = []
        self._started = False  # bytes of an answer have gone to the client
        self._head_sent = False  # of a stream, before there is anything of an answer: its service wakes
        self._token_meter: SseMeter | None = None  # of a stream whose chunks may pass in the frames they came in
        self._client_paused = False
        self._gone = False
        self._ended = False
        self._error = ""
        self._moves = 0  # attempts that count on record, and not towards MAX_ATTEMPTS: nothing has failed
        self._slot: Slot | None = None
        self._squashed_for_s: float | None = None
        self.deadline_s = math.inf
        self.last_words: LastWords | None = None  # to the client, once the call is on record
        self.ending = Ending()
        self._reset(math.inf)

    def _reset(self, window_end_s: float) -> None:
        """Forgets an attempt that gave nothing to the client."""
        self._status = 0
        self._headers = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._window_end_s = window_end_s
        self.ending.meter = None

    # -- the course of a call ----------------------------------------------------------------------

    def start(self) -> None:
        """Sends the call on at once, if it can be; else a task does so later. Never raises."""
        slot = connection = None
        try:
            slot = self._context.dispatcher.place_now(self.call)
            if slot is not None:
                self._begin(slot)
                connection = self._context.pool.take(slot.instance.address)
                if connection is not None:
                    self._send(connection, slot)
                    return
        except Exception:
            log.exception("request %s failed inside the gateway", self.call.request_id)
            self._leave(None)
            self._end(self._fail("upstream_error", ApiError(500, "Internal error.", kind=SERVER_ERROR)))
            return
        self._go_on(None)

    def _go_on(self, fate: Fate | None) -> None:
        """Goes on in a task. `fate`: of the attempt that was made without one; None: none was, or it was void."""
        self._task = self._context.loop.create_task(self._run(fate))

    async def _run(self, fate: Fate | None) -> None:
        """Serves the call to its end. Never raises; however it ends, it departs."""
        last_words: LastWords | None = None
        try:
            if self._gone:
                raise asyncio.CancelledError
            last_words = await self._serve(fate)
        except asyncio.CancelledError:
            last_words = self._cut_short()
        except Exception:
            log.exception("request %s failed inside the gateway", self.call.request_id)
            last_words = self._fail("upstream_error", ApiError(500, "Internal error.", kind=SERVER_ERROR))
        finally:
            self._leave(None)
            self._end(last_words)

    def _cut_short(self) -> LastWords | None:
        """The client has left, or the gateway must."""
        ending = self.ending
        if not self._gone:
            return self._fail("upstream_error", unavailable("The gateway is shutting down.", "shutting_down"))
        ending.status, ending.error = "client_gone", "the client closed the connection"
        ending.http_status = self._status if self._started else CLIENT_CLOSED
        return None

    def _waking(self) -> None:
        """Shows a client that waits for a stream that its service wakes. Errors are events from then on."""
        if not self.call.stream:
            return
        if not self._head_sent:
            self._head_sent = True
            self._client.start_stream(200, WAKING_HEAD + self._id_header)
        self._client.send(WAKING)

    def _send_head(self) -> None:
        if not self._head_sent:
            self._client.start_stream(self._status, self._headers + self._id_header)

    def _end(self, last_words: LastWords | None) -> None:
        """The call is over: it departs, once."""
        if self._ended:
            return
        self._ended = True
        ending = self.ending
        ending.ended_s = time.monotonic()
        if ending.usage is None and ending.meter is not None:
            ending.usage = ending.meter.usage()
        self.last_words = last_words
        self._context.departures.add(self)

    async def _serve(self, fate: Fate | None) -> LastWords:
        """Makes attempts until one gives the client an answer, after the one that ended with `fate`, if any."""
        while True:
            if fate is None:
                if self._slot is None:
                    try:
                        slot = await self._context.dispatcher.place(self.call, self._tried, self._waking)
                    except ApiError as error:
                        return self._fail("rejected", error)
                    if slot is None:
                        break
                    self._begin(slot)
                fate = await self._attempt()
            last_words = self._judge(fate)
            if last_words is not None:
                return last_words
            if fate not in (Fate.CALLED_BACK, Fate.MOVED) and not self._may_try_again():
                break
            fate = None
        if self._answer is not None:
            return self._pass_on(*self._answer)
        if self.ending.attempts:
            return self._fail("upstream_error", self._broken_upstream())
        return self._fail("rejected", none_ready(self.call.service.name))

    def _may_try_again(self) -> bool:
        """Says whether a failed attempt may be followed by another one, and takes that from the retry budget."""
        if self.ending.attempts - self._moves >= MAX_ATTEMPTS:
            return False
        return self._context.dispatcher.retries.spend(time.monotonic())

    def _begin(self, slot: Slot) -> None:
        """Begins an attempt at a place that was found."""
        ending = self.ending
        self._slot = slot
        slot.owner = self
        ending.instance, ending.choice = slot.instance, slot.choice
        ending.attempts += 1
        self._tried.append(slot.instance.uid)
        window_s = slot.choice.window_s
        self._reset(math.inf if window_s is None else self.call.request.received_s + window_s)

    def _judge(self, fate: Fate) -> LastWords | None:
        """Decides what an attempt's end means for the client; None: it is tried again elsewhere."""
        ending = self.ending
        if fate is Fate.COMPLETE and not self._turned_away:
            return self._completed()
        if fate is Fate.CALLED_BACK:
            ending.attempts -= 1  # no fault of the request's or the engine's
            return None if self._squashed_for_s is None else self._fail("rejected", squashed(self._squashed_for_s))
        if fate is Fate.MOVED:
            self._moves += 1
            return None
        if fate is Fate.COMPLETE:
            self._look_for_adapter()
            self._answer = self._status, self._headers, b"".join(self._pieces)
            return None
        if fate is Fate.TIMEOUT:
            return self._fail("timeout", ApiError(504, self._error, kind=SERVER_ERROR, code="upstream_timeout"))
        if fate is Fate.CLIENT_STALLED:
            ending.status, ending.http_status, ending.error = "client_gone", self._status, self._error
            return self._client.abort
        return self._fail("upstream_error", self._broken_upstream()) if self._started else None

    @property
    def _turned_away(self) -> bool:
        """Says whether the engine wants the call elsewhere, or later, or has not its adapter any more."""
        lacks_adapter = bool(self.call.adapter) and self._status == 404
        return not self._started and (self._status in BUSY or lacks_adapter)

    def _look_for_adapter(self) -> None:
        """An engine that has not the call's adapter any more may load it again, and so be tried again."""
        instance = self.ending.instance
        if self._status == 404 and instance is not None:
            self._context.dispatcher.lost_adapter(instance, self.call.adapter)
            self._tried.remove(instance.uid)

    async def _attempt(self) -> Fate:
        """Sends the call to the place that was begun, over a new connection if need be, and waits for how that ends."""
        slot = self._slot
        assert slot is not None
        pool = self._context.pool
        fate: Fate | None = None
        try:
            connection = pool.take(slot.instance.address)
            if connection is not None:
                fate = await self._talk(connection, slot)
            if connection is None or self._is_void(fate, connection):
                connection = await pool.connect(slot.instance.address)
                slot.instance.connected(connection.rtt_s, time.monotonic())
                fate = await self._talk(connection, slot)
            while fate is Fate.SENT_AGAIN:
                fate = await self._talk(await pool.connect(slot.instance.address), slot)
            return fate  # type: ignore[return-value]
        except OSError as error:
            slot.instance.health.failed(time.monotonic(), refused=True)
            self._error = f"no connection to the engine: {error or type(error).__name__}"
            return Fate.LOST
        finally:
            self._leave(fate)

    @staticmethod
    def _is_void(fate: Fate | None, connection: UpstreamConnection) -> bool:
        """The engine had closed the connection while it idled, which is no failure."""
        return fate is Fate.LOST and connection.silent

    async def _talk(self, connection: UpstreamConnection, slot: Slot) -> Fate:
        self._fate = self._context.loop.create_future()
        fate = None
        try:
            self._send(connection, slot)
            fate = await self._fate
            return fate
        finally:
            self._fate = None
            self._hang_up(fate)

    def _send(self, connection: UpstreamConnection, slot: Slot) -> None:
        timeouts = self._context.timeouts
        self._connection = connection
        self.deadline_s = time.monotonic() + (timeouts.first_byte_s if self.call.stream else timeouts.whole_response_s)
        self._context.pool.send(connection, self._request_bytes(slot), self)

    def _hang_up(self, fate: Fate | None) -> None:
        """The attempt is over: its connection is free for another, or of no use to anybody."""
        connection, self._connection = self._connection, None
        self.deadline_s = math.inf
        if connection is None:
            return
        if fate is Fate.COMPLETE:
            if self._client_paused:
                connection.pause(False)
            self._context.pool.put_back(connection)
        else:
            connection.abort()

    def _leave(self, fate: Fate | None) -> None:
        """Gives the place back, and says how its engine behaved. None: nothing was learned of it."""
        slot, self._slot = self._slot, None
        if slot is None:
            return
        slot.end()
        health = slot.instance.health
        if fate is Fate.COMPLETE and (self._status < 500 or is_not_offered(self._status, self.call)):
            health.worked()
        elif fate in (Fate.COMPLETE, Fate.LOST, Fate.TIMEOUT):
            health.failed(time.monotonic())
        else:
            health.unknown()

    def _settle(self, fate: Fate) -> None:
        """The attempt has ended."""
        waits = self._fate
        if waits is not None:
            if not waits.done():
                waits.set_result(fate)
            return
        connection = self._connection
        if connection is None or self._ended:
            return
        self._hang_up(fate)
        if fate is Fate.SENT_AGAIN or (fate is Fate.LOST and self._is_void(fate, connection)):
            self._go_on(None)  # at the same place, over a new connection
            return
        self._leave(fate)
        if fate is Fate.COMPLETE and not self._turned_away:
            self._end(self._completed())
        else:
            self._go_on(fate)

    def _request_bytes(self, slot: Slot) -> bytes:
        call = self.call
        headers, body, more = call.request.headers, call.body, b""
        if not _TRACE.isdisjoint(headers):
            more = b"".join([b"%b: %b\r\n" % (name, headers[name]) for name in sorted(_TRACE) if name in headers])
        if slot.instance.authorization:
            more += b"authorization: %b\r\n" % slot.instance.authorization
        if call.engine_priority is not None or call.engine_work is not None:
            laxity = slot.instance.state.laxity
            body = engine_body(body, call.engine_priority, call.engine_work, laxity, time.time())
        return (
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\naccept: */*\r\n"
            b"x-request-id: %b\r\n%bcontent-length: %d\r\n\r\n%b"
            % (call.endpoint.path, slot.instance.netloc, call.request_id.encode(), more, len(body), body)
        )

    @property
    def _id_header(self) -> bytes:
        call = self.call
        return b"x-request-id: %b\r\n%b" % (call.request.client_id() or call.request_id.encode(), call.limit_headers)

    # -- endings -----------------------------------------------------------------------------------

    def _completed(self) -> LastWords:
        """The engine's response is here to its end."""
        ending, meter = self.ending, self.ending.meter
        ending.http_status = self._status
        if meter is not None:
            ending.status = "upstream_error" if meter.failed else "ok"
            ending.error = "the engine sent an error event" if meter.failed else ""
            if not self._started:
                self._send_head()
            rest = meter.ending()
            return lambda: self._client.finish(rest)
        body = b"".join(self._pieces)
        if self._started:  # too large to be buffered: unread
            ending.status = status_for(self._status, self.call)
            return lambda: self._client.finish(body)
        return self._pass_on(self._status, self._headers, body)

    def _pass_on(self, status: int, headers: bytes, body: bytes) -> LastWords:
        """Sends an engine's whole response to the client."""
        ending, call = self.ending, self.call
        if self._head_sent:  # an answer of its own is no longer possible
            return self._fail("upstream_error" if status < 300 else status_for(status, call), refusal(status, body))
        ending.http_status = status
        ending.status = status_for(status, call)
        headers += self._id_header
        if ending.status == "ok":
            ending.usage = call.endpoint.usage_of(body)
            body = AnswerModel(call.model_name).in_answer(body)
            if call.tells_energy:
                body = self._with_energy(body)
        else:
            ending.error = f"the engine answered {status}: {body[:300].decode(errors='replace')}"
            body, headers = openai_error(status, body), _TYPE_LINE.sub(b"", headers) + _JSON_LINE
            if ending.status == "rejected" and b"retry-after:" not in headers.lower():
                headers += b"retry-after: 1\r\n"
        return lambda: self._client.respond(status, body, None, headers)

    def _with_energy(self, json: bytes) -> bytes:
        return request_energy.with_energy(json, self.call, self.ending)

    def _fail(self, status: str, error: ApiError) -> LastWords:
        """Sends an error of ours: a response of its own, or where one has begun, an error event and a cut."""
        ending = self.ending
        ending.status, ending.error = status, error.message
        if self._started or self._head_sent:
            ending.http_status = self._status if self._started else 200
            event = self.call.endpoint.error_event(error) if ending.meter is not None or self._head_sent else b""
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
        if self.call.stream and status == 200 and b"text/event-stream" in headers.lower():
            rewrite = self._with_energy if self.call.tells_energy else None
            model = AnswerModel(self.call.model_name)
            self.ending.meter = self.call.endpoint.meter(self._window_end_s, self.call.strip_usage, rewrite, model)
            if self._slot is not None:
                self._slot.meter = self.ending.meter

    def body(self, pieces: list[bytes]) -> None:
        now_s = time.monotonic()
        self.deadline_s = now_s + self._context.timeouts.idle_s
        slot = self._slot
        if slot is not None and slot.begun_s is None and self.call.stream:  # else it is over as soon as it has begun
            slot.started()
        meter = self.ending.meter
        if meter is None:
            self._buffer(pieces)
            return
        if len(pieces) == 1:
            out = meter.feed(pieces[0], now_s)
        else:
            out = b"".join([meter.feed(piece, now_s) for piece in pieces])
        if out:
            self._relay(out)

    def chunk(self, data: bytes, start: int) -> None:
        meter = self._token_meter
        if meter is not None and meter.takes(data, start, len(data) - 2, time.monotonic()):
            client = self._client
            if not client.buffered:
                self._context.outbox.add(client)
            client.buffered.append(data if meter.becomes is None else meter.reframed(data, start))
        else:
            self.body([data[start:-2]])

    def _buffer(self, pieces: list[bytes]) -> None:
        """Keeps pieces of a response that is no stream."""
        self._pieces += pieces
        self._size += sum(map(len, pieces))
        if self._size > MAX_WHOLE_BYTES:  # the last piece stays back: it must not pass before the record
            out = b"".join(self._pieces[:-1])
            del self._pieces[:-1]
            if not self._started and self._status < 300:
                out = AnswerModel(self.call.model_name).in_beginning(out)
            if out:
                self._relay(out)

    def _relay(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            self._send_head()
            if type(self.ending.meter) is SseMeter and self.call.request.chunked_reply:
                self._token_meter = self.ending.meter
        self._client.send(data)
        if self._client.paused and not self._client_paused:
            self.client_paused(True)

    def complete(self) -> None:
        self._settle(Fate.COMPLETE)

    def lost(self, error: str) -> None:
        self._error = error
        self._settle(Fate.LOST)

    # -- the client and the clock ------------------------------------------------------------------

    def client_gone(self) -> None:
        self._gone = True
        self._stop()

    def client_paused(self, paused: bool) -> None:
        """Back-pressure: a client that does not read stops the reading from its engine."""
        self._client_paused = paused
        if self._connection is not None:
            self._connection.pause(paused)
            self.deadline_s = time.monotonic() + self._context.timeouts.idle_s

    @property
    def unstarted_at(self) -> Slot | None:
        """Where the call was sent and nothing of its answer has come from yet; such a call can still go elsewhere.

        A head is no part of the answer: vLLM sends it before it begins with the prompt.
        """
        slot = self._slot
        if slot is None or self._connection is None or self._size or (self.call.stream and slot.begun):
            return None
        return slot

    def call_back(self, squash_for_s: float | None = None) -> None:
        """Takes the call back from its instance, to go elsewhere, or to its client, to be tried again in so long."""
        if self.unstarted_at is not None:
            self._squashed_for_s = squash_for_s
            self._settle(Fate.CALLED_BACK)

    def send_again(self, engine_priority: int) -> bool:
        """Takes the call back and sends it to the same engine, which then orders it by this number. Returns False where
        it stays as it is: something of its answer has come."""
        slot = self.unstarted_at
        if slot is None:
            return False
        self.call.engine_priority = engine_priority
        self.call.sent_again += 1
        slot.sent_s = time.monotonic()
        self._reset(self._window_end_s)
        self._settle(Fate.SENT_AGAIN)
        return True

    def move(self) -> bool:
        """Takes the call back to go elsewhere, as a retry. Returns False where it stays: something of its answer has
        come, no other instance is in rotation, or the budget is spent."""
        dispatcher = self._context.dispatcher
        if self.unstarted_at is None or not dispatcher.has_another(self.call, self._tried):
            return False
        if not dispatcher.retries.spend(time.monotonic()):
            return False
        self._error = "the engine sent nothing in time"
        self._settle(Fate.MOVED)
        return True

    def stop(self) -> None:
        """Ends the call now, with an error: the gateway shuts down."""
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._ended:
            self._hang_up(None)
            self._leave(None)
            self._end(self._cut_short())

    def check(self, now_s: float) -> None:
        """Called now and then: ends a call that waits too long."""
        meter = self._token_meter
        if meter is not None and meter.last_s is not None:
            self.deadline_s = max(self.deadline_s, meter.last_s + self._context.timeouts.idle_s)
        if now_s <= self.deadline_s:
            return
        if self._client_paused:
            self._error = f"the client read nothing for {self._context.timeouts.idle_s:g} s"
            self._settle(Fate.CLIENT_STALLED)
        else:
            what = "went silent" if self._started or self._size else "sent nothing in time"
            self._error = f"The engine {what}."
            self._settle(Fate.TIMEOUT)


def status_for(http_status: int, call: Call) -> str:
    """Returns the record's status for what an engine answered."""
    if http_status < 300:
        return "ok"
    if http_status in (429, 503):
        return "rejected"
    asked_too_much = http_status in CLIENT_FAULTS or is_not_offered(http_status, call)
    return "client_error" if asked_too_much else "upstream_error"


def is_not_offered(http_status: int, call: Call) -> bool:
    """Says whether an engine answers that it was started without the endpoint, which is no fault of it."""
    return call.endpoint.optional and http_status in NOT_OFFERED
