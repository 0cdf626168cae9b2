"""Envoy's side of an external processing stream: it sends what Envoy sends in each body mode, and holds answers against
the same rules. No bytes flow: it is given the response.

Importing this skips the test module where the extra `picker` is not installed, so tests import the picker's own modules
only later, in functions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.conftest import skip_or_fail
from tests.fakes.fleet import SECRET

try:
    import grpc
    from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
    from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
    from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
    from google.protobuf import json_format, struct_pb2
except ModuleNotFoundError as missing:
    skip_or_fail(f"the extra 'picker' is not installed: {missing}", module=True)

DUPLEX, BUFFERED, STREAMED = "FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"
VIA_UPSTREAM = "via_upstream"
DESTINATION = "x-gateway-destination-endpoint"
TIMEOUT_S = 5.0


@dataclass
class Sent:
    """A request as the engine would get it."""

    endpoint: str
    metadata: dict[str, Any]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Answered:
    """A response as the client would get it. `by_picker`: it was answered in the engine's place."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    by_picker: bool = False

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@dataclass
class FakeEnvoy:
    """One HTTP request at a time, each on a stream of its own: `async with envoy.request(...) as exchange`."""

    port: int
    request_mode: str = DUPLEX
    response_mode: str = DUPLEX
    tells_modes: bool = True

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[EnvoyStream]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = service.ExternalProcessorStub(channel).Process(timeout=TIMEOUT_S)
            stream = EnvoyStream(self, call)
            reading = asyncio.ensure_future(stream.keep_reading())
            try:
                yield stream
            finally:
                call.cancel()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def serving(self) -> bool:
        """What gRPC's health check says."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            answer: bytes = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=TIMEOUT_S)
        return answer == b"\x08\x01"


@dataclass
class EnvoyStream:
    envoy: FakeEnvoy
    call: Any
    headers: dict[str, str] = field(default_factory=dict)
    endpoint: str = ""
    _first: bool = True
    _answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    # -- messages ----------------------------------------------------------------------------------

    async def send(self, **message: Any) -> None:
        request = pb.ProcessingRequest(**message)
        if self._first and self.envoy.tells_modes:
            mode = processing_mode_pb2.ProcessingMode.BodySendMode.Value
            request.protocol_config.request_body_mode = mode(self.envoy.request_mode)
            request.protocol_config.response_body_mode = mode(self.envoy.response_mode)
        self._first = False
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the picker may have ended the stream by now
            await self.call.write(request)

    async def keep_reading(self) -> None:
        """As Envoy does, whatever it is about to send."""
        try:
            while (answer := await self.call.read()) is not grpc.aio.EOF:
                self._answers.put_nowait(answer)
        finally:
            self._answers.put_nowait(None)

    async def read(self) -> Any:
        answer = await asyncio.wait_for(self._answers.get(), TIMEOUT_S)
        assert answer is not None, "the picker closed the stream"
        return answer

    async def done(self) -> None:
        """Envoy has all that it asked for."""
        await self.call.done_writing()
        assert await asyncio.wait_for(self._answers.get(), TIMEOUT_S) is None

    # -- the request -------------------------------------------------------------------------------

    async def ask(
        self,
        body: dict[str, Any] | bytes | None,
        path: str = "/v1/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        pieces: int = 1,
        subset: Sequence[str] | None = None,
        trailers: bool = False,
        source: str | None = None,
    ) -> Sent | Answered:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"authorization": f"Bearer {SECRET}"} if headers is None else headers
        self.headers = {":method": method, ":path": path, ":authority": "gateway", **given}
        if raw:
            self.headers["content-length"] = str(len(raw))
        first: dict[str, Any] = {"request_headers": http_headers(self.headers, end=not raw)}
        if source is not None:
            first["attributes"] = {"envoy.filters.http.ext_proc": struct({"source.address": source})}
        if subset is not None:
            first["metadata_context"] = {
                "filter_metadata": {"envoy.lb.subset_hint": struct({f"{DESTINATION}-subset": list(subset)})}
            }
        await self.send(**first)
        if self.envoy.request_mode == BUFFERED:
            return await self._ask_buffered(raw)
        size = -(-len(raw) // pieces) or 1
        for start in range(0, len(raw), size):
            await self.send(request_body=pb.HttpBody(body=raw[start : start + size]))
        if trailers:
            await self.send(request_trailers=pb.HttpTrailers())
        elif raw:
            await self.send(request_body=pb.HttpBody(end_of_stream=True))
        return await self._asked_in_duplex(trailers)

    async def _ask_buffered(self, raw: bytes) -> Sent | Answered:
        answer = await self.read() if raw else None
        if answer is not None:
            if answer.HasField("immediate_response"):
                return immediate(answer)
            assert answer.HasField("request_headers")
            assert not answer.request_headers.response.HasField("header_mutation")
            await self.send(request_body=pb.HttpBody(body=raw, end_of_stream=True))
        answer = await self.read()
        if answer.HasField("immediate_response"):
            return immediate(answer)
        common = answer.request_body.response
        body = replaced(common, self.headers, raw)
        return self._sent(answer, body)

    async def _asked_in_duplex(self, trailers: bool) -> Sent | Answered:
        head = await self.read()
        if head.HasField("immediate_response"):
            return immediate(head)
        mutate(self.headers, head.request_headers.response.header_mutation)
        self.headers.pop("content-length", None)
        body, over = b"", False
        while not over:
            answer = await self.read()
            if answer.HasField("request_trailers"):
                assert trailers
                break
            piece = answer.request_body.response.body_mutation.streamed_response
            assert len(piece.body) <= 64 << 10
            body += piece.body
            over = piece.end_of_stream
            assert not (over and trailers), "the trailers end the stream"
        return self._sent(head, body)

    def _sent(self, answer: Any, body: bytes) -> Sent:
        self.endpoint = self.headers[DESTINATION]
        space = answer.dynamic_metadata["envoy.lb"]
        return Sent(self.endpoint, dict(space), dict(self.headers), body)

    # -- the response ------------------------------------------------------------------------------

    async def answer(
        self,
        pieces: Iterable[bytes],
        status: int = 200,
        content_type: str = "text/event-stream; charset=utf-8",
        details: str = VIA_UPSTREAM,
        address: str | None = None,
        served: str | None = None,
        trailers: bool = False,
    ) -> Answered:
        """Tells of a whole response, and returns what would reach the client."""
        got = await self.begin_answer(status, content_type, details, address, served)
        pieces = list(pieces)
        if self.envoy.response_mode == BUFFERED:
            pieces = [b"".join(pieces)]
        for piece in pieces[:-1]:
            await self.answer_piece(got, piece)
        await self.answer_piece(got, pieces[-1], end=not trailers)
        if trailers:
            await self.send(response_trailers=pb.HttpTrailers())
            while not (answer := await self.read()).HasField("response_trailers"):
                got.body += answer.response_body.response.body_mutation.streamed_response.body
        await self.done()
        return got

    async def begin_answer(
        self,
        status: int = 200,
        content_type: str = "text/event-stream; charset=utf-8",
        details: str = VIA_UPSTREAM,
        address: str | None = None,
        served: str | None = None,
    ) -> Answered:
        headers = {":status": str(status), "content-type": content_type}
        message: dict[str, Any] = {"response_headers": http_headers(headers)}
        if served is not None:
            space = struct({f"{DESTINATION}-served": served})
            message["metadata_context"] = {"filter_metadata": {"envoy.lb": space}}
        attributes = struct({"response.code_details": details, "upstream.address": address or self.endpoint})
        message["attributes"] = {"envoy.filters.http.ext_proc": attributes}
        await self.send(**message)
        answer = await self.read()
        mutate(headers, answer.response_headers.response.header_mutation)
        return Answered(status, headers)

    async def answer_piece(self, got: Answered, piece: bytes, end: bool = False) -> None:
        """Sends a piece and takes the answer; in full duplex that may be none: then all that comes is taken at the
        end."""
        await self.send(response_body=pb.HttpBody(body=piece, end_of_stream=end))
        if self.envoy.response_mode != DUPLEX:
            common = (await self.read()).response_body.response
            got.body += replaced(common, got.headers, piece)
            return
        while end:
            streamed = (await self.read()).response_body.response.body_mutation.streamed_response
            got.body += streamed.body
            end = not streamed.end_of_stream


def parsed(message: dict[str, Any]) -> Any:
    """A message of Envoy's from protobuf's JSON."""
    return json_format.ParseDict(message, pb.ProcessingRequest())


def as_json(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def struct(fields: dict[str, Any]) -> Any:
    found = struct_pb2.Struct()
    found.update(fields)
    return found


def http_headers(headers: dict[str, str], end: bool = False) -> Any:
    rows = [{"key": key, "raw_value": value.encode()} for key, value in headers.items()]
    return pb.HttpHeaders(headers={"headers": rows}, end_of_stream=end)


def mutate(headers: dict[str, str], mutation: Any) -> None:
    for name in mutation.remove_headers:
        headers.pop(name, None)
    for option in mutation.set_headers:
        assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
        headers[option.header.key] = option.header.raw_value.decode()


def replaced(common: Any, headers: dict[str, str], came: bytes) -> bytes:
    """The one answer to a piece or a buffered body. Envoy refuses a buffered body whose length is not its header's."""
    mutate(headers, common.header_mutation)
    mutation = common.body_mutation
    kind = mutation.WhichOneof("mutation")
    assert kind != "streamed_response", "only full duplex has those"
    body: bytes = {"body": mutation.body, "clear_body": b"", None: came}[kind]
    if "content-length" in headers:
        assert int(headers["content-length"]) == len(body)
    return body


def immediate(answer: Any) -> Answered:
    response, headers = answer.immediate_response, dict[str, str]()
    mutate(headers, response.headers)
    return Answered(response.status.code, headers, response.body, by_picker=True)
