"""Lines of batches: what is read, what is refused, what comes of each."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.batches import input_lines as batch_lines
from scheduler.batches.input_lines import Checked, Checker, split
from scheduler.batches.planning import RateMeter
from scheduler.batches.results import Fate, fate_of, result_line, retry_in_s, spent_budget, usage_of
from scheduler.batches.sending import LineOutcome
from scheduler.batches.tenant_files import CHUNK_BYTES, rechunk
from scheduler.models import BatchLine

URL = "/v1/completions"


def raw(custom_id: Any = "a", **fields: Any) -> bytes:
    usual = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m", "prompt": "hello"}}
    return json.dumps(usual | fields).encode()


def read(*rows: bytes, most: int = 100) -> tuple[list[Checked], Checker]:
    checker = Checker(URL, {"m", "other"}, most)
    return list(checker.read([b"\n".join(rows)])), checker


def test_lines_are_sent_as_flex_and_otherwise_as_they_are() -> None:
    body = {"model": "m", "prompt": "é", "priority": -9, "service_tier": "priority", "vllm_xargs": {"x": 1.50}}
    (line,), checker = read(raw(body=body))
    assert not checker.faults
    sent = json.loads(line.body)
    assert sent == {"model": "m", "prompt": "é", "service_tier": "flex", "vllm_xargs": {"x": 1.5}}
    assert b"\n" not in line.body


def test_numbers_are_those_of_the_file_when_lines_are_blank() -> None:
    found, checker = read(b"", raw("a"), b"  \r", raw("b") + b"\r", b"")
    assert [(line.number, line.custom_id) for line in found] == [(2, "a"), (4, "b")]
    assert not checker.faults


@pytest.mark.parametrize(
    ("row", "code", "param"),
    [
        (b"[]", "invalid_request", None),
        (b'{"custom_id":', "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b'{"body":{"a":' + b"[" * 100_000, "invalid_json_line", None),
        (raw("d")[:-2] + b',"a":' + b"[" * 9_000 + b"]" * 9_000 + b"}}", "invalid_json_line", None),
        (raw("d")[:-2] + b',"stream":' + b"[" * 9_000 + b"]" * 9_000 + b"}}", "invalid_json_line", None),
        (raw(""), "missing_required_parameter", "custom_id"),
        (raw(7), "invalid_request", None),
        (raw("a\0"), "invalid_custom_id", "custom_id"),
        (raw("x" * 513), "invalid_custom_id", "custom_id"),
        (raw(method="GET"), "invalid_method", "method"),
        (raw(url="/v1/embeddings"), "invalid_url", "url"),
        (raw(body=None), "missing_required_parameter", "body"),
        (raw(body={}), "missing_required_parameter", "body.model"),
        (raw(body={"model": 5}), "missing_required_parameter", "body.model"),
        (raw(body={"model": "gone"}), "model_not_found", "body.model"),
        (raw(body={"model": "m", "stream": True}), "invalid_parameter", "body.stream"),
    ],
)
def test_fault_names_line_and_field(row: bytes, code: str, param: str | None) -> None:
    _, checker = read(raw("first"), row)
    assert [(fault.line, fault.code, fault.param) for fault in checker.faults] == [(2, code, param)]


def test_faults_of_several_lines_and_of_the_whole_are_reported() -> None:
    assert [f.code for f in read(raw("a"), raw("a"))[1].faults] == ["duplicate_custom_id"]
    other = raw("b", body={"model": "other"})
    assert [f.code for f in read(raw("a"), other)[1].faults] == ["mismatched_model"]
    assert [f.code for f in read(b"", b"\n")[1].faults] == ["empty_file"]
    assert [f.code for f in read(*[raw(str(n)) for n in range(4)], most=3)[1].faults] == ["too_many_requests"]
    assert len(read(*[b"x"] * 500)[1].faults) == 100


def test_too_long_line_is_refused_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 100)
    found = list(split([b"y" * 70, b"y" * 5_000, b"\nshort"]))
    assert [len(line) for line in found] == [101, 5]
    assert [f.code for f in read(b"y" * 200)[1].faults] == ["line_too_long"]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
@settings(deadline=None)
def test_lines_do_not_depend_on_how_a_file_is_cut(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    *whole, last = data.split(b"\n")
    assert list(split([data[a:b] for a, b in pairwise(edges)])) == [*whole, *([last] if last else [])]


def test_chunks_are_of_one_size_but_for_the_last() -> None:
    sizes = [len(chunk) for chunk in rechunk([b"a" * 700_000] * 4)]
    assert sizes == [CHUNK_BYTES, CHUNK_BYTES, 2_800_000 - 2 * CHUNK_BYTES]


def outcome(status: int | None, body: bytes = b"{}", **more: Any) -> LineOutcome:
    return LineOutcome(1, status, body, "rid", **more)


@pytest.mark.parametrize(
    ("found", "fate"),
    [
        (outcome(200), Fate.DONE),
        (outcome(400), Fate.DONE),
        (outcome(422), Fate.DONE),
        (outcome(401), Fate.LATER),
        (outcome(429), Fate.LATER),
        (outcome(503), Fate.LATER),
        (outcome(None, unsent=True), Fate.LATER),
        (outcome(None, error="TimeoutError"), Fate.AGAIN),
        (outcome(500), Fate.AGAIN),
        (outcome(502), Fate.AGAIN),
    ],
)
def test_what_an_end_means_for_the_line(found: LineOutcome, fate: Fate) -> None:
    assert fate_of(found, 1, 3) is fate
    assert fate_of(found, 3, 3) is (Fate.DONE if fate is Fate.AGAIN else fate)


def test_line_is_done_when_the_gateway_says_that_to_send_it_again_is_of_no_use() -> None:
    assert fate_of(outcome(429), 1, 3) is Fate.LATER
    assert fate_of(outcome(429, final=True), 1, 3) is Fate.DONE


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (429, b'{"error":{"code":"insufficient_quota","message":"spent","type":"x","param":null}}', "spent"),
        (429, b'{"error":{"code":"rate_limit_exceeded","message":"slower"}}', ""),
        (429, b'{"error":{"code":1}}', ""),
        (429, b"busy", ""),
        (500, b'{"error":{"code":"insufficient_quota","message":"spent"}}', ""),
    ],
)
def test_spent_budget_is_known_by_its_code(status: int, body: bytes, said: str) -> None:
    assert spent_budget(outcome(status, body)) == said


def test_waits_grow_and_keep_to_what_the_gateway_says() -> None:
    assert [retry_in_s(outcome(502), n) for n in range(3)] == [1.0, 2.0, 4.0]
    assert retry_in_s(outcome(502), 30) == 60.0
    assert retry_in_s(outcome(429, retry_after_s=7.0), 0) == 7.0


def test_result_is_one_line_whatever_the_body_was() -> None:
    row = BatchLine(batch_id=10, number=3, custom_id='q"1')
    made = json.loads(result_line(row, outcome(200, b'{\n  "a": 1,\n "big": 12345678901234567890123}')))
    assert made["custom_id"] == 'q"1'
    assert made["response"] == {
        "status_code": 200,
        "request_id": "rid",
        "body": {"a": 1, "big": 12345678901234567890123},
    }
    assert b"\n" not in result_line(row, outcome(200, b'{\n"a":\n1}'))
    assert json.loads(result_line(row, outcome(500, b"<html>")))["response"]["body"]["error"]["message"] == "<html>"
    lost = json.loads(result_line(row, outcome(None, error="TimeoutError")))
    assert lost["response"] is None
    assert lost["error"]["code"] == "no_response"


def test_usage_is_read_where_there_is_one() -> None:
    assert usage_of(b'{"usage":{"prompt_tokens":3,"completion_tokens":4,"more":{}}}') == (3, 4)
    assert usage_of(b'{"usage":null}') == usage_of(b"<html>") == usage_of(b'{"usage":{"prompt_tokens":"x"}}') == (0, 0)


def test_rate_counts_only_time_in_which_lines_run() -> None:
    meter = RateMeter()
    meter.ran(0.0, True, 0)
    meter.ran(10.0, True, 20)
    meter.learn(least_s=30.0)
    assert meter.lines_per_s is None, "too short to tell"
    meter.learn()
    assert meter.lines_per_s == pytest.approx(2.0)
    meter.ran(10.0, False, 0)
    meter.ran(500.0, True, 0)
    meter.ran(510.0, True, 40)
    meter.learn()
    assert meter.lines_per_s == pytest.approx(2.0 + 0.3 * (4.0 - 2.0))
    meter.learn()
    assert meter.lines_per_s == pytest.approx(2.6), "nothing new"
