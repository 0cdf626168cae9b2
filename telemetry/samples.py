"""Writes agents' batches: samples by COPY, instances' states, clock decisions."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from numpy.typing import NDArray

from pools.models import Gpu, Instance
from pools.wire import AgentBatch, ClockDecision, GpuSampleRow, InstanceSampleRow
from scheduler.core.units import US_PER_S
from telemetry import copying, rollups
from telemetry.models import IngestBatch, RollupDue

log = logging.getLogger(__name__)

R = TypeVar("R", GpuSampleRow, InstanceSampleRow)
ClockSink = Callable[[Sequence[ClockDecision], str, str, int], None]

CLAIM_SQL = f"""
INSERT INTO {IngestBatch._meta.db_table} (agent, boot, seq, rows, received_at)
SELECT *, %s FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::int[])
ON CONFLICT DO NOTHING RETURNING agent, boot, seq
"""
DUE_SQL = f"INSERT INTO {RollupDue._meta.db_table} (start_at) SELECT unnest(%s::timestamptz[])"
LOOKUP_RETRY_S = 5.0


class Ids:
    """Database ids by the name that agents use. What is unknown is looked up again, but not at every row."""

    def __init__(self, load: Callable[[], dict[str, int]]) -> None:
        self._load = load
        self._ids: dict[str, int] = {}
        self._missed: dict[str, float] = {}

    def get(self, name: str | None) -> int | None:
        if name is None:
            return None
        if name not in self._ids and time.monotonic() - self._missed.get(name, -LOOKUP_RETRY_S) >= LOOKUP_RETRY_S:
            self._ids = self._load()
            self._missed = {n: at for n, at in self._missed.items() if n not in self._ids}
            if name not in self._ids:
                self._missed[name] = time.monotonic()
        return self._ids.get(name)

    def of(self, names: Sequence[str | None]) -> list[int]:
        """The id of each, 0: there is none, or it is not known."""
        ids = self._ids
        found = [0 if name is None else ids.get(name) for name in names]
        if None not in found:
            return found  # type: ignore[return-value]
        return [(self.get(name) or 0) if at is None else at for name, at in zip(names, found, strict=True)]


def _gpu_ids() -> dict[str, int]:
    return dict(Gpu.objects.values_list("uuid", "id"))


def _instance_ids() -> dict[str, int]:
    """All that live or lived lately: a batch may come late, but not by days."""
    recent = Instance.objects.order_by("-id")[:5000]
    return {str(uid): pk for uid, pk in recent.values_list("uid", "id")}


class SampleWriter:
    """Writes batches inside the caller's transaction; `unknown` counts rows whose GPU or instance nobody knows."""

    def __init__(self, clock_sink: ClockSink) -> None:
        self._clock_sink = clock_sink
        self._gpus = Ids(_gpu_ids)
        self._instances = Ids(_instance_ids)
        self._newest: dict[int, float] = {}  # instance -> time of the state applied last
        self.unknown: Counter[str] = Counter()

    def write(self, batches: Iterable[AgentBatch]) -> int:
        """Writes what has not been ingested yet and returns the number of batches that were new."""
        fresh = _claim(list(batches))
        self._write_gpus([row for batch in fresh for row in batch.gpus])
        self._write_instances([row for batch in fresh for row in batch.instances])
        self._apply_states(row for batch in fresh for row in batch.instances)
        for batch in fresh:
            if batch.clocks:
                self._clock_sink(batch.clocks, batch.agent, batch.boot, batch.seq)
        return len(fresh)

    def _write_gpus(self, rows: list[GpuSampleRow]) -> None:
        """By column, since at a thousand rows a second what Python does for each counts."""
        rows, gpu = self._known("GPU", self._gpus, rows, [row.gpu_uuid for row in rows])
        if not rows:
            return
        at_us = _micros([row.at_s for row in rows])
        instance = np.array(self._instances.of([row.instance_uid for row in rows]), dtype=np.int64)
        columns = [
            copying.moments("at", at_us),
            copying.Column("gpu_id", copying.BIGINT, gpu),
            copying.floats("energy_j", [row.energy_j for row in rows]),
            copying.floats("power_w", [row.power_w for row in rows]),
            copying.floats("sm_clock_mhz", [row.sm_clock_mhz for row in rows]),
            copying.floats("utilisation", [row.utilisation for row in rows]),
            copying.floats("memory_used_bytes", [row.memory_used_bytes for row in rows], copying.BIGINT),
            copying.floats("temperature_c", [row.temperature_c for row in rows]),
            copying.Column("instance_id", copying.BIGINT, instance, instance == 0),
            copying.words("instance_state", [row.instance_state for row in rows]),
            copying.floats("running", [row.running for row in rows], copying.INTEGER),
        ]
        copying.write_by_day("telemetry_gpusample", at_us, columns)
        with connection.cursor() as cursor:
            cursor.execute(DUE_SQL, [[_moment(start_s) for start_s in rollups.touched_minutes(at_us)]])

    def _known(self, what: str, ids: Ids, rows: list[R], names: list[str]) -> tuple[list[R], NDArray[np.int64]]:
        """The rows whose GPU or instance is known, and its id."""
        found = np.array(ids.of(names), dtype=np.int64)
        if found.all():
            return rows, found
        for name, known in zip(names, found.tolist(), strict=True):
            if not known:
                self._skip(what, name)
        return [row for row, known in zip(rows, found.tolist(), strict=True) if known], found[found > 0]

    def _write_instances(self, rows: list[InstanceSampleRow]) -> None:
        rows, instance = self._known("instance", self._instances, rows, [row.instance_uid for row in rows])
        if not rows:
            return
        columns = [
            copying.moments("at", _micros([row.at_s for row in rows])),
            copying.Column("instance_id", copying.BIGINT, instance),
            copying.words("state", [row.state for row in rows]),
            copying.floats("running", [row.running for row in rows], copying.INTEGER),
            copying.floats("waiting", [row.waiting for row in rows], copying.INTEGER),
            copying.floats("kv_usage", [row.kv_usage for row in rows]),
            copying.floats("prompt_tokens_total", [row.prompt_tokens_total for row in rows]),
            copying.floats("generation_tokens_total", [row.generation_tokens_total for row in rows]),
            copying.floats("ttft_s", [row.ttft_s for row in rows]),
            copying.floats("tpot_s", [row.tpot_s for row in rows]),
            copying.floats("sm_clock_mhz", [row.sm_clock_mhz for row in rows]),
        ]
        copying.write("telemetry_instancesample", columns)

    def _apply_states(self, rows: Iterable[InstanceSampleRow]) -> None:
        """Brings `Instance` up to the newest row of each; an older batch that comes late changes nothing."""
        newest: dict[int, InstanceSampleRow] = {}
        for row in rows:
            instance_id = self._instances.get(row.instance_uid)
            if instance_id is None or row.at_s < self._newest.get(instance_id, 0.0):
                continue
            if instance_id not in newest or newest[instance_id].at_s <= row.at_s:
                newest[instance_id] = row
        for instance_id, row in newest.items():
            self._newest[instance_id] = row.at_s
            fields: dict[str, Any] = {
                "state": row.state,
                "url": (row.url or "")[:200],
                "detail": row.detail.replace("\0", "")[:300],
            }
            live = Instance.objects.filter(pk=instance_id).exclude(state=Instance.State.STOPPED)
            live.exclude(**fields).update(**fields)
            if row.state == Instance.State.READY:
                live.filter(ready_at__isnull=True).update(ready_at=_moment(row.at_s))

    def _skip(self, what: str, name: str) -> None:
        """Not fatal: a node may be taken out of the books while its agent still reports."""
        self.unknown[what] += 1
        if self.unknown[what] & (self.unknown[what] - 1) == 0:  # at powers of two, so that a storm stays readable
            log.warning("%d rows of unknown %ss skipped so far, now of %r", self.unknown[what], what, name)


