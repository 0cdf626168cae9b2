"""What engines that generate one response are asked, and how their events become one stream."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pools.gateway.placing.splitter import of_one_connector
from pools.gateway.relay.continuation import BLOCKS, NIXL, SIMULATED, Continuation, ContinuationMeter, can_continue

COMPLETION = {"model": "m", "prompt": "a b c", "stream": True, "max_tokens": 10}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a b c"}], "stream": True, "max_tokens": 10}


def continuation_of(body: dict[str, Any]) -> Continuation:
    return Continuation(json.dumps(body).encode(), "messages" in body, body["max_tokens"])


def event(chat: bool, text: str, finish: str | None = None, **fields: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "token_ids": fields.pop("ids", None)}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    if not chat and "prompt_token_ids" in fields:
        choice["prompt_token_ids"] = fields.pop("prompt_token_ids")
    return b"data: " + json.dumps({"id": "x", "created": 1, "choices": [choice], **fields}).encode() + b"\n\n"


def first_part(body: dict[str, Any], **fields: Any) -> tuple[Continuation, ContinuationMeter, list[dict[str, Any]]]:
    """After a first engine that was to write two tokens."""
    chat = "messages" in body
    continuation = continuation_of(body)
    meter = ContinuationMeter(continuation, 0.0, False)
    meter.begin(part_only=True)
    sent = meter.feed(event(chat, " d", ids=[7], prompt_token_ids=[1, 2, 3]), 0.0)
    sent += meter.feed(event(chat, " e", "length", ids=[8]), 0.1)
    return continuation, meter, [json.loads(line[6:]) for line in sent.split(b"\n\n") if line]


@pytest.mark.parametrize("body", [COMPLETION, CHAT])
def test_real_engine_is_asked_for_ids_and_nothing_it_does_not_know(body: dict[str, Any]) -> None:
    asked = json.loads(continuation_of(body).first(5, 3, 512, BLOCKS))
    assert asked["kv_transfer_params"] == {"do_remote_decode": True}
    assert (asked["max_tokens"], asked["return_token_ids"]) == (2, True)
    assert json.loads(continuation_of(body).first(1, 3, 512, BLOCKS))["max_tokens"] == 1
    simulated = json.loads(continuation_of(body).first(1, 3, 512, SIMULATED))
    assert simulated["kv_transfer_params"] == {"do_remote_decode": True, "chunk_tokens": 512, "prefill_tokens": 1}
    assert "return_token_ids" not in simulated


def test_first_engine_gets_the_address_of_the_second_when_caches_go_over_a_network() -> None:
    continuation = continuation_of(COMPLETION)
    continuation.sent_to("request-1", "[fd00::2]:18500")
    asked = json.loads(continuation.first(5, 3, 512, NIXL))
    assert asked["kv_transfer_params"] == {
        "do_remote_decode": True,
        "transfer_id": "request-1",
        "remote_host": "fd00::2",
        "remote_port": 18500,
        "chunk_tokens": 512,
    }
    assert "chunk_tokens" not in json.loads(continuation.first(5, 3, None, NIXL))["kv_transfer_params"]
    assert asked["return_token_ids"]
    assert continuation.rest() == {"do_remote_prefill": True, "transfer_id": "request-1"}


@pytest.mark.parametrize("connector", [BLOCKS, NIXL])
@pytest.mark.parametrize("body", [COMPLETION, CHAT])
def test_nothing_is_written_by_a_real_engine_that_computes_a_part_of_the_prompt(
    body: dict[str, Any], connector: str
) -> None:
    chat = "messages" in body
    continuation = continuation_of(body)
    continuation.sent_to("request-1", "10.0.0.2:18500" if connector == NIXL else "")
    asked = json.loads(continuation.first(40, 100, 512, connector))
    assert (asked["max_tokens"], asked["kv_transfer_params"]["prefill_tokens"]) == (1, 40)
    meter = ContinuationMeter(continuation, 0.0, False)
    meter.begin(part_only=True)
    opening = b'data: {"id": "x", "created": 1, "choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
    sent = [json.loads(meter.feed(opening, 0.0)[6:])] if chat else []
    assert meter.feed(event(chat, " wrong", "stop", ids=[7], prompt_token_ids=[1, 2, 3]), 0.0) == b""
    assert (meter.finished, continuation.text, continuation.ids, continuation.tokens) == (False, "", [], 0)
    params = continuation.rest()
    assert params["remote_num_tokens"] == 40
    again = json.loads(continuation.next(params))
    assert (again["max_tokens"], again.get("prompt"), again.get("messages")) == (
        10,
        body.get("prompt"),
        body.get("messages"),
    )
    meter.begin(part_only=False)
    sent.append(json.loads(meter.feed(event(chat, " d", ids=[9]), 0.1)[6:]))
    assert [next(iter(e["choices"])).get("delta", {}).get("role") for e in sent] == (
        ["assistant", None] if chat else [None]
    )
    assert (continuation.text, continuation.ids) == (" d", [9])
    assert "remote_num_tokens" not in continuation.rest(), "who goes on after this gets what was written as well"


def test_second_engine_gets_the_same_tokens_when_the_first_reported_them() -> None:
    continuation = continuation_of(COMPLETION)
    continuation.first(5, 3, None, BLOCKS)
    continuation.prompt_ids, continuation.ids, continuation.tokens, continuation.text = [1, 2, 3], [7, 8], 2, " d e"
    asked = json.loads(continuation.next({"do_remote_prefill": True}))
    assert asked["prompt"] == [1, 2, 3, 7, 8]
    assert (asked["max_tokens"], asked["kv_transfer_params"]) == (8, {"do_remote_prefill": True})


def test_second_engine_of_a_chat_gets_them_beside_the_messages() -> None:
    continuation, _, _ = first_part(CHAT)
    for params in ({"do_remote_prefill": True}, None):
        asked = json.loads(continuation.next(params))
        assert asked["messages"] == CHAT["messages"]
        assert asked["kv_transfer_params"] == {**(params or {}), "prompt_token_ids": [1, 2, 3, 7, 8]}
        assert "continue_final_message" not in asked


def test_chat_goes_on_by_its_text_when_no_ids_were_reported() -> None:
    continuation = continuation_of(CHAT)
    continuation.tokens, continuation.text = 2, " d e"
    asked = json.loads(continuation.next(None))
    assert asked["messages"][-1] == {"role": "assistant", "content": " d e"}
    assert asked["continue_final_message"]


@pytest.mark.parametrize("body", [COMPLETION, CHAT])
def test_client_sees_no_ids(body: dict[str, Any]) -> None:
    _, _, events = first_part(body)
    assert "token_ids" not in json.dumps(events)


@pytest.mark.parametrize("body", [COMPLETION, CHAT])
def test_request_that_asks_for_ids_is_served_whole(body: dict[str, Any]) -> None:
    """Those of half a character would be sent twice."""
    asked = {value: json.dumps(body | {"return_token_ids": value}).encode() for value in (False, True)}
    assert can_continue(asked[False], "messages" in body)
    assert not can_continue(asked[True], "messages" in body)


@pytest.mark.parametrize("body", [COMPLETION, CHAT])
def test_half_a_character_is_written_anew_by_the_engine_that_goes_on(body: dict[str, Any]) -> None:
    chat = "messages" in body
    continuation, meter, _ = first_part(body)
    meter.feed(event(chat, "", ids=[240]), 0.2)
    meter.feed(event(chat, "", ids=[159]), 0.3)
    meter.feed(event(chat, "", "length"), 0.3)  # an ending by itself
    asked = json.loads(continuation.next(None))
    assert (asked["kv_transfer_params"]["prompt_token_ids"] if chat else asked["prompt"]) == [1, 2, 3, 7, 8]
    assert asked["max_tokens"] == 8
    meter.begin(part_only=False)
    meter.feed(event(chat, "\U0001f600", ids=[240, 159, 152, 128]), 0.4)
    assert (continuation.text, continuation.tokens) == (" d e\U0001f600", 6)


@pytest.mark.parametrize("kind", ["reasoning", "reasoning_content"])
def test_thoughts_are_text_as_well(kind: str) -> None:
    continuation, meter, _ = first_part(CHAT)
    choice = {"index": 0, "finish_reason": None, "token_ids": [9], "delta": {kind: "hm"}}
    meter.feed(b"data: " + json.dumps({"id": "x", "created": 1, "choices": [choice]}).encode() + b"\n\n", 0.2)
    assert json.loads(continuation.next(None))["kv_transfer_params"]["prompt_token_ids"] == [1, 2, 3, 7, 8, 9]


@pytest.mark.parametrize("body", [COMPLETION, CHAT])
def test_prompt_is_not_sent_when_half_a_character_hid_behind_other_text(body: dict[str, Any]) -> None:
    chat = "messages" in body
    continuation, meter, _ = first_part(body)
    meter.feed(event(chat, " f", "length", ids=[9, 240]), 0.2)
    continuation.next(None)
    meter.begin(part_only=False)
    echo = "the prompt, in whole and from its beginning: d e f d e f"
    sent = meter.feed(event(chat, f"{echo}\U0001f600", ids=[159, 152]), 0.3)
    assert "prompt" not in sent.decode()
    assert continuation.text == " d e f\U0001f600"
    meter.feed(event(chat, " and all that is in it: d e f, again and again: d e f g", ids=[11]), 0.3)
    assert continuation.text.endswith("again: d e f g"), "only what comes first can be an echo"


def test_prompt_is_counted_without_what_was_written_when_the_first_engine_died() -> None:
    continuation, meter, _ = first_part(COMPLETION)
    meter.begin(part_only=False)
    meter.feed(event(False, " f", "length", ids=[9]), 0.2)
    meter.feed(b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}\n\n', 0.2)
    usage = meter.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 3)
    assert continuation.text == " d e f"


def instance(uid: str, connector: str) -> Any:
    return SimpleNamespace(uid=uid, state=SimpleNamespace(kv_connector=connector))


def test_only_engines_of_one_connector_share_a_request() -> None:
    mixed = [instance("a", SIMULATED), instance("b", BLOCKS), instance("c", ""), instance("d", BLOCKS)]
    assert [i.uid for i in of_one_connector(mixed)] == ["b", "d"]
    assert of_one_connector([instance("a", "")]) == []
