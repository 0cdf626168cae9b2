"""What engines get to know of a request's place among others."""

from __future__ import annotations

import json

import pytest

from pools.gateway.requests.engine_order import EngineWork, engine_body

WORK = EngineWork(due_s=1010.0, lat_s=5.0, ttft_s=0.5, predicted_tokens=90)
HINTS = {"slo_s": 8.0, "lat_s": 5.0, "ttft_s": 0.5, "predicted_tokens": 90}


@pytest.mark.parametrize("body", [b'{"model":"m","prompt":"x"}', b' { "model": "m", "prompt": "x" }'])
def test_engine_gets_priority_and_hints_when_it_reads_them(body: bytes) -> None:
    found = json.loads(engine_body(body, -7, WORK, True, 1002.0))
    assert found == {"model": "m", "prompt": "x", "priority": -7, "vllm_xargs": HINTS}


def test_other_engine_never_sees_hints() -> None:
    assert json.loads(engine_body(b'{"model":"m"}', 3, WORK, False, 0.0)) == {"model": "m", "priority": 3}
    assert engine_body(b'{"model":"m"}', None, None, True, 0.0) == b'{"model":"m"}'


@pytest.mark.parametrize(("own", "kept"), [('{"a":1,"slo_s":99}', {"a": 1}), ("null", {}), ("[1]", {})])
def test_hints_join_those_of_the_client_and_win_over_them(own: str, kept: dict[str, int]) -> None:
    body = f'{{"model":"m","vllm_xargs":{own}}}'.encode()
    assert json.loads(engine_body(body, None, WORK, True, 1002.0))["vllm_xargs"] == {**kept, **HINTS}


@pytest.mark.parametrize(("work", "laxity"), [(None, True), (WORK, False), (None, False)])
def test_client_cannot_make_its_request_urgent_when_the_gateway_gives_no_hints(
    work: EngineWork | None, laxity: bool
) -> None:
    body = b'{"model":"m","vllm_xargs":{"a":1,"slo_s":-99,"lat_s":0.1,"ttft_s":0,"predicted_tokens":1}}'
    assert json.loads(engine_body(body, None, work, laxity, 0.0)) == {"model": "m", "vllm_xargs": {"a": 1}}


def test_request_that_is_late_already_is_due_before_it_comes() -> None:
    assert WORK.hints(1015.0)["slo_s"] == -5.0
