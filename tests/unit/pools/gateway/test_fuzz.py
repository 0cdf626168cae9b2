"""Whatever bytes come in: never a 5xx, never a connection that hangs, never a request without its record.

200 examples each; `make test-thorough` takes 10,000 (profile `fuzz`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools import wire
from pools.gateway.errors import ApiError
from pools.gateway.http.request import HttpLimits
from pools.gateway.requests import validation
from pools.gateway.requests.bodies import ChatBody, CompletionBody
from pools.gateway.requests.endpoint import BY_PATH, CHAT, COMPLETIONS, Endpoint
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import EXPIRED_SECRET, MODEL, SECRET, FakeFleet
from tests.fakes.strict_engine import StrictEngine
from tests.unit.pools.gateway.conftest import until

FUZZ = settings(
    max_examples=max(200, settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
READ_TIMEOUT_S = 0.1  # the gateway's patience with a request that does not come to its end
ANSWERED_S = 30.0  # on a busy machine; by far more than any time-out here
PATHS = [endpoint.path.decode() for endpoint in BY_PATH.values()]


class Client:
    """One raw connection, and the statuses of the responses that came over it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._parser = httptools.HttpResponseParser(self)
            self.statuses: list[int] = []
            self._complete = 0

    def on_message_begin(self) -> None:
        self._interim = False
        self.body = b""

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        if not self._interim:
            self.statuses.append(status)

    def on_message_complete(self) -> None:
        self._complete += not self._interim

    async def ask(self, data: bytes, responses: int) -> list[int]:
        """Statuses of so many responses, or fewer when the gateway closes before; it must do one or the other."""
        await self.open()
        assert self._writer is not None
        before = len(self.statuses)
        self._writer.write(data)
        async with asyncio.timeout(ANSWERED_S):
            while self._complete < before + responses:
                try:
                    came = await self._reader.read(1 << 16)
                except ConnectionError:
                    came = b""
                if not came:
                    found = self.statuses[before:]
                    assert self._complete == before + len(found), "cut within a response"
                    await self.close()
                    return found
                self._parser.feed_data(came)
        return self.statuses[before:]

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


