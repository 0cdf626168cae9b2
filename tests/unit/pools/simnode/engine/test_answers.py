"""The shapes of vLLM's answers."""

from __future__ import annotations

import json

import pytest

from pools.simnode.engine import answers, generated_text


def events(data: bytes) -> list[dict[str, object]]:
    return [json.loads(part.removeprefix(b"data: ")) for part in data.split(b"\n\n") if part]


@pytest.mark.parametrize("chat", [False, True])
def test_stream_says_what_the_whole_answer_says_when_the_seed_is_the_same(chat: bool) -> None:
    stream = answers.StreamFrames(chat, "id-1", 1700000000, 'a "model"', seed=12345)
    chunks = [event for i in range(6) for event in events(stream.token(i, "length" if i == 5 else None))]
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {("id-1", 1700000000, 'a "model"')}
    choices = [chunk["choices"][0] for chunk in chunks]  # type: ignore[index]
    if chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(choice["delta"]["content"] for choice in choices)
        choices = choices[1:]
    else:
        text = "".join(choice["text"] for choice in choices)
    assert text == generated_text.text_of(12345, 6)
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}


def test_usage_chunk_has_no_choices_when_usage_was_asked_for() -> None:
    (event,) = events(answers.StreamFrames(False, "x", 1, "m", 0).usage(10, 5))
    assert event["choices"] == []
    assert event["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": None,
    }


def test_no_token_needs_escaping_when_it_goes_into_a_template() -> None:
    for token in generated_text.TOKENS:
        assert json.dumps(token) == f'"{token}"'
    assert len(set(generated_text.TOKENS)) == len(generated_text.TOKENS)
