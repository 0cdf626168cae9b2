"""Heads that were seen before, and chunks passed in their frames: the same is heard as from the parser alone."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.gateway.errors import ApiError
from pools.gateway.http.client_protocol import ClientConnection
from pools.gateway.http.connections import Connections
from pools.gateway.http.known_heads import MAX_BYTES, KnownHead
from pools.gateway.http.request import HttpLimits, Request
from pools.gateway.http.upstream import Address, UpstreamConnection
from pools.gateway.requests.sse import SseMeter

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nAuthorization: Bearer k\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """Takes what is written; of its socket only the options are set."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else self

    def setsockopt(self, *option: int) -> None: ...

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close


def message(head: bytes, body: bytes) -> bytes:
    return head % len(body) + body


def known(data: bytes, body: bytes) -> KnownHead[str]:
    found = KnownHead.of(data, len(body), "meaning")
    assert found is not None
    return found


def test_head_is_known_again_whatever_its_body_is() -> None:
    head = known(message(HEAD, b"{}"), b"{}")
    assert head.meaning == "meaning"
    for body in (b"{}", b"", b"x" * 5000, b"\r\n\r\n", b"content-length: 9\r\n"):
        assert head.body_of(message(HEAD, body)) == body


@pytest.mark.parametrize(
    "data",
    [
        message(HEAD, b"{}")[:-1],
        message(HEAD, b"{}") + b"P",
        message(HEAD.replace(b"POST", b"PUT"), b"{}"),
        message(HEAD.replace(b"Bearer k", b"Bearer j"), b"{}"),
        message(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), b"{}"),
        HEAD.replace(b"%d", b"+2") + b"{}",
        HEAD.replace(b"%d", b"0x2") + b"{}",
        HEAD.replace(b"%d", b"2, 2") + b"{}",
        HEAD.replace(b"%d", b"") + b"{}",
        HEAD.replace(b"%d", b"0" * 13 + b"2") + b"{}",
        b"",
    ],
)
def test_message_is_left_to_the_parser_when_it_is_not_the_same(data: bytes) -> None:
    assert known(message(HEAD, b"{}"), b"{}").body_of(data) is None


@pytest.mark.parametrize(
    ("data", "body_bytes"),
    [
        (message(HEAD, b"{}") * 2, 2),
        (message(HEAD, b"{}"), 1),
        (HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n", 2),
        (message(HEAD.replace(b"Host: a", b"Host: " + b"a" * MAX_BYTES), b"{}"), 2),
        (b"GET / HTTP/1.1\r\n\r\n", 0),
    ],
)
def test_nothing_is_learned_when_the_bytes_are_not_one_message_with_its_length(data: bytes, body_bytes: int) -> None:
    assert KnownHead.of(data, body_bytes, None) is None


# -- requests --------------------------------------------------------------------------------------


class FakeApplication:
    """Answers each request at once, unless it is `late`, and remembers them."""

    draining = False
    late = False

    def __init__(self) -> None:
        self.connections = Connections()
        self.most_body_bytes = 1 << 20
        self.heard: list[tuple[bytes, bytes, dict[bytes, bytes], bytes]] = []
        self.refusals: list[int] = []

    def uploads(self, path: bytes) -> bool:
        return False

    def admit(self, head: Request, connection: ClientConnection) -> int:
        connection.belongs_to(1)
        return self.most_body_bytes

    def handle(self, request: Request, connection: ClientConnection) -> None:
        self.heard.append((request.method, request.path, request.headers, request.body))
        if not self.late:
            connection.respond(200, b"{}")

    def refused(self, error: ApiError) -> None:
        self.refusals.append(error.status)


def client() -> tuple[ClientConnection, FakeApplication, FakeTransport]:
    application, transport = FakeApplication(), FakeTransport()
    connection = ClientConnection(application, HttpLimits())
    connection.connection_made(transport)
    return connection, application, transport


@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=6),
    other=st.sets(st.integers(0, 5)),
    cuts=st.lists(st.integers(0, 1000), max_size=4),
)
async def test_requests_are_heard_the_same_however_they_come(
    bodies: list[bytes], other: set[int], cuts: list[int]
) -> None:
    """Each by itself, mostly, and some cut where it pleases."""
    heads = [HEAD.replace(b"Bearer k", b"Bearer j") if n in other else HEAD for n in range(len(bodies))]
    messages = [message(head, body) for head, body in zip(heads, bodies, strict=True)]
    ends = list(itertools.accumulate(map(len, messages)))
    borders = sorted({0, *ends, *(cut % ends[-1] for cut in cuts)})
    stream = b"".join(messages)
    connection, application, transport = client()
    for start, end in itertools.pairwise(borders):
        connection.data_received(stream[start:end])
    expected = [
        (b"POST", b"/v1/completions", {b"authorization": b"Bearer j" if n in other else b"Bearer k"}, body)
        for n, body in enumerate(bodies)
    ]
    assert application.heard == expected
    assert len(transport.written) == len(bodies)


