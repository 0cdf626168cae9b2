"""vLLM's HTTP surface of one simulated engine."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Protocol, cast

from aiohttp import HttpVersion11, web

from . import frames
from .batching import Generation
from .requests import Ask, RequestError, read_chat, read_completion

_MAX_BODY_BYTES = 32 * 2**20
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Engine(Protocol):
    """What the surface needs of an engine."""

    model: str
    max_model_len: int

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""

    @property
    def health(self) -> str:
        """Empty, or what it waits for."""

    def submit(self, generation: Generation) -> None: ...

    def abort(self, generation: Generation) -> None: ...

    def metrics(self) -> str: ...


class EngineStopped(Exception):
    """The engine was stopped under a request."""


class _Reply:
    """One request's way back to its client: counts its tokens, or writes them as they come."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def token(self, index: int, finish: str | None) -> None:
        if finish is not None and not self.done.done():
            self.done.set_result(None)


class _StreamedReply(_Reply):
    """Writes each token's event straight to the transport: aiohttp's own writer costs several times the rest.

    The unsent part of a stream is bounded by the sequence itself (max_model_len events of some 250 bytes), so a client
    that does not read needs no back-pressure here, and does not slow the others of its batch, as in vLLM.
    """

    def __init__(self, transport: asyncio.WriteTransport, events: frames.StreamFrames, chunked: bool) -> None:
        super().__init__()
        self._transport = transport
        self._events = events
        self._chunked = chunked

    def token(self, index: int, finish: str | None) -> None:
        self.write(self._events.token(index, finish))
        super().token(index, finish)

    def write(self, event: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)


class Surface:
    """Handlers of one engine. `close` ends the requests that are under way by cutting their connections."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._created = int(time.time())
        self._replies: set[_Reply] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    def close(self) -> None:
        for reply in self._replies:
            if not reply.done.done():
                reply.done.set_exception(EngineStopped())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._engine.health else 200, text=self._engine.health)

    async def _models(self, _: web.Request) -> web.Response:
        body = frames.models(self._engine.model, self._engine.max_model_len, self._created)
        return web.Response(body=body, content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._engine.metrics())

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        request_id = request.headers.get("X-Request-Id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        headers = {"X-Request-Id": request_id}
        arrived_s = time.monotonic()
        try:
            data = await request.read()
            if not self._engine.ready:
                raise RequestError(503, self._engine.health or "the engine is draining")
            read = read_chat if chat else read_completion
            ask = read(data, self._engine.model, self._engine.max_model_len)
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(RequestError(413, f"the body is larger than {_MAX_BODY_BYTES} bytes"), headers)
        except RequestError as error:
            return self._refuse(error, headers)
        full_id = ("chatcmpl-" if chat else "cmpl-") + request_id
        try:
            if ask.stream:
                return await self._streamed(request, ask, full_id, headers, arrived_s)
            return await self._whole(ask, full_id, headers, arrived_s)
        except EngineStopped:
            # As when an engine process dies: the connection is cut, and nothing pretends to be an end.
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPServiceUnavailable from None

    def _refuse(self, error: RequestError, headers: dict[str, str]) -> web.Response:
        body = frames.error(error.status, error.kind, str(error), error.param)
        return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)

    async def _run(self, ask: Ask, reply: _Reply, arrived_s: float) -> None:
        """Runs the request to its end. A client that disconnects cancels this, and so frees the engine."""
        generation = Generation(ask.prompt_tokens, ask.output_tokens, ask.finish, reply.token, arrived_s)
        self._replies.add(reply)
        try:
            self._engine.submit(generation)
            await reply.done
        finally:
            self._replies.discard(reply)
            self._engine.abort(generation)

    async def _whole(self, ask: Ask, full_id: str, headers: dict[str, str], arrived_s: float) -> web.Response:
        created = int(time.time())
        await self._run(ask, _Reply(), arrived_s)
        used = frames.usage(ask.prompt_tokens, ask.output_tokens)
        text = frames.text_of(ask.seed, ask.output_tokens)
        shape = frames.chat_completion if ask.chat else frames.completion
        body = shape(full_id, created, self._engine.model, text, ask.finish, used)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _streamed(
        self, request: web.Request, ask: Ask, full_id: str, headers: dict[str, str], arrived_s: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        chunked = request.version >= HttpVersion11
        if chunked:
            response.enable_chunked_encoding()
        await response.prepare(request)
        transport = cast(asyncio.WriteTransport | None, request.transport)  # uvloop's is one in all but its base class
        if transport is None:
            raise ConnectionResetError("the client has gone")
        events = frames.StreamFrames(ask.chat, full_id, int(time.time()), self._engine.model, ask.seed)
        reply = _StreamedReply(transport, events, chunked)
        await self._run(ask, reply, arrived_s)
        if ask.include_usage:
            reply.write(events.usage(ask.prompt_tokens, ask.output_tokens))
        reply.write(frames.DONE)
        await response.write_eof()
        return response
