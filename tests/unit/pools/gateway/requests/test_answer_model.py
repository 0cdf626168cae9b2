"""The model in answers: the name that the client asked for, and nothing else is touched, however a stream is cut."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.gateway.relay.continuation import Continuation, ContinuationMeter
from pools.gateway.requests.answer_model import AnswerModel
from pools.gateway.requests.responses import ResponsesMeter
from pools.gateway.requests.sse import SseMeter

ASKED = "llama3-70b"
DONE = b"data: [DONE]\n\n"
# What looks like the member, or could be taken for the end of a text or an event.
DECOYS = st.sampled_from(
    [
        '"model":"engine"',
        '","model":"x"}',
        '\\"model\\":\\"x\\"',
        "\n\ndata: {}",
        "\r\n\r\n",
        "[DONE]",
        '"usage":{',
        "é😀",
    ]
)
TEXTS = st.lists(DECOYS | st.text(max_size=12), max_size=3).map("".join)
NAMES = st.sampled_from(["/models/Meta-Llama-3-70B", "Llama3-70B", ASKED, "модель", 'a "quoted" \\ name', ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS | st.just("model"), inner, max_size=2),
    max_leaves=4,
)
MEMBERS = st.dictionaries(TEXTS | st.sampled_from(["id", "object", "created", "error_code"]), VALUES, max_size=4)


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The objects of a stream: an engine's own way to begin them, and now and then another one."""
    name, begins = draw(NAMES), draw(MEMBERS.filter(lambda fields: "model" not in fields))
    found = []
    for text in draw(st.lists(TEXTS, max_size=5)):
        choice = {"index": 0, "delta": {"content": text}, "model": "not this one"}
        if draw(st.integers(0, 4)) == 0:
            name, begins = draw(NAMES), draw(MEMBERS.filter(lambda fields: "model" not in fields))
        event = begins | {"model": name} | {"choices": [choice]}
        if draw(st.integers(0, 4)) == 0:
            event = dict(draw(st.permutations(list(event.items()))))
        found.append(event)
    return found


WRITERS = [
    lambda event: json.dumps(event, separators=(",", ":"), ensure_ascii=False),
    lambda event: json.dumps(event, separators=(",", ":")),
    lambda event: json.dumps(event),
    lambda event: json.dumps(event, separators=(" , ", "\t:")),
]


def play(meter: SseMeter, stream: bytes, cuts: list[int]) -> bytes:
    """What a client gets. Pieces that are whole events go through the frames that the relay makes for them."""
    out = b""
    borders = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for now_s, (start, end) in enumerate(itertools.pairwise(borders)):
        piece = stream[start:end]
        frame = b"%x\r\n%b\r\n" % (len(piece), piece)
        head = frame.index(b"\n") + 1
        if piece and meter.takes(frame, head, len(frame) - 2, float(now_s)):
            out += chunk_of(frame if meter.becomes is None else meter.reframed(frame, head))
        elif piece:
            out += meter.feed(piece, float(now_s))
    return out + meter.ending()


def chunk_of(frame: bytes) -> bytes:
    size, _, rest = frame.partition(b"\r\n")
    assert rest.endswith(b"\r\n")
    assert len(rest) == int(size, 16) + 2, "the frame says how long it is"
    return rest[:-2]


@given(
    found=events(),
    written=st.lists(st.sampled_from(WRITERS), min_size=5, max_size=5),
    end=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    cuts=st.lists(st.integers(0, 4000), max_size=12),
    at_events=st.booleans(),
)
def test_every_event_has_the_name_asked_for_however_the_stream_is_cut(
    found: list[dict[str, Any]], written: list[Any], end: bytes, cuts: list[int], at_events: bool
) -> None:
    pieces = [b"data: " + write(event).encode() + end for event, write in zip(found, written, strict=False)]
    stream = b": a comment" + end + b"".join(pieces) + DONE
    borders = list(itertools.accumulate(map(len, [b": a comment" + end, *pieces])))
    out = play(SseMeter(math.inf, False, model=AnswerModel(ASKED)), stream, borders if at_events else cuts)
    shown = [event for event in out.replace(b"\r\n", b"\n").split(b"\n\n") if event]
    assert (shown[0], shown[-1]) == (b": a comment", b"data: [DONE]")
    objects = [json.loads(event.removeprefix(b"data:")) for event in shown[1:-1]]
    assert objects == [event | {"model": ASKED} for event in found]
    assert [list(one) for one in objects] == [list(event) for event in found], "in the same order"


@given(found=events(), write=st.sampled_from(WRITERS), cuts=st.lists(st.integers(0, 4000), max_size=8))
def test_not_a_byte_changes_when_the_engine_says_the_right_name(
    found: list[dict[str, Any]], write: Any, cuts: list[int]
) -> None:
    stream = b"".join(b"data: %b\n\n" % write(event | {"model": ASKED}).encode() for event in found) + DONE
    assert play(SseMeter(math.inf, False, model=AnswerModel(ASKED)), stream, cuts) == stream


