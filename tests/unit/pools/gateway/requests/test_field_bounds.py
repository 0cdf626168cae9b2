"""Each parameter's bounds by OpenAI's API reference: the bounds pass, what lies beyond is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pools.gateway.errors import ApiError
from pools.gateway.requests import validation
from pools.gateway.requests.endpoint import CHAT, COMPLETIONS, RESPONSES, Endpoint

TEXT = {"model": "m", "prompt": "Hi"}
TALK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}
TOOL = {"type": "function", "function": {"name": "look-up_2", "parameters": {}}}
BOTH = {CHAT.name: CHAT, COMPLETIONS.name: COMPLETIONS}

# Field -> (what passes, what does not), for chats and texts alike. Null is always as if the field were not there.
OF_BOTH: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 0.0, -0.0, 1, 2, 2.0], [-0.01, 2.01, -1, 3, "1", True, [], {}]),
    "top_p": ([0, 0.5, 1], [-0.01, 1.01, "1", False]),
    "presence_penalty": ([-2, 0, 2.0], [-2.01, 2.01, "0", True]),
    "frequency_penalty": ([-2, 0, 2.0], [-2.01, 2.01, "0", True]),
    "n": ([1, 128], [0, -1, 129, 10**30, 1.5, "1", True]),
    "max_tokens": ([1, 10**6], [0, -1, -(10**30), 1.0, 1.5, "10", True]),
    "seed": ([-(2**63), 0, 2**63 - 1], [-(2**63) - 1, 2**63, 1.5, "1", True]),
    "logit_bias": (
        [{}, {"1": -100, "2": 100.0}, {str(token): 0 for token in range(1024)}],
        [{"1": -100.1}, {"1": 101}, {"one": 1}, {"1": "1"}, {str(token): 0 for token in range(1025)}, [], 1],
    ),
    "stop": (["", "a", [], ["a"] * 4], [["a"] * 5, [1], ["a", None], 1, {}]),
    "stream": ([True, False], ["yes", 1, 0, [], {}]),
    "user": (["someone", ""], [1, [], {}]),
    "response_format": (
        [{"type": "text"}, {"type": "json_object"}, SCHEMA, {"type": "structural_tag", "structures": []}],
        [
            *("json", [], {}, {"type": "xml"}, {"type": None}, {"type": "json_schema"}),
            *({**SCHEMA, "json_schema": {}}, {**SCHEMA, "json_schema": {"name": "two words"}}),
            *({**SCHEMA, "json_schema": {"name": "a" * 65}}, {**SCHEMA, "json_schema": {"name": "a", "schema": []}}),
        ],
    ),
    "model": (["m"], [1, [], {}, True]),
}
OF_CHATS: dict[str, tuple[list[Any], list[Any]]] = {
    "max_completion_tokens": ([1, 10**6], [0, -5, 1.5, "10", True]),
    "logprobs": ([True, False], [1, 0, "true", {}]),
    "tools": (
        [[], [TOOL], [TOOL] * 128, [{"type": "custom", "custom": {"name": "x"}}]],
        [
            *(
                {},
                "x",
                [1],
                [TOOL] * 129,
                [{"type": "other"}],
                [{"type": "function"}],
                [{"function": TOOL["function"]}],
            ),
            *([{**TOOL, "function": {}}], [{**TOOL, "function": {"name": "a.b"}}], [{**TOOL, "function": {"name": 1}}]),
        ],
    ),
    "tool_choice": (["none", "auto", "required", TOOL], ["any", 1, []]),
    "parallel_tool_calls": ([True, False], [1, "true"]),
    "reasoning_effort": (["low", "xhigh"], [1, []]),
    "metadata": ([{}, {"a": "b"}], [{"a": 1}, [], "a"]),
    "store": ([True, False], [1, "true"]),
    "messages": (
        [[{"role": role, "content": "Hi"}] for role in ("developer", "system", "user", "assistant", "tool", "function")]
        + [
            [{"role": "user", "content": ""}],
            [{"role": "user", "content": "Hi", "name": "Ann"}],
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}, "and more"]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}],
            [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}]}],
            [{"role": "assistant", "content": None, "tool_calls": []}],
            [{"role": "assistant"}],
            [{"role": "function", "name": "f", "content": None}],
        ],
        [
            *("Hi", {}, 1, ["Hi"], [1], [[]], [{}]),
            *([{"role": role, "content": "Hi"}] for role in ("", "User", "human", None, 1)),
            *([{"content": "no role"}], [{"role": "user", "content": "Hi", "name": 7}]),
            *([{"role": "user", "content": bad}] for bad in (None, [], 1, True, {}, [1], [[]], [None])),
            *([{"role": role}] for role in ("user", "system", "developer", "tool")),
            *([{"role": "user", "content": [part]}] for part in ({}, {"type": "smell"}, {"text": "Hi"})),
            [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        ],
    ),
}
OF_TEXTS: dict[str, tuple[list[Any], list[Any]]] = {
    "logprobs": ([0, 5], [-1, 6, True, 1.5, "1"]),
    "best_of": ([1, 20], [-1, 21, 0, 1.5, True]),
    "echo": ([True, False], [1, "true"]),
    "suffix": (["", "end"], [1, []]),
    "prompt": (["Hi", ["a", "b"], [1, 2], [[1], [2, 3]]], [7, True, {"a": 1}, [1, 2.5], [None], [{"a": 1}]]),
}
CASES = [
    *((name, field, *values) for name in BOTH for field, values in OF_BOTH.items()),
    *((CHAT.name, field, *values) for field, values in OF_CHATS.items()),
    *((COMPLETIONS.name, field, *values) for field, values in OF_TEXTS.items()),
]


def body_of(endpoint: Endpoint, **fields: Any) -> bytes:
    whole = {"model": "m"} if endpoint is RESPONSES else TALK if endpoint.chat else TEXT
    return json.dumps(whole | fields).encode()


def refusal_of(endpoint: Endpoint, raw: bytes) -> ApiError:
    """What is said to a body before it is sent anywhere."""
    with pytest.raises(ApiError) as refused:
        validation.measure_prompt(validation.decode(raw, endpoint))
    return refused.value


@pytest.mark.parametrize(("name", "field", "good", "bad"), CASES, ids=lambda value: value if type(value) is str else "")
def test_values_pass_up_to_the_bounds_and_are_refused_beyond(
    name: str, field: str, good: list[Any], bad: list[Any]
) -> None:
    endpoint = BOTH[name]
    for value in good:
        raw = body_of(endpoint, **{field: value})
        parsed = validation.decode(raw, endpoint)
        validation.measure_prompt(parsed)
        sent, _ = validation.relayed_body(raw, parsed, "Engine")
        assert field == "model" or json.loads(sent)[field] == value, "the engine gets what was given"
    for value in bad:
        error = refusal_of(endpoint, body_of(endpoint, **{field: value}))
        assert (error.status, error.kind, error.param, error.code) == (
            *(400, "invalid_request_error", field, "invalid_value"),
        ), value
        assert f"'{field}" in error.message, value
    if field not in ("messages", "prompt", "model"):
        validation.decode(body_of(endpoint, **{field: None}), endpoint)


@pytest.mark.parametrize(
    ("endpoint", "fields", "message"),
    [
        (CHAT, {"temperature": 2.5}, "'temperature' must be a number from 0 to 2, not 2.5."),
        (CHAT, {"temperature": "hot"}, "'temperature' must be a number from 0 to 2, not \"hot\"."),
        (CHAT, {"temperature": "h" * 500}, "'temperature' must be a number from 0 to 2, not a text of length 500."),
        (COMPLETIONS, {"n": 0}, "'n' must be a whole number from 1 to 128, not 0."),
        (COMPLETIONS, {"max_tokens": 0}, "'max_tokens' must be a whole number of at least 1, not 0."),
        (CHAT, {"stop": [1]}, "'stop' must be a text or an array of at most 4 texts, not [1]."),
        (
            *(CHAT, {"logit_bias": {"1": 101}}),
            "'logit_bias' must be an object of at most 1024 token ids, each with a number from -100 to 100, "
            'not {"1": 101}.',
        ),
        (
            *(CHAT, {"messages": TALK["messages"] + [{"role": "human", "content": "Hi"}]}),  # type: ignore[operator]
            "'messages[1].role' must be one of 'assistant', 'developer', 'function', 'system', 'tool', 'user', "
            'not "human".',
        ),
        (
            *(CHAT, {"tools": [TOOL, {"type": "x"}]}),
            "'tools[1].type' must be one of 'custom', 'function', not \"x\".",
        ),
    ],
)
def test_refusal_names_the_field_its_range_and_what_was_given(
    endpoint: Endpoint, fields: dict[str, Any], message: str
) -> None:
    assert refusal_of(endpoint, body_of(endpoint, **fields)).message == message


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {"messages": "my secret"}),
        (CHAT, {"messages": [{"role": "user", "content": {"text": "my secret"}}]}),
        (CHAT, {"messages": [{"role": "user", "content": ["Hi", {"type": "my secret", "text": "my secret"}]}]}),
        (COMPLETIONS, {"prompt": {"text": "my secret"}}),
        (COMPLETIONS, {"suffix": ["my secret"]}),
        (RESPONSES, {"input": {"text": "my secret"}}),
    ],
)
def test_refusal_does_not_repeat_what_a_person_wrote(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    error = refusal_of(endpoint, body_of(endpoint, **fields))
    assert "secret" not in error.message
    assert error.param == next(iter(fields))


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETIONS, {"stream_options": {}, "stream": False}, "stream_options"),
        (CHAT, {"stream_options": "usage", "stream": True}, "stream_options"),
        (CHAT, {"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options"),
        (CHAT, {"top_logprobs": 1}, "top_logprobs"),
        (CHAT, {"top_logprobs": 0, "logprobs": False}, "top_logprobs"),
        (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        (COMPLETIONS, {"best_of": 2, "n": 3}, "best_of"),
        (RESPONSES, {"input": "Hi", "temperature": 2.1}, "temperature"),
        (RESPONSES, {"input": "Hi", "top_p": 1.1}, "top_p"),
        (RESPONSES, {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_fields_are_refused_without_those_that_they_need(
    endpoint: Endpoint, fields: dict[str, Any], param: str
) -> None:
    error = refusal_of(endpoint, body_of(endpoint, **fields))
    assert (error.status, error.param) == (400, param)
    assert f"'{param}" in error.message


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {"stream_options": None}),
        (CHAT, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}),
        (CHAT, {"top_logprobs": 0, "logprobs": True}),
        (CHAT, {"top_logprobs": 20, "logprobs": True}),
        (COMPLETIONS, {"best_of": 3, "n": 3}),
    ],
)
def test_fields_pass_with_those_that_they_need(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    validation.decode(body_of(endpoint, **fields), endpoint)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_what_vllm_adds_reaches_the_engine_whatever_it_is(endpoint: Endpoint) -> None:
    added = {
        "top_k": -7,
        "min_p": 9,
        "ignore_eos": "maybe",
        "min_tokens": 10**9,
        "repetition_penalty": -1,
        "stop_token_ids": [1] * 50,
        "guided_json": {"type": "object"},
        "vllm_xargs": {"sim_output_tokens": [None]},
        "structured_outputs": {"a": [1, 2.5]},
    }
    raw = body_of(endpoint, **added)
    sent, _ = validation.relayed_body(raw, validation.decode(raw, endpoint), "Engine")
    assert json.loads(sent) == (TALK if endpoint.chat else TEXT) | added | {"model": "Engine"}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","prompt":"Hi","temperature":1e400}',
        b'{"model":"m","prompt":"Hi","temperature":%b}' % (b"9" * 400),
        b'{"model":"m","prompt":"Hi","temperature":3,"temperature":1}',
        b'{"model":"m","prompt":"Hi","n":1,"temperature":{"a":{"a":1}}}',
    ],
)
def test_number_is_refused_by_name_when_it_is_none_or_given_twice(raw: bytes) -> None:
    error = refusal_of(COMPLETIONS, raw)
    assert (error.param, error.code) == ("temperature", "invalid_value")
    assert error.message.startswith("'temperature' must be a number from 0 to 2")
    assert len(error.message) < 120