async def test_request_waits_for_its_turn_when_another_is_served() -> None:
    connection, application, transport = client()
    connection.data_received(message(HEAD, b"first"))
    application.late = True
    for body in (b"second", b"third"):
        connection.data_received(message(HEAD, body))
    assert [heard[3] for heard in application.heard] == [b"first", b"second"]
    connection.respond(200, b"{}")
    await asyncio.sleep(0)
    assert [heard[3] for heard in application.heard] == [b"first", b"second", b"third"]
    assert len(transport.written) == 2


async def test_body_is_refused_when_it_is_too_large_behind_a_known_head() -> None:
    connection, application, _ = client()
    application.most_body_bytes = 10
    for body in (b"a", b"b", b"x" * 11):
        connection.data_received(message(HEAD, body))
    assert [heard[3] for heard in application.heard] == [b"a", b"b"]
    assert application.refusals == [413]


# -- responses -------------------------------------------------------------------------------------


class FakeReceiver:
    """Remembers what it hears, and the body as one."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, bytes]] = []
        self.bytes = b""
        self.chunks = 0
        self.endings: list[str] = []

    def head(self, status: int, headers: bytes) -> None:
        self.heads.append((status, headers))

    def body(self, pieces: list[bytes]) -> None:
        self.bytes += b"".join(pieces)

    def chunk(self, data: bytes, start: int) -> None:
        self.chunks += 1
        self.bytes += data[start:-2]

    def complete(self) -> None:
        self.endings.append("complete")

    def lost(self, error: str) -> None:
        self.endings.append(error)


def engine() -> UpstreamConnection:
    connection = UpstreamConnection(Address("127.0.0.1", 1))
    connection.connection_made(FakeTransport())
    return connection


def hear(connection: UpstreamConnection, stream: bytes, cuts: list[int]) -> FakeReceiver:
    receiver = FakeReceiver()
    connection.expect(receiver)
    borders = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    for start, end in itertools.pairwise(borders):
        connection.data_received(stream[start:end])
    return receiver


def frame(data: bytes, spelling: str = "%x") -> bytes:
    return (spelling % len(data)).encode() + b"\r\n" + data + b"\r\n"


@given(rounds=st.lists(st.tuples(st.binary(max_size=40), st.lists(st.integers(0, 300), max_size=2)), max_size=6))
def test_whole_responses_are_heard_the_same_however_they_come(rounds: list[tuple[bytes, list[int]]]) -> None:
    connection = engine()
    for body, cuts in rounds:
        receiver = hear(connection, message(ANSWER, body), cuts)
        assert receiver.heads == [(200, b"date: now\r\ncontent-type: application/json\r\n")]
        assert receiver.bytes == body
        assert receiver.endings == ["complete"]
        assert connection.reusable


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECES = st.one_of(st.binary(min_size=1, max_size=30), st.sampled_from([b"\r\n", b"5\r\nab\r\n\r\n", b"a" * 3000]))
CUTS = st.lists(st.integers(0, 500), max_size=3)


@given(st.lists(st.tuples(st.lists(PIECES, max_size=8), st.sampled_from(["%x", "%X", "%04x"]), CUTS), max_size=4))
def test_chunks_are_heard_the_same_however_they_come(rounds: list[tuple[list[bytes], str, list[int]]]) -> None:
    """Chunk by chunk, mostly, as engines write them, and cut where it pleases."""
    connection = engine()
    for chunks, spelling, cuts in rounds:
        parts = [STREAM_HEAD, *(frame(data, spelling) for data in chunks), b"0\r\n\r\n"]
        ends = list(itertools.accumulate(map(len, parts)))
        receiver = hear(connection, b"".join(parts), [*ends[:-1], *cuts])
        assert receiver.bytes == b"".join(chunks)
        assert receiver.endings == ["complete"]
        assert connection.reusable


def test_chunks_pass_in_their_frames_when_each_comes_by_itself() -> None:
    connection, receiver = engine(), FakeReceiver()
    connection.expect(receiver)
    for part in (STREAM_HEAD, frame(b"first"), frame(b"second"), frame(b"third"), b"0\r\n\r\n"):
        connection.data_received(part)
    assert (receiver.bytes, receiver.chunks, receiver.endings) == (b"firstsecondthird", 2, ["complete"])


def test_text_that_looks_like_a_chunk_is_none_when_it_stands_within_one() -> None:
    connection, receiver = engine(), FakeReceiver()
    connection.expect(receiver)
    text = b"\n3\r\nabc"
    whole = frame(text)
    for part in (STREAM_HEAD, frame(b"one") + whole[:4], whole[4:], b"0\r\n\r\n"):
        connection.data_received(part)
    assert (receiver.bytes, receiver.endings) == (b"one" + text, ["complete"])


def test_response_is_lost_when_a_chunk_does_not_end_as_it_should() -> None:
    connection, receiver = engine(), FakeReceiver()
    connection.expect(receiver)
    for part in (STREAM_HEAD, frame(b"one"), b"3\r\ntwo!\n"):
        connection.data_received(part)
    (ending,) = receiver.endings
    assert "no proper HTTP" in ending
    assert not connection.reusable


def test_connection_is_dropped_when_more_comes_behind_a_known_response() -> None:
    connection = engine()
    for _ in range(2):
        hear(connection, message(ANSWER, b"{}"), [])
    receiver = hear(connection, message(ANSWER, b"{}") + b"HTTP/1.1 200 OK\r\n", [])
    assert receiver.endings == ["complete"]
    assert not connection.reusable


def test_token_is_taken_when_its_chunk_holds_one_event_and_nothing_else() -> None:
    token = b'data: {"id":"c","choices":[{"text":"a"}]}\n\n'
    usage = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    meter = SseMeter(math.inf, strip_usage=True)
    for now_s, event in enumerate(
        (token, token, usage, token + token, token[:-1], b": comment\n\n", b"data: [DONE]\n\n")
    ):
        data = frame(event)
        start = data.index(b"\n") + 1
        assert meter.takes(data, start, len(data) - 2, float(now_s)) is (event is token)
    assert (meter.events, meter.last_s) == (2, 1.0)


async def test_held_chunks_go_out_before_what_is_sent_behind_them() -> None:
    connection, _, transport = client()
    connection._serving = Request(b"POST", b"/", {}, b"", True)
    connection.buffered += [frame(b"one"), frame(b"two")]
    connection.send(b"three")
    connection.buffered.append(frame(b"four"))
    connection.finish(b"five")
    connection.send_buffered()
    sent = b"".join(transport.written)
    assert sent == frame(b"one") + frame(b"two") + frame(b"three") + frame(b"four") + frame(b"five") + b"0\r\n\r\n"