@dataclass
class Bench:
    """A gateway, an engine, a client; and how many requests of each status have been answered."""

    server: GatewayServer
    engine: StrictEngine
    client: Client
    spool: Path
    served: int = 0

    def rows(self) -> list[wire.RequestRow]:
        lines = [line for path in self.spool.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        return [wire.decode(line, wire.RequestRow) for line in lines]

    async def still_works(self) -> None:
        """The connection is closed, or the next request over it is served."""
        assert await self.client.ask(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n", 1) == [200]


@pytest.fixture
async def fuzzed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Bench]:
    engine = await StrictEngine().start()
    limits = HttpLimits(
        max_body_bytes=1 << 20,
        max_head_bytes=2 << 10,
        head_timeout_s=READ_TIMEOUT_S,
        read_timeout_s=READ_TIMEOUT_S,
        linger_s=0.01,
    )
    server = GatewayServer(Config("127.0.0.1", 0, tmp_path / "spool", limits=limits, learns=False, check_s=0.02))
    await server.start()
    fleet = FakeFleet([engine.url])
    heard_at_s = {"node-1": math.inf}  # nobody reports again here
    server.fleet.apply(fleet.fleet(), fleet.states(), time.monotonic(), heard_at_s=heard_at_s)
    bench = Bench(server, engine, Client(server.port), tmp_path / "spool")
    yield bench
    await bench.client.close()
    rows = bench.rows()
    await server.stop()
    await engine.stop()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert not engine.malformed, "what reaches an engine is proper HTTP"
    assert not engine.unreadable, "and JSON"
    assert sum(row.status == "ok" for row in rows) == bench.served, "each served request has its record"
    assert len({row.request_id for row in rows}) == len(rows)
    assert all(i.in_flight == i.unstarted == 0 and not i.slots for i in server.fleet.instances())


# -- bodies ----------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4),
    max_leaves=8,
)
# JSON, nearly or in truth, that no value of Python makes.
ODDITIES = st.sampled_from(
    [
        *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "00", "1.", ".5", "+1", "0x10"),
        *(
            "9" * 400,
            "-" + "9" * 400,
            "9" * 5000,
            "1" + "0" * 308,
            "1e99999",
            str(2**63),
            str(2**64),
            str(-(2**63) - 1),
        ),
        *(r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\x"', '"\n"', '"\x00"', '"', "''", ""),
        *("[" * 1500 + "]" * 1500, "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 1500, "]", "{", "}"),
        *("[1,]", "[,]", "{,}", "//", "/* */ 1", "tru", "nul", "undefined", "true false", "\ufeff1"),
    ]
)
WILD = VALUES.map(json.dumps) | ODDITIES
TEXTS = st.text(max_size=20) | st.sampled_from(["", "Hi", "é" * 10, "a" * 5000, "😀", "\u0000", "?" * 600])
TOKENS = st.integers(-2, 30) | st.sampled_from([2**31, 2**63 - 1, 2**64, 10**30, 16384])
PARTS = st.fixed_dictionaries({}, optional={"type": st.just("text") | st.none(), "text": TEXTS | st.none()})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", ""])},
    optional={"content": TEXTS | st.none() | st.lists(TEXTS | PARTS, max_size=3), "name": VALUES},
)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "prompt": TEXTS
    | st.lists(TOKENS, max_size=4)
    | st.lists(TEXTS, max_size=3)
    | st.lists(st.lists(TOKENS), max_size=3),
    "messages": st.lists(MESSAGE, max_size=3),
    "input": TEXTS | st.lists(TOKENS, max_size=4) | st.lists(MESSAGE | TEXTS, max_size=3),
    "instructions": TEXTS | st.none(),
    "max_output_tokens": TOKENS,
    "previous_response_id": st.none() | TEXTS,
    "background": st.booleans(),
    "truncate_prompt_tokens": TOKENS,
    "max_tokens": TOKENS,
    "max_completion_tokens": TOKENS,
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | VALUES}) | st.just({}) | st.none(),
    "n": st.integers(-2, 200) | st.none(),
    "stop": st.lists(TEXTS, max_size=5) | TEXTS | st.none(),
    "temperature": st.floats(-0.5, 2.5) | st.just(0),
    "top_p": st.floats(-0.5, 1.5) | st.integers(0, 1),
    "presence_penalty": st.floats(-3, 3),
    "frequency_penalty": st.floats(-3, 3),
    "logit_bias": st.dictionaries(st.integers(-1, 99).map(str) | TEXTS, st.integers(-120, 120) | VALUES, max_size=3),
    "seed": TOKENS | VALUES,
    "top_logprobs": st.integers(-1, 21),
    "best_of": st.integers(-1, 21),
    "user": TEXTS | VALUES,
    "metadata": st.dictionaries(TEXTS, TEXTS | VALUES, max_size=2),
    "tool_choice": st.sampled_from(["auto", "none", "any", {}, {"type": "function"}]),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["json_object", "json_schema", "text", "xml"])},
        optional={"json_schema": st.fixed_dictionaries({}, optional={"name": TEXTS, "schema": VALUES}) | VALUES},
    ),
    "tools": st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["function", "custom", ""])},
            optional={"function": st.fixed_dictionaries({}, optional={"name": TEXTS, "parameters": VALUES}) | VALUES},
        ),
        max_size=2,
    ),
    "priority": TOKENS | st.none(),
    "service_tier": st.sampled_from(["auto", "flex", "gold", None]),
    "logprobs": st.booleans() | st.integers(-1, 6) | VALUES,
    "vllm_xargs": VALUES,
}
NAMES = st.sampled_from(["model", *LIKELY]) | st.text(max_size=6)
WELL_MEANT = st.fixed_dictionaries(
    {"model": st.sampled_from([MODEL] * 8 + ["other-model", "nobody"])}, optional=LIKELY
).flatmap(
    lambda fields: st.sampled_from(
        [{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}, {"input": "Hi"}, {}]
    ).map(lambda needed: needed | fields)
)


