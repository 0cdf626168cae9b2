"""The stream meter: whatever way a stream is cut into pieces, it relays the same bytes and sees the same tokens."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from pools.gateway.requests.sse import UNREADABLE, SseMeter, parse_usage

USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}'
DONE = b"data: [DONE]"


def token(n: int) -> bytes:
    return b'data: {"id":"c","choices":[{"index":0,"text":"t%d \\"usage\\":{\\n\\n"}],"usage":null}' % n


def play(stream: bytes, cuts: list[int], strip: bool = True, window_end_s: float = math.inf) -> tuple[SseMeter, bytes]:
    meter = SseMeter(window_end_s, strip)
    out = b""
    borders = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for now_s, (start, end) in enumerate(itertools.pairwise(borders)):
        if start < end:
            out += meter.feed(stream[start:end], float(now_s))
    return meter, out


@given(cuts=st.lists(st.integers(0, 2000), max_size=12), strip=st.booleans(), crlf=st.booleans())
def test_stream_is_read_the_same_however_it_is_cut(cuts: list[int], strip: bool, crlf: bool) -> None:
    end = b"\r\n\r\n" if crlf else b"\n\n"
    comment = b": keep-alive" + end
    tokens = b"".join(token(n) + end for n in range(3))
    stream = comment + tokens + USAGE + end + DONE + end
    meter, out = play(stream, cuts, strip)
    assert out == comment + tokens + (b"" if strip else USAGE + end)
    assert meter.ending() == DONE + end
    assert meter.done
    assert not meter.failed
    assert meter.events == meter.timely_events == 3
    usage = meter.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (9, 3)


def test_last_usage_counts_when_every_event_carries_one() -> None:
    events = [
        b'data: {"id":"c","choices":[{"text":"a"}],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n' % n
        for n in (1, 2)
    ]
    meter, out = play(b"".join(events) + DONE + b"\n\n", [])
    assert out == b"".join(events), "events with tokens are not taken out"
    assert meter.events == 2
    usage = meter.usage()
    assert usage is not None
    assert usage.completion_tokens == 2


def test_gap_and_window_are_measured_when_tokens_come_late() -> None:
    meter = SseMeter(window_end_s=3.0, strip_usage=False)
    for at_s in (1.0, 1.5, 3.0, 7.0):
        meter.feed(token(0) + b"\n\n", at_s)
    assert (meter.first_s, meter.last_s, meter.gap_max_s) == (1.0, 7.0, 4.0)
    assert (meter.events, meter.timely_events) == (4, 3)


def test_error_event_is_seen_when_the_engine_sends_one() -> None:
    meter, out = play(token(0) + b'\n\ndata: {"error": {"message": "boom"}}\n\n' + DONE + b"\n\n", [])
    assert meter.failed
    assert meter.events == 1
    assert b"boom" in out


def test_bytes_are_relayed_when_they_are_no_events() -> None:
    garbage = b"x" * (1 << 20)
    meter, out = play(garbage + b"yz", [len(garbage)])
    assert out + meter.ending() == garbage + b"yz"
    assert meter.usage() is None


def test_usage_that_cannot_be_read_is_distinguished_from_none() -> None:
    found, has_choices = parse_usage(b'{"usage":{"prompt_tokens":"many"}}')
    assert found is UNREADABLE
    assert not has_choices
    assert parse_usage(b"\xff") == (None, True)
