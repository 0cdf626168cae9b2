"""vLLM's HTTP surface of one simulated engine, its development endpoints for sleep included."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, cast

import msgspec
from aiohttp import HttpVersion11, web

from . import answers, generated_text
from .generation import Generation
from .hand_over import Arriving, HandOver
from .request_reading import Ask, RequestError, read_chat, read_completion
from .side_channel import KvOffer

_MAX_BODY_BYTES = 32 * 2**20
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SLEEP_MODES = ("abort", "wait", "keep")
_WAKE_TAGS = ("weights", "kv_cache")
PATHS = ("/v1/completions", "/v1/chat/completions")  # where it serves requests


class _UnloadOrder(msgspec.Struct):
    lora_name: Annotated[str, msgspec.Meta(min_length=1)]


class _LoadOrder(_UnloadOrder):
    lora_path: Annotated[str, msgspec.Meta(min_length=1)]


class ServedEngine(Protocol):
    """The engine as its HTTP surface needs it."""

    model: str
    max_model_len: int
    adapters: dict[str, str]  # of LoRA, by name: where they came from

    @property
    def refusal(self) -> RequestError | None:
        """The refusal of new requests, with its reason; None: it takes requests."""

    @property
    def health(self) -> str:
        """Empty, or what it waits for."""

    @property
    def by_priority(self) -> bool: ...

    @property
    def sleeping(self) -> bool: ...

    def submit(self, generation: Generation) -> None: ...

    def abort(self, generation: Generation) -> None: ...

    def metrics(self) -> str: ...

    def hand_over(self, ask: Ask, request_id: str) -> HandOver | None:
        """For a request whose cache is to be kept for another engine."""

    def transfer_params(self, kept: HandOver) -> Mapping[str, Any]:
        """Returns what that engine has to be sent."""

    async def fetch(self, ask: Ask) -> Arriving | None:
        """Fetches the cache that a request brings along. Raises RequestError."""

    def offer(self, request_id: str) -> KvOffer | None: ...

    def let_go(self, request_id: str) -> bool: ...

    async def sleep(self, level: int, mode: str) -> None:
        """Returns when it sleeps. Raises RequestError."""

    async def wake(self, tags: Sequence[str]) -> None:
        """Returns when it is awake, or as far as `tags` say. Raises RequestError."""


class EngineStopped(Exception):
    """The engine was stopped under a request."""


class _Reply:
    """One request's way back to its client: counts its tokens, or writes them as they come."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tokens = 0
        self.finish = ""
        self.transfer: Mapping[str, Any] | None = None  # for the engine that goes on

    def token(self, index: int | None, finish: str | None) -> None:
        self.tokens += index is not None
        if finish is not None and not self.done.done():
            self.finish = finish
            self.done.set_result(None)


class _StreamedReply(_Reply):
    """Writes each token's event straight to the transport: aiohttp's own writer costs several times the rest.

    The unsent part of a stream is bounded by the sequence itself (max_model_len events of some 250 bytes), so a client
    that does not read needs no back-pressure here, and does not slow the others of its batch, as in vLLM.
    """

    def __init__(self, transport: asyncio.WriteTransport, events: answers.StreamFrames, chunked: bool) -> None:
        super().__init__()
        self._transport = transport
        self._events = events
        self._chunked = chunked

    def token(self, index: int | None, finish: str | None) -> None:
        self.write(self._events.token(index, finish, self.transfer))
        super().token(index, finish)

    def write(self, event: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)


