"""Writes agents' batches: samples by COPY, instances' states, clock decisions."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from pools.models import Gpu, Instance
from pools.wire import AgentBatch, ClockDecision, InstanceSampleRow
from telemetry.models import IngestBatch

log = logging.getLogger(__name__)

ClockSink = Callable[[Sequence[ClockDecision], str, str, int], None]

GPU_COPY = (
    "COPY telemetry_gpusample (at, gpu_id, energy_j, power_w, sm_clock_mhz, utilisation, memory_used_bytes, "
    "temperature_c, instance_id, instance_state, running) FROM STDIN"
)
INSTANCE_COPY = (
    "COPY telemetry_instancesample (at, instance_id, state, running, waiting, kv_usage, prompt_tokens_total, "
    "generation_tokens_total, ttft_s, tpot_s, sm_clock_mhz) FROM STDIN"
)
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
        fresh = [batch for batch in batches if self._claim(batch)]
        _copy(GPU_COPY, [row for batch in fresh for row in self._gpu_rows(batch)])
        _copy(INSTANCE_COPY, [row for batch in fresh for row in self._instance_rows(batch)])
        self._apply_states(row for batch in fresh for row in batch.instances)
        for batch in fresh:
            if batch.clocks:
                self._clock_sink(batch.clocks, batch.agent, batch.boot, batch.seq)
        return len(fresh)

    def _claim(self, batch: AgentBatch) -> bool:
        """Whether this batch is new: its row in the table of batches is what makes ingestion idempotent."""
        rows = len(batch.gpus) + len(batch.instances) + len(batch.clocks)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {IngestBatch._meta.db_table} (agent, boot, seq, rows, received_at) "
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                [batch.agent, batch.boot, batch.seq, rows, timezone.now()],
            )
            return bool(cursor.rowcount == 1)

    def _gpu_rows(self, batch: AgentBatch) -> Iterator[tuple[object, ...]]:
        for row in batch.gpus:
            gpu_id = self._gpus.get(row.gpu_uuid)
            if gpu_id is None:
                self._skip("GPU", row.gpu_uuid)
                continue
            yield (
                _moment(row.at_s),
                gpu_id,
                row.energy_j,
                row.power_w,
                row.sm_clock_mhz,
                row.utilisation,
                row.memory_used_bytes,
                row.temperature_c,
                self._instances.get(row.instance_uid),
                row.instance_state,
                row.running,
            )

    def _instance_rows(self, batch: AgentBatch) -> Iterator[tuple[object, ...]]:
        for row in batch.instances:
            instance_id = self._instances.get(row.instance_uid)
            if instance_id is None:
                self._skip("instance", row.instance_uid)
                continue
            yield (
                _moment(row.at_s),
                instance_id,
                row.state,
                row.running,
                row.waiting,
                row.kv_usage,
                row.prompt_tokens_total,
                row.generation_tokens_total,
                row.ttft_s,
                row.tpot_s,
                row.sm_clock_mhz,
            )

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


def _copy(statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """The rows come complete: while a COPY runs its connection takes no look-ups."""
    if rows:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