def written(fields: list[tuple[str, str]]) -> str:
    """An object of these members as they stand; names may repeat."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields) + "}"


SPOILED = st.tuples(
    WELL_MEANT, st.lists(st.tuples(NAMES, WILD), min_size=1, max_size=3), st.randoms(use_true_random=False)
)


def spoil(parts: tuple[dict[str, Any], list[tuple[str, str]], Any]) -> bytes:
    """A well-meant body with some members put in, in any place, beside or in front of those of the same name."""
    fields, more, rng = parts
    members = [(name, json.dumps(value)) for name, value in fields.items()]
    for member in more:
        members.insert(rng.randrange(len(members) + 1), member)
    return written(members).encode("utf-8", "surrogatepass")


def cut(parts: tuple[bytes, float, bytes]) -> bytes:
    """A body with some bytes in place of others."""
    body, where, junk = parts
    at = int(where * len(body))
    return body[:at] + junk + body[at + len(junk) :]


GOOD = WELL_MEANT.map(lambda fields: json.dumps(fields).encode())
BODIES = st.one_of(
    st.binary(max_size=60),
    WILD.map(lambda text: text.encode("utf-8", "surrogatepass")),
    GOOD,
    SPOILED.map(spoil),
    SPOILED.map(spoil),
    st.tuples(GOOD, st.floats(0, 1), st.binary(min_size=1, max_size=4)).map(cut),
)
HINTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["x-slo-ttft-ms", "x-slo-tpot-ms", "x-greenserve-energy", "x-greenserve-continue", "x-request-id"]
        ),
        st.sampled_from(["1", "0", "-1", "nan", "inf", "1e400", "1_0", "true", "", "\xff", "a b", "x" * 70, "id-7"]),
    ),
    max_size=2,
)


@given(
    body=BODIES,
    path=st.sampled_from(PATHS),
    secret=st.sampled_from([SECRET, SECRET, SECRET, EXPIRED_SECRET, "nobody's"]),
    hints=HINTS,
    chunked=st.booleans(),
)
@FUZZ
async def test_any_body_is_served_or_refused_and_the_connection_lives_on(
    fuzzed: Bench, body: bytes, path: str, secret: str, hints: list[tuple[str, str]], chunked: bool
) -> None:
    more = "".join(f"{name}: {value}\r\n" for name, value in hints)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n{more}".encode("latin-1")
    if chunked:
        half = len(body) // 2
        pieces = [piece for piece in (body[:half], body[half:]) if piece]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        request = head + b"transfer-encoding: chunked\r\n\r\n" + framed
    else:
        request = head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    statuses = await fuzzed.client.ask(request, 1)
    assert len(statuses) == 1, "an answer, and not just an end"
    (status,) = statuses
    assert status == 200 or 400 <= status < 500, status
    if status != 200:
        error = json.loads(fuzzed.client.body)["error"]
        assert all(isinstance(error[name], str) and error[name] for name in ("message", "type", "code")), error
        assert len(error["message"]) < 1000
    fuzzed.served += status == 200
    assert not fuzzed.engine.unreadable
    if status == 401:  # nothing is read of what follows the head
        await fuzzed.client.close()
    await fuzzed.still_works()


@given(
    fields=st.fixed_dictionaries({}, optional={name: LIKELY[name] for name in sorted(LIKELY) if name != "vllm_xargs"}),
    endpoint=st.sampled_from([CHAT, COMPLETIONS]),
)
@FUZZ
def test_whatever_is_refused_is_refused_by_the_name_of_a_field_that_was_given(
    fields: dict[str, Any], endpoint: Endpoint
) -> None:
    whole = {"model": MODEL, "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]} | fields
    found = read(json.dumps(whole).encode(), endpoint)
    if not isinstance(found, ApiError):
        assert 0 <= (found.temperature or 0) <= 2
        assert 1 <= (found.n or 1) <= 128
        return
    assert found.status == 400
    if found.code != "invalid_json":  # JSON has no infinity
        assert found.param in whole
        assert f"'{found.param}" in found.message or "Token ids" in found.message


def read(body: bytes, endpoint: Endpoint) -> CompletionBody | ChatBody | ApiError:
    try:
        parsed = validation.decode(body, endpoint)
        validation.measure_prompt(parsed)
    except ApiError as error:
        return error
    return parsed


# -- heads -----------------------------------------------------------------------------------------

TOKEN_BYTES = st.sampled_from([b"a", b"X-Any", b"content-type", b"x y", b"", b"\xff", b"a\x00", b"a" * 1200])
VALUE_BYTES = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b" ", b"\t", b"\xff", b"a" * 1200, b"a\r\n b"]))
FRAMING = st.sampled_from(
    [
        *(b"content-length: 0", b"content-length: 5", b"content-length: -1", b"content-length: +5"),
        *(b"content-length: 5, 5", b"content-length: 99999999999999999999", b"content-length: 0x5"),
        *(b"content-length: 1048577", b"content-length: ", b"Content-Length : 5", b"content-length:5 "),
        *(b"transfer-encoding: chunked", b"transfer-encoding: gzip", b"transfer-encoding: gzip, chunked"),
        *(b"transfer-encoding: chunked, identity", b"transfer-encoding:\tchunked", b"transfer-encoding: xchunked"),
        *(b"expect: 100-continue", b"expect: nonsense", b"connection: close", b"connection: keep-alive"),
        *(b"connection: upgrade", b"upgrade: websocket", b"upgrade: h2c", b"host: x", b"host:"),
        *(b"authorization: Bearer " + SECRET.encode(), b"authorization:", b"authorization: Bearer \xff\xfe"),
        *(b"x-request-id: id-1", b"traceparent: \x80", b"x-slo-ttft-ms: \xff"),
    ]
)
LINES = st.lists(FRAMING | st.tuples(TOKEN_BYTES, VALUE_BYTES).map(lambda pair: b": ".join(pair)), max_size=5)
METHODS = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE", b"PRI", b"G T"]
)
TARGETS = st.sampled_from(
    [
        *(b"/v1/completions", b"/v1/chat/completions", b"/v1/models", b"/live", b"/ready", b"/metrics", b"/v1/files"),
        *(b"*", b"/", b"", b"//", b"/\xff", b"/a b", b"http://x/live", b"x:443", b"/live?" + b"a" * 1200, b"/%00"),
    ]
)
VERSIONS = st.sampled_from(
    [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"", b"HTTP/1"]
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
REMAINS = st.one_of(
    st.just(b""),
    st.sampled_from(
        [b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff1\r\n", b"-1\r\n", b"zz\r\n"]
    ),
    st.sampled_from(
        [b"5;x=y\r\nhello\r\n0\r\nx: y\r\n\r\n", b"5\r\nhellooo\r\n0\r\n\r\n", b"0\r\n" + b"x: y\r\n" * 400]
    ),
    st.binary(max_size=30),
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A request's head and something behind it, with faults of framing."""
    end = draw(ENDS)
    first = b" ".join((draw(METHODS), draw(TARGETS), draw(VERSIONS)))
    raw = end.join((first, *draw(LINES), b"", b"")) + draw(REMAINS)
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


