"""What is taken from a body for predicting its lengths."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ports import RequestFeatures
from pools.gateway.requests import validation
from pools.gateway.requests.endpoint import CHAT, COMPLETIONS
from pools.gateway.requests.features import MAX_DIGEST_BYTES, features_of, texts_of


def features(body: dict[str, Any], chat: bool = True, service: str = "chat", tenant_id: int = 7) -> RequestFeatures:
    parsed = validation.decode(json.dumps(body).encode(), CHAT if chat else COMPLETIONS)
    limit = validation.max_tokens(parsed)
    prompt = validation.measure_prompt(parsed)
    return features_of(parsed, prompt, service, 1.7e9, tenant_id, validation.output_bound(parsed, limit))


TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def say(*contents: Any, **fields: Any) -> dict[str, Any]:
    roles = ["system", "user"] if len(contents) == 2 else ["user"] * len(contents)
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]} | fields


@pytest.mark.parametrize("prompt", ["Is 12 prime?", [11, 12, 13]], ids=["text", "ids"])
def test_digests_of_two_tenants_differ_when_they_send_the_same(prompt: Any) -> None:
    body = {"prompt": prompt}
    assert features(body, False).digest == features(body, False).digest
    assert features(body, False).digest != features(body, False, tenant_id=8).digest


def test_digests_of_chats_differ_between_tenants() -> None:
    assert features(say("Is 12 prime?")).digest != features(say("Is 12 prime?"), tenant_id=8).digest


def test_everything_is_read_when_a_chat_says_it() -> None:
    found = features(
        say(
            "Be brief.",
            "Is 12 prime?\n```\n1\n```",
            max_tokens=50,
            n=2,
            stop=["\n"],
            temperature=0.5,
            response_format={"type": "json_object"},
            tools=TOOLS,
        )
    )
    assert (found.chat, found.at_s, found.tenant_id) == (True, 1.7e9, 7)
    assert (found.messages, found.sequences, found.max_tokens) == (2, 2, 50)
    assert (found.last_role, found.has_system, found.has_stop, found.temperature) == ("user", True, True, 0.5)
    assert found.wants_json
    assert found.has_question
    assert found.has_code
    assert found.lines == 3
    assert found.last_bytes == 22
    assert found.digit_share == pytest.approx(3 / 22)
    assert found.tools_bytes == len(json.dumps(TOOLS))
    assert found.text_bytes == 9 + 22 + found.tools_bytes


def test_nothing_is_made_up_when_a_chat_says_little() -> None:
    found = features(say("Hello"))
    assert (found.max_tokens, found.temperature, found.tools_bytes, found.sequences) == (None, None, 0, 1)
    flags = (found.has_stop, found.wants_json, found.has_system, found.has_question, found.has_code)
    assert flags == (False,) * 5


@pytest.mark.parametrize("mark", ["?", "\uff1f", "\u061f", "\u037e"])
def test_a_question_is_seen_when_its_mark_is_of_another_script(mark: str) -> None:
    assert features(say(f"\u00e9{mark}")).has_question
    assert not features(say("a; b")).has_question


def test_only_the_end_of_the_last_message_is_looked_at_when_it_is_long() -> None:
    assert not features(say("?" + "a" * 5000)).has_question
    assert features(say("a" * 5000 + "?")).has_question


def test_text_features_are_unknown_when_the_prompt_is_token_ids() -> None:
    found = features({"prompt": [[1, 2], [3]], "n": 3}, chat=False)
    assert (found.text_bytes, found.messages, found.sequences) == (0, 2, 6)
    assert found.has_question is found.has_code is found.last_bytes is found.lines is found.digit_share is None
    assert found.max_tokens == validation.DEFAULT_COMPLETION_TOKENS


def test_parts_of_a_message_are_read_when_content_is_a_list() -> None:
    body = say(
        [
            {"type": "text", "text": "Look?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            "and",
        ]
    )
    found = features(body)
    assert found.text_bytes == 8
    assert texts_of(validation.decode(json.dumps(body).encode(), CHAT)) == ["Look?", "", "and"]


def test_the_digest_is_the_same_only_when_prompt_and_limits_are() -> None:
    bodies = [
        say("a", "b"),
        say("ab", ""),
        say("a", "b", max_tokens=5),
        say("a", "b", n=2),
        say("a", "b", tools=TOOLS),
        say("a\0b"),
        say("b"),
        say(["a", "b"]),
        say(["ab"]),
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    ]
    digests = [features(body).digest for body in bodies]
    digests += [features({"prompt": prompt}, chat=False).digest for prompt in ("b", ["b"], ["a", "b"], ["ab"])]
    digests += [features({"prompt": prompt}, chat=False).digest for prompt in ([1, 2], [[1], [2]], [[1, 2]], [2, 1])]
    digests.append(features(say("a", "b"), service="other").digest)
    # One text, or a list of that one text, is the same prompt; so are token ids.
    assert len(set(digests)) == len(digests) - 2
    assert None not in digests
    again = say("a", "b", temperature=1.0, stream=True, user="someone")
    assert features(again).digest == digests[0]


def test_a_prompt_has_no_digest_when_it_is_too_long_or_no_vocabulary_holds_it() -> None:
    assert features(say("a" * (MAX_DIGEST_BYTES + 1))).digest is None
    assert features({"prompt": [2**70]}, chat=False).digest is None
    assert features({"prompt": [1] * 5000}, chat=False).digest is None


@given(
    st.fixed_dictionaries(
        {
            "messages": st.lists(
                st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool"]), "content": st.text()}),
                min_size=1,
            )
        },
        optional={
            "n": st.integers(1, 128) | st.none(),
            "stop": st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=4) | st.none(),
            "temperature": st.floats(0, 2) | st.none(),
            "response_format": st.fixed_dictionaries({"type": st.sampled_from(["text", "json_object"])}) | st.none(),
            "tools": st.lists(st.just(TOOLS[0]), max_size=3) | st.none(),
        },
    )
)
def test_features_are_found_whatever_the_hints_hold(body: dict[str, Any]) -> None:
    found = features(body)
    assert found.sequences == (body.get("n") or 1)
    assert found.temperature == body.get("temperature")
    assert found.has_stop == bool(body.get("stop"))
    assert found.wants_json == ((body.get("response_format") or {}).get("type") == "json_object")
    assert (found.tools_bytes > 0) == bool(body.get("tools"))
    assert found.text_bytes >= 1