class HttpApi:
    """Handlers of one engine. `close` ends the requests that are under way by cutting their connections."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self._created = int(time.time())
        self._replies: set[_Reply] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/load_lora_adapter", self._load_adapter)
        app.router.add_post("/v1/unload_lora_adapter", self._unload_adapter)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        app.router.add_get("/kv_cache/{request}", self._offer)
        app.router.add_delete("/kv_cache/{request}", self._let_go)
        return app

    def close(self) -> None:
        for reply in self._replies:
            if not reply.done.done():
                reply.done.set_exception(EngineStopped())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._engine.health else 200, text=self._engine.health)

    async def _models(self, _: web.Request) -> web.Response:
        body = answers.models(self._engine.model, self._engine.adapters, self._engine.max_model_len, self._created)
        return web.Response(body=body, content_type="application/json")

    async def _load_adapter(self, request: web.Request) -> web.Response:
        """Loads it at once, as its weights are small. Requests by its name take the model's own times."""
        adapters = self._engine.adapters
        try:
            order = msgspec.json.decode(await request.read(), type=_LoadOrder)
        except msgspec.DecodeError as error:
            return self._refuse(RequestError(400, f"lora_name and lora_path are needed: {error}", "lora_name"), {})
        if order.lora_name in (self._engine.model, *adapters):
            known = RequestError(400, f"The lora adapter '{order.lora_name}' has already been loaded.", "lora_name")
            return self._refuse(known, {})
        adapters[order.lora_name] = order.lora_path
        return web.Response(text=f"Success: LoRA adapter '{order.lora_name}' added successfully.")

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        try:
            name = msgspec.json.decode(await request.read(), type=_UnloadOrder).lora_name
        except msgspec.DecodeError as error:
            return self._refuse(RequestError(400, f"lora_name is needed: {error}", "lora_name"), {})
        if self._engine.adapters.pop(name, None) is None:
            return self._refuse(RequestError(404, f"The lora adapter '{name}' cannot be found.", "lora_name"), {})
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._engine.metrics())

    async def _sleep(self, request: web.Request) -> web.Response:
        level, mode = request.query.get("level", "1"), request.query.get("mode", "abort")
        try:
            if level not in ("1", "2") or mode not in _SLEEP_MODES:
                raise RequestError(400, f"level is 1 or 2, and mode one of {', '.join(_SLEEP_MODES)}", "level")
            await self._engine.sleep(int(level), mode)
        except RequestError as error:
            return self._refuse(error, {})
        return web.Response()

    async def _wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", list(_WAKE_TAGS))
        try:
            if not set(tags) <= set(_WAKE_TAGS):
                raise RequestError(400, f"tags are {' and '.join(_WAKE_TAGS)}", "tags")
            await self._engine.wake(tags)
        except RequestError as error:
            return self._refuse(error, {})
        return web.Response()

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return _json({"is_sleeping": self._engine.sleeping})

    async def _offer(self, request: web.Request) -> web.Response:
        offer = self._engine.offer(request.match_info["request"])
        return web.Response(status=404) if offer is None else _json(offer)

    async def _let_go(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.let_go(request.match_info["request"]) else 404)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        request_id = request.headers.get("X-Request-Id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        headers = {"X-Request-Id": request_id}
        full_id = ("chatcmpl-" if chat else "cmpl-") + request_id
        try:
            ask = await self._read(request, chat)
            generation = await self._prepare(ask, full_id, time.monotonic())
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(RequestError(413, f"the body is larger than {_MAX_BODY_BYTES} bytes"), headers)
        except RequestError as error:
            return self._refuse(error, headers)
        try:
            if ask.stream:
                return await self._streamed(request, ask, generation, full_id, headers)
            return await self._whole(ask, generation, full_id, headers)
        except EngineStopped:
            # As when an engine process dies: the connection is cut, and nothing pretends to be an end.
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPServiceUnavailable from None

    async def _read(self, request: web.Request, chat: bool) -> Ask:
        data = await request.read()
        if (refusal := self._engine.refusal) is not None:
            raise refusal
        models = (self._engine.model, *self._engine.adapters)
        ask = (read_chat if chat else read_completion)(data, models, self._engine.max_model_len)
        if ask.priority and not self._engine.by_priority:
            message = f"Got priority {ask.priority} but Priority scheduling is not enabled."
            raise RequestError(400, message, "priority")
        return ask

    async def _prepare(self, ask: Ask, full_id: str, arrived_s: float) -> Generation:
        """Returns the request as the engine takes it; what it brings along is looked up at the other engine."""
        arriving = await self._engine.fetch(ask)
        if (refusal := self._engine.refusal) is not None:  # meanwhile
            raise refusal
        return Generation(
            prompt_tokens=ask.prefill_tokens,
            target_tokens=ask.output_tokens,
            finish=ask.finish,
            on_token=lambda index, finish: None,
            arrived_s=arrived_s,
            priority=ask.priority,
            hand_over=self._engine.hand_over(ask, f"{full_id}-{uuid.uuid4().hex[:8]}"),
            arriving=arriving,
        )

    def _refuse(self, error: RequestError, headers: dict[str, str]) -> web.Response:
        body = answers.error(error.status, error.kind, str(error), error.param)
        if error.retry_after_s is not None:
            headers = {**headers, "Retry-After": str(error.retry_after_s)}
        return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)

    async def _run(self, generation: Generation, reply: _Reply) -> None:
        """Runs the request to its end. A client that disconnects cancels this, and so frees the engine."""

        def on_token(index: int | None, finish: str | None) -> None:
            if finish is not None and generation.hand_over is not None:
                reply.transfer = self._engine.transfer_params(generation.hand_over)
            reply.token(index, finish)

        generation.on_token = on_token
        self._replies.add(reply)
        try:
            self._engine.submit(generation)
            await reply.done
        finally:
            self._replies.discard(reply)
            self._engine.abort(generation)

    async def _whole(self, ask: Ask, generation: Generation, full_id: str, headers: dict[str, str]) -> web.Response:
        created = int(time.time())
        reply = _Reply()
        await self._run(generation, reply)
        seed, tokens = ask.prompt.seed, reply.tokens
        answer = answers.CompleteAnswer(
            full_id,
            created,
            ask.model,
            generated_text.text_of(seed, tokens),
            reply.finish,
            answers.usage(ask.prompt_tokens, tokens),
            (ask.prompt.ids(), generated_text.ids_of(seed, tokens)) if ask.return_token_ids else None,
            reply.transfer,
        )
        body = (answers.chat_completion if ask.chat else answers.completion)(answer)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _streamed(
        self, request: web.Request, ask: Ask, generation: Generation, full_id: str, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        chunked = request.version >= HttpVersion11
        if chunked:
            response.enable_chunked_encoding()
        await response.prepare(request)
        transport = cast(asyncio.WriteTransport | None, request.transport)  # uvloop's is one in all but its base class
        if transport is None:
            raise ConnectionResetError("the client has gone")
        ids = ask.prompt.ids() if ask.return_token_ids else None
        seed, created = ask.prompt.seed, int(time.time())
        events = answers.StreamFrames(ask.chat, full_id, created, ask.model, seed, ids)
        reply = _StreamedReply(transport, events, chunked)
        await self._run(generation, reply)
        if ask.include_usage:
            reply.write(events.usage(ask.prompt_tokens, reply.tokens))
        reply.write(answers.DONE)
        await response.write_eof()
        return response


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