@given(raw=st.binary(max_size=80) | heads() | heads() | heads(), pieces=st.integers(1, 3))
@FUZZ
async def test_any_head_is_answered_or_ends_the_connection(fuzzed: Bench, raw: bytes, pieces: int) -> None:
    """A proper request follows: whatever came before it, the connection comes to its end, answered or not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fuzzed.server.port)
    step = max(1, -(-len(raw) // pieces))
    answer = b""
    async with asyncio.timeout(ANSWERED_S):
        with contextlib.suppress(ConnectionError, RuntimeError):  # it may be closed while it is being written to
            for start in range(0, len(raw), step):
                writer.write(raw[start : start + step])
                await asyncio.sleep(0)
            writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            while came := await reader.read(1 << 16):
                answer += came
    writer.close()
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
    assert all(status < 500 for status in statuses), statuses
    assert not answer or statuses


async def test_nothing_is_left_behind_when_clients_leave_amid_anything(fuzzed: Bench) -> None:
    """Connections cut at each byte of a request, and of a pipeline of two."""
    body = json.dumps({"model": MODEL, "prompt": "Hi", "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nauthorization: Bearer {SECRET}\r\ncontent-length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    for end in range(0, 2 * len(request), 3):
        _, writer = await asyncio.open_connection("127.0.0.1", fuzzed.server.port)
        writer.write((request + request)[:end])
        writer.transport.close() if end % 2 else writer.transport.abort()
    gateway = fuzzed.server.gateway
    await until(lambda: not gateway.connections and not gateway.exchanges)
    fuzzed.served = sum(row.status == "ok" for row in fuzzed.rows())
