"""Spans of finished requests, made from their records and sent to an OpenTelemetry collector; nothing is on their path.

A record becomes `gateway`, and inside it `queue` (if it stood in line) and `engine` (if an instance was chosen), with
the first token as an event: in the client's trace where it sent a `traceparent` (W3C Trace Context, 3.2), below the
span that it names, and nothing where that says that the trace is not sampled. Otherwise they are a trace of their own.
Ids follow from the request's id: one that is sent twice is the same. The wire format is OTLP 1.x over HTTP as JSON
(opentelemetry.io/docs/specs/otlp): no library is needed to write it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from django.db.models import DateTimeField
from django.db.models.expressions import RawSQL

from telemetry.models import RequestRecord

log = logging.getLogger(__name__)

MARK_KEY = "greenserve:traces:until"  # end times up to this one are sent; Unix seconds
SETTLE = timedelta(seconds=15)  # records younger than this may still be on their way; later ones are not traced
LONGEST_LAG = timedelta(minutes=10)  # what a collector that was away for longer misses
LONGEST = timedelta(seconds=900)  # no request runs longer: bounds the partitions that are opened
AT_ONCE = 1_000
TIMEOUT_S = 10.0
SERVER, CLIENT, INTERNAL = 2, 3, 1  # kinds of spans
ERROR = 2
OPERATIONS = {"completions": "text_completion", "chat": "chat", "responses": "chat", "embeddings": "embeddings"}
# Version ff is none; later ones than 00 begin alike, and those of this length are read as they are.
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})")
SAMPLED = 0x01
Span = dict[str, Any]


def spans(record: RequestRecord) -> list[Span]:
    """Returns the record's spans, the outer one first. Attributes have OpenTelemetry's names, or ours."""
    parent = _Parent.of(record)
    if not parent.sampled:
        return []
    start_s = record.started_at.timestamp()
    end_s = start_s + (record.e2e_s or 0.0)
    left_line_s = min(end_s, start_s + (record.queue_s or 0.0))
    whole = _span(record, "gateway", SERVER, start_s, end_s, parent.span)
    whole["attributes"] = _attributes(
        {
            "gen_ai.operation.name": OPERATIONS.get(record.endpoint, record.endpoint),
            "gen_ai.request.model": record.service,
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "http.response.status_code": record.http_status,
            "error.type": None if record.status == RequestRecord.Status.OK else record.status,
            "greenserve.request_id": record.request_id,
            "greenserve.request_class": record.request_class,
            "greenserve.attempts": record.attempts,
            "greenserve.predicted_energy_j": record.predicted_energy_j,
            "greenserve.slo_met": record.slo_met,
        }
    )
    if record.ttft_s is not None:
        at_ns = _nanoseconds(min(end_s, start_s + record.ttft_s))
        whole["events"] = [{"name": "first token", "timeUnixNano": at_ns}]
    if record.status not in (RequestRecord.Status.OK, RequestRecord.Status.CLIENT_GONE):
        whole["status"] = {"code": ERROR, "message": record.error[:200]}
    found = [whole]
    if record.queue_s is not None:
        found.append(_span(record, "queue", INTERNAL, start_s, left_line_s, whole["spanId"]))
    if record.instance_uid is not None:
        engine = _span(record, "engine", CLIENT, left_line_s, end_s, whole["spanId"])
        engine["attributes"] = _attributes(
            {"greenserve.instance_uid": str(record.instance_uid), "greenserve.route_reason": record.route_reason}
        )
        found.append(engine)
    return [{**span, "traceId": parent.trace} for span in found] if parent.trace else found


@dataclass(frozen=True, slots=True)
class _Parent:
    """The client's `traceparent`; empty and sampled when there is none that is valid."""

    trace: str = ""
    span: str = ""
    sampled: bool = True

    @classmethod
    def of(cls, record: RequestRecord) -> _Parent:
        found = TRACEPARENT.fullmatch(record.traceparent or "")
        if found is None or not int(found["trace"], 16) or not int(found["span"], 16):
            return cls()
        return cls(found["trace"], found["span"], bool(int(found["flags"], 16) & SAMPLED))


def message(records: Iterable[RequestRecord]) -> bytes:
    """Returns an OTLP ExportTraceServiceRequest."""
    resource = {"attributes": _attributes({"service.name": "greenserve-gateway"})}
    scope = {"scope": {"name": "greenserve"}, "spans": [span for record in records for span in spans(record)]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()


def export(client: redis.Redis, url: str, now: datetime) -> int:
    """Sends what ended since the last time; returns how many requests. A collector that is away delays."""
    sent = 0
    since = _since(client, now)
    while True:
        records = _ended(since, now - SETTLE)
        if not records:
            return sent
        try:
            _post(f"{url.rstrip('/')}/v1/traces", message(records))
        except (OSError, ValueError) as error:
            log.warning("traces: the collector did not take %d requests: %s", len(records), _words(error))
            return sent
        since = records[-1].ended_at  # type: ignore[attr-defined]  # annotated
        client.set(MARK_KEY, repr(since.timestamp()))
        sent += len(records)


def _since(client: redis.Redis, now: datetime) -> datetime:
    """Returns where the last run ended. The first run begins now; what lies too far back is left out, and logged."""
    mark: Any = client.get(MARK_KEY)
    floor = now - LONGEST_LAG
    if mark is None:
        since = now - SETTLE
        client.set(MARK_KEY, repr(since.timestamp()))
        return since
    since = datetime.fromtimestamp(float(mark), now.tzinfo)
    if since < floor:
        log.warning("traces: the requests between %s and %s are left out", since, floor)
    return max(since, floor)


def _ended(since: datetime, until: datetime) -> Sequence[RequestRecord]:
    """Records by the time they ended, in (since, until], so many at once; the last of them says where to go on.

    Of those that end in the same microsecond as it some may be left out: a trace is no account.
    """
    ended = RawSQL("started_at + coalesce(e2e_s, 0) * interval '1 second'", (), output_field=DateTimeField())
    rows = RequestRecord.objects.filter(started_at__gt=since - LONGEST, started_at__lte=until)
    found = rows.annotate(ended_at=ended).filter(ended_at__gt=since, ended_at__lte=until)
    return list(found.order_by("ended_at")[:AT_ONCE])


def _post(url: str, body: bytes) -> None:
    """Raises OSError (urllib's errors are) when it is not taken."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read(1 << 16)


def _words(error: Exception) -> str:
    return f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__


def _span(record: RequestRecord, name: str, kind: int, start_s: float, end_s: float, parent: str = "") -> Span:
    digest = hashlib.sha256(f"{record.request_id} {record.started_at.timestamp()!r}".encode()).hexdigest()
    own = hashlib.sha256(f"{digest} {name}".encode()).hexdigest()[:16]
    return {
        "traceId": digest[:32],
        "spanId": own,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": _nanoseconds(start_s),
        "endTimeUnixNano": _nanoseconds(end_s),
    }


def _nanoseconds(at_s: float) -> str:
    return str(round(at_s * 1e6) * 1_000)  # a float of today's seconds is exact to a microsecond


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """What is not known is left out."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value not in (None, "")]


def _value(value: bool | int | float | str) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
