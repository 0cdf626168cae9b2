"""Engines' errors: whatever they look like, a client of OpenAI's reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.gateway.requests.engine_errors import openai_error
from pools.gateway.requests.sse import SseMeter

OPENAI = {"message": "No.", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}


def shown(status: int, said: Any) -> dict[str, Any]:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    error: dict[str, Any] = json.loads(openai_error(status, body))["error"]
    return error


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        (400, {"error": OPENAI}, OPENAI),
        (
            *(400, {"error": {"message": "No.", "type": "BadRequestError", "param": "n", "code": 400}}),
            OPENAI,
        ),
        (
            *(404, {"object": "error", "message": "Gone.", "type": "NotFoundError", "param": None, "code": 404}),
            {"message": "Gone.", "type": "invalid_request_error", "param": None, "code": "not_found"},
        ),
        (
            *(400, {"error": {"message": "This model's maximum context length is 8 tokens.", "code": 400}}),
            {
                "message": "This model's maximum context length is 8 tokens.",
                "type": "invalid_request_error",
                "param": None,
                "code": "context_length_exceeded",
            },
        ),
        (
            *(404, {"detail": "Not Found"}),
            {"message": "Not Found", "type": "invalid_request_error", "param": None, "code": "not_found"},
        ),
        (
            *(422, {"detail": [{"loc": ["body"], "msg": "bad"}]}),
            {
                "message": '[{"loc":["body"],"msg":"bad"}]',
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_value",
            },
        ),
        (
            *(500, b"Internal Server Error"),
            {"message": "Internal Server Error", "type": "server_error", "param": None, "code": "upstream_error"},
        ),
        (
            *(503, b""),
            {
                "message": "The engine answered with 503.",
                "type": "server_error",
                "param": None,
                "code": "unavailable",
            },
        ),
        (
            *(429, {"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "429"}}),
            {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"},
        ),
    ],
)
def test_refusal_has_openais_members_and_a_code_that_is_a_text(status: int, said: Any, error: dict[str, Any]) -> None:
    assert shown(status, said) == error


def test_refusal_in_openais_shape_passes_byte_for_byte() -> None:
    body = json.dumps({"error": OPENAI, "more": 1}).encode()
    assert openai_error(400, body) is body


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "type", "param", "code", "detail"]), inner, max_size=5)
    ),
    max_leaves=8,
)


@given(status=st.integers(300, 599), said=ANYTHING | st.binary(max_size=40))
def test_refusal_has_openais_shape_whatever_an_engine_says(status: int, said: Any) -> None:
    error = shown(status, said)
    assert set(error) >= {"message", "type", "code"}
    assert isinstance(error["message"], str)
    assert error["type"].endswith("_error")
    assert isinstance(error["code"], str)
    assert error["code"]


def test_error_event_of_a_stream_has_a_code_that_is_a_text() -> None:
    meter = SseMeter(math.inf, False)
    event = {"error": {"message": "No.", "type": "BadRequestError", "param": None, "code": 400}}
    out = meter.feed(b"data: %b\n\n" % json.dumps(event).encode(), 0.0)
    assert meter.failed
    assert json.loads(out[5:])["error"] == OPENAI | {"param": None, "code": "invalid_request"}
    kept = b"data: %b\n\n" % json.dumps({"error": OPENAI}).encode()
    assert SseMeter(math.inf, False).feed(kept, 0.0) == kept
