"""Traces of finished requests: made from records, each sent once, later when the collector is away."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from telemetry import tracing
from telemetry.models import RequestRecord
from telemetry.storage import time_partitions
from tests.fakes.sink import Sink, receiving

pytestmark = pytest.mark.django_db


@pytest.fixture
def sink():
    with receiving() as found:
        yield found


@pytest.fixture
def now() -> datetime:
    at = datetime.now(UTC)
    time_partitions.ensure([(at + timedelta(days=day)).date() for day in (-1, 0, 1)])
    return at


def record(n: int, at: datetime, **changed: Any) -> RequestRecord:
    values = {
        "service": "llama", "endpoint": "chat", "stream": True, "status": "ok", "http_status": 200, "e2e_s": 2.0,
        "ttft_s": 0.5, "queue_s": 0.25, "prompt_tokens": 10, "output_tokens": 20, "instance_uid": uuid.UUID(int=n),
        "attempts": 1, "route_reason": "least predicted energy", "slo_met": True, "slo_failed": "", "error": "",
    }  # fmt: skip
    return RequestRecord.objects.create(started_at=at, request_id=f"r{n}", **{**values, **changed})


def sent(sink: Sink) -> list[dict[str, Any]]:
    bodies = [json.loads(one.body) for one in sink.received]
    return [span for body in bodies for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def test_record_becomes_a_trace_of_nested_spans(now):
    whole, queue, engine = tracing.spans(record(1, now))
    assert {span["traceId"] for span in (queue, engine)} == {whole["traceId"]}
    assert len(whole["traceId"]) == 32
    assert len(whole["spanId"]) == 16
    assert queue["parentSpanId"] == engine["parentSpanId"] == whole["spanId"]
    start, end = int(whole["startTimeUnixNano"]), int(whole["endTimeUnixNano"])
    assert end - start == 2_000_000_000
    assert queue["endTimeUnixNano"] == engine["startTimeUnixNano"]
    assert int(engine["startTimeUnixNano"]) - start == 250_000_000
    assert int(whole["events"][0]["timeUnixNano"]) - start == 500_000_000
    found = attributes(whole)
    assert found["gen_ai.request.model"] == "llama"
    assert found["gen_ai.usage.output_tokens"] == "20"
    assert "error.type" not in found
    assert "status" not in whole


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("traceparent", "joined"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-03", True),  # of a later version, sampled and random
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (None, False),
    ],
)
def test_spans_are_in_the_clients_trace_when_it_sent_a_valid_traceparent(now, traceparent, joined):
    spans = tracing.spans(record(1, now, traceparent=traceparent))
    assert {span["traceId"] == TRACE for span in spans} == {joined}
    assert spans[0].get("parentSpanId") == (PARENT if joined else None)
    assert {span["parentSpanId"] for span in spans[1:]} == {spans[0]["spanId"]}


def test_no_spans_are_made_when_the_client_does_not_sample_its_trace(now):
    assert tracing.spans(record(1, now, traceparent=f"00-{TRACE}-{PARENT}-00")) == []


def test_failed_request_without_an_instance_has_its_error_and_no_engine(now):
    failed = record(
        2, now, status="rejected", http_status=429, instance_uid=None, queue_s=None, ttft_s=None, error="full"
    )
    (whole,) = tracing.spans(failed)
    assert whole["status"] == {"code": 2, "message": "full"}
    assert attributes(whole)["error.type"] == "rejected"


def test_each_request_is_sent_once_by_when_it_ended(now, sink, redis_client):
    tracing.export(redis_client, sink.url, now)  # the first time begins now
    assert sink.received == []
    record(1, now - timedelta(seconds=10))
    record(2, now + timedelta(seconds=1))
    record(3, now - timedelta(seconds=60))  # ended before
    assert tracing.export(redis_client, sink.url, now + timedelta(seconds=10)) == 1
    assert tracing.export(redis_client, sink.url, now + timedelta(seconds=30)) == 1
    assert tracing.export(redis_client, sink.url, now + timedelta(seconds=40)) == 0
    assert {one.path for one in sink.received} == {"/v1/traces"}
    ids = [attributes(span)["greenserve.request_id"] for span in sent(sink) if span["name"] == "gateway"]
    assert ids == ["r1", "r2"]


def test_nothing_is_lost_while_the_collector_is_away_for_a_while(now, sink, redis_client):
    tracing.export(redis_client, sink.url, now)
    record(1, now)
    sink.statuses = [503, 200]
    later = now + timedelta(seconds=30)
    assert tracing.export(redis_client, sink.url, later) == 0
    assert tracing.export(redis_client, sink.url, later) == 1
    assert tracing.export(redis_client, "http://127.0.0.1:1", later + timedelta(seconds=60)) == 0


def test_many_are_sent_in_several_messages(now, sink, redis_client, monkeypatch):
    monkeypatch.setattr(tracing, "AT_ONCE", 3)
    tracing.export(redis_client, sink.url, now)
    for n in range(8):
        record(n, now + timedelta(milliseconds=n))
    assert tracing.export(redis_client, sink.url, now + timedelta(seconds=60)) == 8
    assert len(sink.received) == 3