def _claim(batches: list[AgentBatch]) -> list[AgentBatch]:
    """Those that are new: their rows in the table of batches are what makes ingestion idempotent.

    Almost always all are, and a COPY is cheapest; that fails as a whole when one is not, and then each is asked for.
    """
    single = {(batch.agent, batch.boot, batch.seq): batch for batch in reversed(batches)}
    if not single:
        return []
    order = list(dict.fromkeys((batch.agent, batch.boot, batch.seq) for batch in batches))
    keys = sorted(single)  # in one order, so that two ingesters cannot deadlock
    agents, boots, seqs = (list(column) for column in zip(*keys, strict=True))
    counts = [len(batch.gpus) + len(batch.instances) + len(batch.clocks) for batch in map(single.__getitem__, keys)]
    try:
        with transaction.atomic():
            columns = [
                copying.text("agent", agents),
                copying.text("boot", boots),
                copying.integers("seq", seqs),
                copying.integers("rows", counts, copying.INTEGER),
                copying.moments("received_at", _micros([time.time()] * len(keys))),
            ]
            copying.write(IngestBatch._meta.db_table, columns)
            return [single[key] for key in order]
    except IntegrityError:
        with connection.cursor() as cursor:
            cursor.execute(CLAIM_SQL, [timezone.now(), agents, boots, seqs, counts])
            new = set(cursor.fetchall())
    return [single[key] for key in order if key in new]


def _micros(at_s: list[float]) -> NDArray[np.int64]:
    return np.rint(np.array(at_s, dtype=np.float64) * US_PER_S).astype(np.int64)


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
