"""One HTTP request that Envoy asks about: taken in, sent to an instance, followed to its end, and recorded once.

The course is a straight line: head, body, decision; then the response's head and body as they pass. Whatever breaks it
(the client leaves, Envoy goes, the picker stops) ends in `finally`, with the place given back and a row in the journal.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..accounts import request_energy
from ..errors import SERVER_ERROR, ApiError, none_ready, unavailable
from ..fleet.instance import Instance
from ..http.request import Request
from ..intake import Refused, asks_for_models
from ..placing.slot import Slot
from ..relay.exchange import CLIENT_CLOSED, MAX_WHOLE_BYTES, is_not_offered, status_for
from ..requests.answer_model import AnswerModel
from ..requests.call import Call, Ending
from ..requests.endpoint import BY_PATH
from ..requests.engine_errors import openai_error
from ..requests.engine_order import engine_body
from ..runtime import GatewayRuntime
from . import messages
from .endpoints import Endpoints
from .messages import BodyMode, ProtocolError

_VIA_UPSTREAM = "via_upstream"  # Envoy's response.code_details of a response that an engine gave
_NOT_FOR_ENGINES = ("authorization", "accept-encoding")  # a key is ours to check; packed streams cannot be read

Receive = Callable[[], Awaitable[Any]]  # the next ProcessingRequest; None: there are no more
Send = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PickerContext:
    """The parts that all requests share."""

    runtime: GatewayRuntime
    endpoints: Endpoints
    max_body_bytes: int
    started_at_s: int


class Processing:
    """Serves one stream of Envoy's. `run` returns when all is said; it raises ProtocolError, and CancelledError."""

    def __init__(self, context: PickerContext, receive: Receive, send: Send) -> None:
        self._context = context
        self._receive = receive
        self._send = send
        self._modes = messages.Modes()
        self._call: Call | None = None
        self._slot: Slot | None = None
        self._ending = Ending()
        self._ended = False
        self._trailers = False  # the request has some, and they are here
        self._status = 0  # of the response; 0: none yet
        self._by_envoy = False  # the response is Envoy's own: it did not reach an engine
        self._refused = False  # ... which took no connection
        self._rewrites: Callable[[bytes], bytes] | None = None  # of a response that is buffered until it is complete
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0

    async def run(self) -> None:
        try:
            if await self._send_on():
                await self._follow()
        except (ProtocolError, asyncio.CancelledError):
            raise
        except Exception as error:
            self._ending.status, self._ending.http_status = "upstream_error", 500
            self._ending.error = f"failed inside the picker: {error!r}"
            self._record()
            raise
        finally:
            self._end(complete=False)

    # -- the request -------------------------------------------------------------------------------

    async def _send_on(self) -> bool:
        """Says whether the request went to an instance; else it has been answered."""
        first = await self._receive()
        if first is None:
            return False
        if messages.kind_of(first) != messages.REQUEST_HEADERS:
            raise ProtocolError("the request's headers do not come first: set request_header_mode to SEND")
        self._modes = messages.modes_of(first)
        head = messages.request_of(messages.headers_of(first.request_headers))
        try:
            request = await self._take_in(head, first)
            if request is None:
                return False
            call = self._call = self._context.runtime.intake.call(
                request, BY_PATH[_path(head)], messages.client_host(first)
            )
            call.endpoints = messages.subset_of(first)
            where = await self._place(call)
        except Refused as refused:
            self._call = refused.call
            await self._refuse(head, refused.error, "client_error")
            return False
        except ApiError as error:
            await self._refuse(head, error, "rejected")
            return False
        laxity = self._slot is not None and self._slot.instance.state.laxity
        body = engine_body(call.body, call.engine_priority, call.engine_work, laxity, time.time())
        headers = {"content-type": b"application/json", "x-request-id": call.request_id.encode()}
        if self._slot is not None and self._slot.instance.authorization:
            headers["authorization"] = self._slot.instance.authorization
        removed = [name for name in _NOT_FOR_ENGINES if name not in headers]
        decided = messages.decision(self._modes.request, where, headers, removed, body, not self._trailers)
        for reply in decided:
            await self._send(reply)
        if self._trailers:
            await self._send(messages.nothing_to_change(messages.REQUEST_TRAILERS))
        return True

    async def _take_in(self, head: Request, first: Any) -> Request | None:
        """Returns the request with its body; None: it was one that the picker answers itself. Raises ApiError."""
        path, intake, host = _path(head), self._context.runtime.intake, messages.client_host(first)
        models_asked = asks_for_models(path)
        if models_asked and head.method in (b"GET", b"HEAD"):
            models = intake.models(head, path, self._context.started_at_s, host)
            await self._send(messages.immediate(200, models, _identity(head, None)))
            return None
        if not models_asked and path not in BY_PATH:
            raise ApiError(404, f"There is nothing at {path[:100].decode(errors='replace')}.", code="not_found")
        if head.method != b"POST" or models_asked:
            what = "GET" if models_asked else "POST"
            raise ApiError(405, f"Use {what} here.", code="method_not_allowed")
        intake.key(head, host)  # before the body is waited for
        body = b"" if first.request_headers.end_of_stream else await self._body()
        return messages.request_of(head.headers, body)

    async def _body(self) -> bytes:
        """Returns the whole body. Raises ApiError 413, and 400 when Envoy breaks off."""
        duplex = self._modes.request is BodyMode.FULL_DUPLEX
        if not duplex:  # the body is not sent before the headers are answered
            await self._send(messages.nothing_to_change(messages.REQUEST_HEADERS))
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            kind = "" if message is None else messages.kind_of(message)
            if kind == messages.REQUEST_TRAILERS:
                self._trailers = True
                return b"".join(pieces)
            if kind != messages.REQUEST_BODY:
                raise ApiError(400, "The body did not come to its end.")
            pieces.append(message.request_body.body)
            size += len(pieces[-1])
            if size > self._context.max_body_bytes:
                raise ApiError(413, f"The body exceeds {self._context.max_body_bytes} bytes.", code="body_too_large")
            if message.request_body.end_of_stream or not duplex:
                return b"".join(pieces)

    async def _place(self, call: Call) -> str:
        """Waits for a place; returns its endpoint. Raises ApiError."""
        context, service = self._context, call.service
        dispatcher = context.runtime.dispatcher
        dispatcher.retries.earn()
        if call.endpoints is not None:
            for instance in service.ready:
                await context.endpoints.of(instance)
            if not context.endpoints.allowed(service.ready, call):
                raise unavailable(f"No instance of '{service.name}' that the proxy allows is ready.")
        slot = self._slot = dispatcher.place_now(call) or await dispatcher.place(call)
        if slot is None:
            raise none_ready(service.name)
        ending = self._ending
        ending.instance, ending.choice, ending.attempts = slot.instance, slot.choice, 1
        return await context.endpoints.of(slot.instance)

    async def _refuse(self, head: Request, error: ApiError, status: str) -> None:
        """Answers in the engine's place; the record goes first."""
        headers = _identity(head, self._call)
        if error.retry_after_s is not None:
            headers["retry-after"] = b"%d" % error.retry_after_s
        headers |= {name.decode(): value for name, value in error.limit_headers.items()}
        ending = self._ending
        ending.status, ending.http_status, ending.error = status, error.status, error.message
        if self._call is None:
            self._context.runtime.metrics.refusals[error.status] += 1
        self._record()
        await self._send(messages.immediate(error.status, error.body(), headers))

    # -- the response ------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while (message := await self._receive()) is not None:
            kind = messages.kind_of(message)
            if kind == messages.RESPONSE_HEADERS:
                await self._response_head(message)
            elif kind == messages.RESPONSE_BODY:
                await self._response_piece(message.response_body)
            elif kind == messages.RESPONSE_TRAILERS:
                await self._response_over()
            elif kind == messages.REQUEST_TRAILERS:
                await self._send(messages.nothing_to_change(kind))

    async def _response_head(self, message: Any) -> None:
        call = self._asked()
        headers = messages.headers_of(message.response_headers)
        status = headers.get(b":status", b"")
        self._status = int(status) if status.isdigit() else 502
        details = messages.attribute(message, "response.code_details")
        if details is not None and details != _VIA_UPSTREAM:
            self._by_envoy, self._refused = True, "connection_failure" in details
        else:
            self._served(messages.served_by(message))
        ending = self._ending
        streams = b"text/event-stream" in headers.get(b"content-type", b"").lower()
        if call.stream and self._status == 200 and streams:
            window_s = None if ending.choice is None else ending.choice.window_s
            until_s = math.inf if window_s is None else call.request.received_s + window_s
            rewrite = self._with_energy if call.tells_energy else None
            model = AnswerModel(call.model_name)
            ending.meter = call.endpoint.meter(until_s, call.strip_usage, rewrite, model)
            if self._slot is not None:
                self._slot.meter = ending.meter
        elif self._modes.response in (BodyMode.FULL_DUPLEX, BodyMode.BUFFERED):
            if self._by_envoy:
                self._rewrites = _failed_upstream
            else:
                ok = status_for(self._status, call) == "ok"
                self._rewrites = self._answer if ok else partial(openai_error, self._status)
        if message.response_headers.end_of_stream:
            self._end(complete=True)
        shown = _identity(call.request, call) | _limits(call)
        if self._rewrites not in (None, self._answer):
            shown["content-type"] = b"application/json"
        await self._send(messages.response_headers(shown))

    async def _response_piece(self, piece: Any) -> None:
        data, last = piece.body, piece.end_of_stream or self._modes.response is BodyMode.BUFFERED
        if self._slot is not None:
            self._slot.started()
        goes = self._read(data, last)
        if last:
            self._end(complete=True)
        for reply in messages.response_body(self._modes.response, data, goes, last):
            await self._send(reply)

    def _read(self, data: bytes, last: bool) -> bytes:
        """Learns from a piece of the response; returns what may pass of it, once the record of the end is written."""
        meter = self._ending.meter
        if meter is not None:
            if self._ended:
                return data
            goes = meter.feed(data, time.monotonic())
            if meter.done or last:
                self._end(complete=True)
                goes += meter.ending()
            return goes
        self._buffered_bytes += len(data)
        if self._buffered_bytes <= MAX_WHOLE_BYTES:
            self._buffered.append(data)
        else:  # too large to be buffered: it passes unread
            data = data if self._rewrites is None else b"".join((*self._buffered, data))
            self._rewrites, self._buffered = None, []
        if self._rewrites is None:
            return data
        if not last:
            return b""
        self._end(complete=True)
        return self._rewrites(b"".join(self._buffered))

    async def _response_over(self) -> None:
        """Trailers: the body has ended before them. In full duplex what was buffered of it goes first."""
        rest = b"" if self._ended else self._read(b"", last=True)
        self._end(complete=True)
        if self._modes.response is BodyMode.FULL_DUPLEX and rest:
            for reply in messages.response_body(self._modes.response, b"", rest, last=False):
                await self._send(reply)
        await self._send(messages.nothing_to_change(messages.RESPONSE_TRAILERS))

    def _served(self, where: str | None) -> None:
        """The proxy may have sent it elsewhere than it was answered: counts and records follow."""
        slot = self._slot
        if where is None or slot is None or where == self._context.endpoints.known(slot.instance):
            return
        instance = self._context.endpoints.find(slot.call.service.ready, where)
        if instance is not None:
            self._move(slot, instance)

    def _move(self, slot: Slot, instance: Instance) -> None:
        slot.instance.health.unknown()
        slot.end()
        self._slot = self._context.runtime.dispatcher.take(slot.call, (instance, slot.choice))
        self._ending.instance = instance

    def _answer(self, body: bytes) -> bytes:
        """Returns a whole answer as its client is to see it."""
        call = self._asked()
        body = AnswerModel(call.model_name).in_answer(body)
        return self._with_energy(body) if call.tells_energy else body

    def _with_energy(self, json: bytes) -> bytes:
        return request_energy.with_energy(json, self._asked(), self._ending)

    def _asked(self) -> Call:
        if self._call is None:
            raise ProtocolError("a response came before its request")
        return self._call

    # -- the end -----------------------------------------------------------------------------------

    def _end(self, complete: bool) -> None:
        """Once, the first time: gives the place back, says how the engine behaved, and writes the record."""
        if self._ended or self._call is None:
            return
        ending, meter = self._ending, self._ending.meter
        if not complete:
            self._broken_off()
        elif self._by_envoy:
            ending.http_status = self._status
            ending.status = "timeout" if self._status == 504 else "upstream_error"
            ending.error = f"the proxy answered {self._status} in place of the engine"
        elif meter is not None:
            ending.http_status = self._status
            ending.status = "upstream_error" if meter.failed else "ok"
            ending.error = "the engine sent an error event" if meter.failed else ""
        else:
            ending.http_status = self._status
            ending.status = status_for(self._status, self._call)
            body = b"".join(self._buffered)
            if ending.status == "ok":
                ending.usage = self._call.endpoint.usage_of(body)
            else:
                ending.error = f"the engine answered {self._status}: {body[:300].decode(errors='replace')}"
        self._leave(complete)
        self._record()

    def _broken_off(self) -> None:
        ending = self._ending
        ending.status = "client_gone"
        if self._status:
            ending.http_status = self._status
            ending.error = "the stream broke off: its client left or its engine failed, the proxy does not say which"
        else:
            ending.http_status, ending.error = CLIENT_CLOSED, "the client closed the connection"

    def _leave(self, complete: bool) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        slot.end()
        health = slot.instance.health
        if not complete:
            health.unknown()
        elif self._status < 500 or is_not_offered(self._status, slot.call):
            health.worked()
        else:
            health.failed(time.monotonic(), refused=self._refused)

    def _record(self) -> None:
        call, ending = self._call, self._ending
        if call is None or self._ended:
            return
        self._ended = True
        slot, self._slot = self._slot, None
        if slot is not None:  # refused after a place was found
            slot.end()
            slot.instance.health.unknown()
        ending.ended_s = time.monotonic()
        if ending.usage is None and ending.meter is not None:
            ending.usage = ending.meter.usage()
        self._context.runtime.intake.record(call, ending)


def _failed_upstream(said: bytes) -> bytes:
    """Returns what is sent in place of Envoy's words when an engine does not answer."""
    what = said[:200].decode(errors="replace") or "no answer"
    return ApiError(502, f"The request failed upstream: {what}.", kind=SERVER_ERROR, code="upstream_error").body()


def _path(head: Request) -> bytes:
    return head.path.partition(b"?")[0]


def _limits(call: Call) -> dict[str, bytes]:
    """Returns the headers that tell the client what is left of its limits."""
    lines = (line.partition(b": ") for line in call.limit_headers.splitlines())
    return {name.decode(): value for name, _, value in lines}


def _identity(head: Request, call: Call | None) -> dict[str, bytes]:
    """X-Request-Id is the client's own, else the record's, where there is one."""
    identity = head.client_id() or (None if call is None else call.request_id.encode())
    return {} if identity is None else {"x-request-id": identity}
