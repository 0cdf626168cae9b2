"""A small engine with vLLM's HTTP surface and faults to order, for tests of what stands before it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any

_LEFT = (ConnectionError, RuntimeError)  # what writing to a client that left raises; the latter is uvloop's


@dataclass
class Received:
    """A request as the engine got it."""

    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]


@dataclass
class FakeEngine:
    """Answers completions. Attributes may be changed at any time; they hold for requests that come later.

    Attributes:
        tokens: generated for each request (`sim_output_tokens` in `vllm_xargs` goes before).
        pace_s: between tokens.
        head_delay_s: before the response begins.
        status: anything but 200 is answered with an error in vLLM's shape.
        die: "before" the first byte, or "midway", after `die_after` tokens.
        silent_after: stops sending after so many tokens without closing.
        pieces: how a stream's bytes are cut for the wire: "events", "bytes" (7 at a time), or "joined" (all at once).
        filler: bytes of text in each token, to make streams heavy.
        adapters: sources by name, that were loaded; None: it was started without LoRA.
        adapter_fault: why it loads none.
        held: while there is one and it is not set, responses wait for it.
    """

    tokens: int = 5
    pace_s: float = 0.0
    head_delay_s: float = 0.0
    status: int = 200
    die: str = ""
    die_after: int = 2
    silent_after: int | None = None
    pieces: str = "events"
    filler: int = 0
    close_when_idle: bool = False
    held: asyncio.Event | None = None
    adapters: dict[str, str] | None = None
    adapter_fault: str = ""
    orders: list[tuple[str, str]] = field(default_factory=list)  # to load and unload, which are not among the received
    received: list[Received] = field(default_factory=list)
    looks: int = 0  # requests for its health, which are not among the received
    aborted: int = 0
    finished: int = 0
    connections: int = 0
    sent_bytes: int = 0

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> FakeEngine:
        self._scheme = "http" if tls is None else "https"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[Any]] = set()
        return self

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # what was accepted just now has its task then
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # tasks are forgotten, and their transports closed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                if request.path == "/health":
                    self.looks += 1
                elif request.path.endswith("load_lora_adapter"):
                    self.orders.append((request.path.split("/")[2].split("_")[0], request.body["lora_name"]))
                else:
                    self.received.append(request)
                if not await self._answer(request, reader, writer) or self.close_when_idle:
                    break
        except (*_LEFT, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Writes a response while watching for the client's departure. Returns whether the connection goes on."""
        work = asyncio.ensure_future(self._respond(request, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = not work.done()
            work.cancel()
            gone.cancel()
            outcome, _ = await asyncio.gather(work, gone, return_exceptions=True)
        if left or isinstance(outcome, _LEFT):
            self.aborted += 1
            return False
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _respond(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(self.head_delay_s)
        if self.held is not None:
            await self.held.wait()
        if self.die == "before":
            _reset(writer)
            return False
        if self.status != 200:
            error = {"message": "engine says no", "type": "error", "param": None, "code": self.status}
            await self._whole(writer, self.status, {"error": error})
            return True
        if request.path.endswith("load_lora_adapter"):
            await self._whole(writer, *self._order(request.body, unload="/unload" in request.path))
            return True
        if self.adapters is not None and request.body.get("model") not in (None, "Llama3-70B", *self.adapters):
            error = {"message": f"The model `{request.body['model']}` does not exist.", "type": "NotFoundError"}
            await self._whole(writer, 404, {"error": error})
            return True
        if request.path in ("/health", "/v1/embeddings"):
            await self._whole(writer, 200, {} if request.path == "/health" else _embeddings(request))
            return True
        if request.path in ("/rerank", "/score"):
            await self._whole(writer, 200, _scores(request))
            return True
        body = request.body
        if not body:  # `/metrics`, and what else engines are asked for
            await self._whole(writer, 404, {"error": {"message": f"there is no {request.path}", "type": "error"}})
            return True
        count = (body.get("vllm_xargs") or {}).get("sim_output_tokens", self.tokens)
        prompt = body.get("prompt")
        prompt_tokens = len(prompt) if isinstance(prompt, list) else 7
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": count,
            "total_tokens": prompt_tokens + count,
        }
        if body.get("stream"):
            return await self._stream(request, writer, count, usage)
        await asyncio.sleep(self.pace_s * count)
        text = "tok " * count
        if request.path == "/v1/responses":
            await self._whole(writer, 200, _response(request, text, count))
            return True
        choice = (
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
            if "chat" in request.path
            else {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
        )
        kind = "chat.completion" if "chat" in request.path else "text_completion"
        await self._whole(
            writer,
            200,
            {"id": "cmpl-1", "object": kind, "created": 1, "model": body["model"], "choices": [choice], "usage": usage},
        )
        return True

    def _order(self, body: dict[str, Any], *, unload: bool) -> tuple[int, dict[str, Any]]:
        """Loads or unloads an adapter as vLLM does. Returns status and body of the answer."""
        name = body["lora_name"]
        if self.adapters is None:
            return 404, {"detail": "Not Found"}
        if self.adapter_fault:
            return 400, {"error": {"message": self.adapter_fault, "type": "BadRequestError"}}
        if unload:
            gone = self.adapters.pop(name, None) is not None
            return (200, {}) if gone else (404, {"error": {"message": f"The lora adapter '{name}' cannot be found."}})
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        self.adapters[name] = body["lora_path"]
        return 200, {}

    async def _whole(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\nserver: fake\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(data))
            + data
        )
        await writer.drain()

    async def _stream(self, request: Received, writer: asyncio.StreamWriter, count: int, usage: dict[str, int]) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        joined = []
        if request.path == "/v1/responses":
            await self._write(writer, _named("response.created", response=_response(request, "", None)))
        for n in range(count):
            if n == self.silent_after:
                await asyncio.sleep(3600)
            if self.die == "midway" and n == self.die_after:
                _reset(writer)
                return False
            event = _event(request, n, last=n == count - 1, filler=self.filler)
            if self.pieces == "joined":
                joined.append(event)
            else:
                await self._write(writer, event)
            if self.pace_s:
                await asyncio.sleep(self.pace_s)
        options = request.body.get("stream_options") or {}
        tail = b""
        if options.get("include_usage"):
            tail += b"data: " + json.dumps(_chunk(request) | {"choices": [], "usage": usage}).encode() + b"\n\n"
        if request.path == "/v1/responses":
            tail = _named("response.completed", response=_response(request, "tok " * count, count))
        else:
            tail += b"data: [DONE]\n\n"
        await self._write(writer, b"".join(joined) + tail)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        self.finished += 1
        return True

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = 7 if self.pieces == "bytes" else len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            self.sent_bytes += len(piece)
            if self.pieces == "bytes":
                await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if name:
            headers[name.lower()] = value
    if headers.get("transfer-encoding") == "chunked":
        raw = await _read_chunks(reader)
    else:
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(first.split(" ")[1], headers, raw, json.loads(raw) if raw else {})


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(pieces)


def _chunk(request: Received) -> dict[str, Any]:
    kind = "chat.completion.chunk" if "chat" in request.path else "text_completion"
    return {"id": "cmpl-1", "object": kind, "created": 1, "model": request.body["model"]}


def _event(request: Received, n: int, last: bool, filler: int) -> bytes:
    text = f"tok{n} " + "x" * filler
    if request.path == "/v1/responses":
        return _named("response.output_text.delta", item_id="msg-1", output_index=0, content_index=0, delta=text)
    finish = "length" if last else None
    choice = (
        {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        if "chat" in request.path
        else {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    )
    return b"data: " + json.dumps(_chunk(request) | {"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def _named(name: str, **fields: Any) -> bytes:
    """An event of /v1/responses."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps({"type": name, **fields}).encode())


def _response(request: Received, text: str, count: int | None) -> dict[str, Any]:
    """`count` None: nothing is generated yet."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg-1", "role": "assistant", "status": "completed", "content": content}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 7, "output_tokens": count, "total_tokens": 7 + (count or 0), **details}
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress" if count is None else "completed",
        "model": request.body["model"],
        "output": [] if count is None else [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if count is None else usage,
    }


def _embeddings(request: Received) -> dict[str, Any]:
    given = request.body.get("input")
    texts = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    data = [{"object": "embedding", "index": n, "embedding": [0.5, -0.25]} for n, _ in enumerate(texts)]
    usage = {"prompt_tokens": 7 * len(texts), "total_tokens": 7 * len(texts)}
    return {"id": "embd-1", "object": "list", "model": request.body["model"], "data": data, "usage": usage}


def _scores(request: Received) -> dict[str, Any]:
    """Of reranking, vLLM's older versions count the whole alone."""
    if request.path == "/rerank":
        found = [{"index": n, "relevance_score": 0.5} for n, _ in enumerate(request.body["documents"])]
        return {"id": "rerank-1", "model": request.body["model"], "results": found, "usage": {"total_tokens": 21}}
    data = [{"object": "score", "index": 0, "score": 0.5}]
    usage = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    return {"id": "score-1", "object": "list", "model": request.body["model"], "data": data, "usage": usage}


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes as a killed process does: with a reset."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
