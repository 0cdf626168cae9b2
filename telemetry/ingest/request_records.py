"""Writes request records and judges them against their service's objectives."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from pools.models import Slo
from pools.wire import RequestRow
from telemetry.models import RequestRecord

Status = RequestRecord.Status
# The client's own fault says nothing about us; a request that we failed misses every objective.
NOT_JUDGED = {Status.CLIENT_ERROR, Status.CLIENT_GONE}
SLO_CACHE_S = 5.0

COLUMNS = (
    *("started_at", "request_id", "service", "tenant_id", "key_id", "endpoint", "stream", "status", "http_status"),
    *("prompt_tokens", "output_tokens", "tokens_source", "predicted_output_tokens", "max_tokens"),
    *("request_class", "actual_class", "pool_id", "instance_uid", "ttft_s", "tpot_s", "itl_max_s", "e2e_s"),
    *("window_s", "timely_tokens", "predicted_energy_j", "prediction_source", "queue_s", "lost"),
    *(
        "own_ttft_s",
        "own_tpot_s",
        "attempts",
        "route_reason",
        "error",
        "slo_met",
        "slo_failed",
        "traceparent",
        "adapter",
        "class_probability",
    ),
)
ROW = f"({', '.join(['%s'] * len(COLUMNS))})"
INSERT = f"INSERT INTO telemetry_requestrecord ({', '.join(COLUMNS)}) VALUES {{rows}} ON CONFLICT DO NOTHING"
AT_ONCE = 500  # rows of a statement: what it costs to keep the sums of records up is then shared by so many


class Objectives:
    """The SLOs by service, read again when older than a few seconds."""

    def __init__(self) -> None:
        self._by_service: dict[str, dict[str, float]] = {}
        self._read_at = -SLO_CACHE_S

    def of(self, service: str) -> Mapping[str, float]:
        if time.monotonic() - self._read_at >= SLO_CACHE_S:
            found: dict[str, dict[str, float]] = {}
            for name, kind, objective_s in Slo.objects.values_list("service__name", "kind", "objective_s"):
                found.setdefault(name, {})[kind] = objective_s
            self._by_service, self._read_at = found, time.monotonic()
        return self._by_service.get(service, {})


def judge(row: RequestRow, objectives: Mapping[str, float]) -> tuple[bool | None, str]:
    """(met, the kinds that failed): met is None where there is nothing to judge.

    Of a request that succeeded each latency that was measured counts; a one-token answer has no TPOT to miss. An answer
    at once, which has no TTFT, is in time for that where the whole of it came as soon. An objective that the request
    brought itself stands in the place of the service's.
    """
    own = {"ttft": row.own_ttft_s, "tpot": row.own_tpot_s}
    objectives = {**objectives, **{kind: value for kind, value in own.items() if value is not None}}
    if not objectives or row.status in NOT_JUDGED:
        return None, ""
    if row.status != Status.OK:
        return False, ",".join(sorted(objectives))
    measured = {kind: getattr(row, f"{kind}_s") for kind in sorted(objectives)}
    failed = [kind for kind, value in measured.items() if value is not None and value > objectives[kind]]
    in_time = row.ttft_s is None and row.e2e_s is not None and row.e2e_s <= objectives.get("ttft", 0.0)
    if all(value is None for value in measured.values()) and not in_time:
        return None, ""
    return not failed, ",".join(failed)


def insert(rows: Iterable[RequestRow], objectives: Objectives) -> None:
    """Inserts what is not there yet: a record is one by (started_at, request_id), however often it is shipped."""
    values = [_values(row, *judge(row, objectives.of(row.service))) for row in rows]
    with connection.cursor() as cursor:
        for start in range(0, len(values), AT_ONCE):
            part = values[start : start + AT_ONCE]
            cursor.execute(INSERT.format(rows=", ".join([ROW] * len(part))), [value for row in part for value in row])


def _values(row: RequestRow, met: bool | None, failed: str) -> tuple[Any, ...]:
    return (
        datetime.fromtimestamp(row.started_at_s, UTC),
        row.request_id,
        _text(row.service, 100),
        row.tenant_id,
        row.key_id,
        _text(row.endpoint, 20),
        row.stream,
        row.status,
        row.http_status,
        row.prompt_tokens,
        row.output_tokens,
        _text(row.tokens_source, 10),
        row.predicted_output_tokens,
        row.max_tokens,
        _text(row.request_class, 20),
        _text(row.actual_class, 20),
        row.pool_id,
        uuid.UUID(row.instance_uid) if row.instance_uid else None,
        row.ttft_s,
        row.tpot_s,
        row.itl_max_s,
        row.e2e_s,
        row.window_s,
        row.timely_tokens,
        row.predicted_energy_j,
        _text(row.prediction_source, 10),
        row.queue_s,
        row.lost,
        row.own_ttft_s,
        row.own_tpot_s,
        row.attempts,
        _text(row.route_reason, 200),
        _text(row.error, 500),
        met,
        failed,
        _text(row.traceparent, 55),
        _text(row.adapter, 100),
        row.class_probability,
    )


def _text(value: str | None, length: int) -> str | None:
    """Cuts text to the column, without the NUL that PostgreSQL refuses."""
    return None if value is None else value.replace("\0", "")[:length]