@given(found=events(), write=st.sampled_from(WRITERS))
def test_whole_answer_has_the_name_asked_for(found: list[dict[str, Any]], write: Any) -> None:
    for event in found:
        shown = AnswerModel(ASKED).in_answer(write(event).encode())
        assert json.loads(shown) == event | {"model": ASKED}
        without = {name: value for name, value in event.items() if name != "model"}
        raw = write(without).encode()
        assert AnswerModel(ASKED).in_answer(raw) == raw


def test_names_bytes_alone_change_when_the_model_stands_before_anything_nested() -> None:
    body = b'{"id":"c",  "n":-1,\n"model" : "Engine","choices":[1.50,{"model":"Engine"}],"x":"\\u00e9"}'
    shown = body.replace(b'"Engine"', b'"llama3-70b"', 1)
    assert AnswerModel(ASKED).in_answer(body) == shown
    assert AnswerModel(ASKED).in_event(b"data: %b\r\n\r\n" % body) == b"data: %b\r\n\r\n" % shown
    assert AnswerModel(ASKED).in_beginning(body[:40]) == shown[: 40 + 4]


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"[1]", b'"model"', b'{"choices":[', b"\xff\xfe", b'{"error":{"model":"x"}}', b"data: {", b"<html>"],
)
def test_what_is_no_answer_passes_as_it_is(raw: bytes) -> None:
    assert AnswerModel(ASKED).in_answer(raw) == raw
    event = b"data: %b\n\n" % raw
    assert AnswerModel(ASKED).in_event(event) == event


def test_later_chunks_pass_in_their_frames_once_the_first_has_been_seen() -> None:
    """The quick way is taken, and not the other one that gives the same bytes."""
    head = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"%b"'
    event = head % b"Engine" + b',"choices":[{"delta":{"content":"a"}}]}\n\n'
    meter = SseMeter(math.inf, True, model=AnswerModel(ASKED))
    assert not meter.takes(event, 0, len(event), 0.0)
    assert meter.feed(event, 0.0).startswith(head % ASKED.encode())
    assert meter.takes(event, 0, len(event), 1.0)
    assert meter.becomes == head % ASKED.encode()
    assert not meter.takes(event.replace(b'"c"', b'"d"'), 0, len(event), 2.0), "another beginning is looked at again"


def test_stream_of_responses_has_the_name_asked_for_in_each_response() -> None:
    def event(name: str, **fields: Any) -> bytes:
        return f"event: {name}\ndata: {json.dumps({'type': name} | fields)}\n\n".encode()

    def response(model: str) -> dict[str, Any]:
        return {"id": "resp_1", "metadata": {"model": "own"}, "model": model, "usage": {"output_tokens": 1}}

    def stream(model: str) -> list[bytes]:
        said = event("response.output_text.delta", delta='"model":"Engine"', model="not this one")
        return [
            event("response.created", response=response(model)),
            said,
            event("response.completed", response=response(model)),
        ]

    meter = ResponsesMeter(math.inf, False, model=AnswerModel(ASKED))
    shown = b"".join(meter.feed(piece, 0.0) for piece in stream("Engine")) + meter.ending()
    assert [lines(one) for one in shown.split(b"\n\n")] == [
        lines(one) for one in b"".join(stream(ASKED)).split(b"\n\n")
    ]
    same = ResponsesMeter(math.inf, False, model=AnswerModel(ASKED))
    assert b"".join(same.feed(piece, 0.0) for piece in stream(ASKED)) + same.ending() == b"".join(stream(ASKED))


def lines(event: bytes) -> list[Any]:
    name, _, data = event.partition(b"\ndata: ")
    return [name, json.loads(data)] if data else [name]


def test_response_of_several_engines_has_the_name_asked_for() -> None:
    body = json.dumps({"model": "Engine", "prompt": "Hi", "stream": True, "max_tokens": 2}).encode()
    meter = ContinuationMeter(Continuation(body, False, 2), 0.0, False, model=ASKED)
    meter.begin(part_only=False)
    event = {
        "id": "c",
        "created": 1,
        "model": "Engine",
        "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}],
    }
    usage = {
        "id": "c",
        "created": 1,
        "model": "Engine",
        "choices": [],
        "usage": {"prompt_tokens": 1, "total_tokens": 2},
    }
    out = b"".join(meter.feed(b"data: %b\n\n" % json.dumps(one).encode(), 0.0) for one in (event, usage))
    shown = [json.loads(one[5:]) for one in (out + meter.ending()).split(b"\n\n") if one not in (b"", DONE.strip())]
    assert [one["model"] for one in shown] == [ASKED, ASKED]
    assert shown[-1]["usage"]["completion_tokens"] == 1
