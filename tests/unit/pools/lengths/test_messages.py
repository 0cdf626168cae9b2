"""Frames between gateways and the predictor's process, and what of a prompt is in them."""

from dataclasses import replace

import pytest

from core.ports import RequestFeatures
from pools.lengths.messages import (
    MOST_FRAME_BYTES,
    Answer,
    Ask,
    BadFrame,
    Frames,
    Lesson,
    answer_of,
    cut,
    features_of,
    frame,
    request_of,
    shown_of,
)
from tests.fakes.text_predictor import odds_of

FEATURES = RequestFeatures(chat=True, at_s=1.7e9, tenant_id=7, text_bytes=9, digest=b"d", has_code=True, max_tokens=50)
ASK = Ask(1, 2.5, "chat", 7, 40, ["Was", "ist das?"], shown_of(FEATURES))


def test_frames_come_out_as_they_went_in_when_the_stream_is_cut_anywhere() -> None:
    said: list[Ask | Lesson] = [ASK, Lesson(1, 40, 90)]
    stream = b"".join(frame(message) for message in said)
    for size in (1, 5, len(stream)):
        frames = Frames()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [request_of(body) for piece in pieces for body in frames.feed(piece)] == said


@pytest.mark.parametrize("odds", [None, odds_of(50)])
def test_answers_hold_odds_or_none(odds: object) -> None:
    (body,) = Frames().feed(frame(Answer(3, odds)))  # type: ignore[arg-type]
    assert answer_of(body) == Answer(3, odds)  # type: ignore[arg-type]


def test_what_a_request_shows_arrives_without_the_digest() -> None:
    (body,) = Frames().feed(frame(ASK))
    asked = request_of(body)
    assert isinstance(asked, Ask)
    assert features_of(asked) == replace(FEATURES, digest=None)


def test_what_is_no_message_is_refused_with_words() -> None:
    with pytest.raises(BadFrame, match=f"{MOST_FRAME_BYTES + 1} bytes"):
        list(Frames().feed((MOST_FRAME_BYTES + 1).to_bytes(4)))
    with pytest.raises(BadFrame, match="no request"):
        request_of(frame(Answer(1, None))[4:])
    with pytest.raises(BadFrame, match="no answer"):
        answer_of(b"\xc1")
    wrong = frame(Answer(1, odds_of(50)))[4:].replace(b"\xcd\x01\x90", b"\xcd\x00\x01").replace(b"tail", b"tale")
    with pytest.raises(BadFrame, match="no answer"):
        answer_of(wrong)


def test_of_a_long_prompt_the_beginning_and_the_end_are_sent() -> None:
    assert cut(["ab", "cd"], 4) == ["ab", "cd"]
    assert cut(["abc", "def"], 4) == ["ab", "ef"]
    assert cut(["a", "bcd", "e", "fghi"], 6) == ["a", "bc", "ghi"]
    assert cut(["a" * 100], 10) == ["a" * 5, "a" * 5]
    assert cut(["head", "x" * 50, "end"], 12) == ["head", "xx", "xxx", "end"]
