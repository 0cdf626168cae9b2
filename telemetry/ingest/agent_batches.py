"""Writes agents' batches: samples by COPY, instances' states, clock decisions."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.utils import timezone
from numpy.typing import NDArray

from core.ports import HOST_METHODS
from core.units import US_PER_S
from pools import clock_repairs
from pools.models import Gpu, Instance, Node
from pools.wire import GPU_NUMBERS, NUMBER_BYTES, AgentBatch, ClockDecision, GpuLabels, GpuSamples, InstanceSampleRow
from telemetry.ingest import sample_rollups
from telemetry.models import IngestedBatches, RollupDue
from telemetry.models.host import DOMAIN_LENGTH
from telemetry.storage import copying

log = logging.getLogger(__name__)

Source = tuple[str, str]  # agent and boot: what numbers batches
ClockSink = Callable[[Sequence[ClockDecision], str, str, int], None]

# In one order, so that two ingesters cannot deadlock.
CLAIM_SQL = f"""
INSERT INTO {IngestedBatches._meta.db_table} AS known (agent, boot, seqs, received_at)
SELECT *, %s FROM unnest(%s::text[], %s::text[], %s::int8multirange[])
ON CONFLICT (agent, boot) DO UPDATE SET seqs = known.seqs + excluded.seqs, received_at = excluded.received_at
WHERE NOT known.seqs && excluded.seqs RETURNING agent, boot
"""
UNKNOWN_SQL = f"""
SELECT agent, boot, seq FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS asked (agent, boot, seq)
JOIN {IngestedBatches._meta.db_table} USING (agent, boot) WHERE NOT seqs @> seq
"""
DUE_SQL = f"INSERT INTO {RollupDue._meta.db_table} (start_at) SELECT unnest(%s::timestamptz[])"
LOOKUP_RETRY_S = 5.0
LABELS_KEPT = 8_192


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
    """Returns the ids of the newest 5,000 instances, ended ones too: a batch may come late, but not by days."""
    recent = Instance.objects.order_by("-id")[:5000]
    return {str(uid): pk for uid, pk in recent.values_list("uid", "id")}


def node_ids() -> dict[str, int]:
    return dict(Node.objects.values_list("name", "id"))


def _roll_up_later(at_us: NDArray[np.int64]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(DUE_SQL, [[_moment(start_s) for start_s in sample_rollups.touched_minutes(at_us)]])


class SampleWriter:
    """Writes batches inside the caller's transaction; `unknown` counts rows whose GPU or instance nobody knows."""

    def __init__(self, clock_sink: ClockSink) -> None:
        self._clock_sink = clock_sink
        self._gpus = Ids(_gpu_ids)
        self._instances = Ids(_instance_ids)
        self._nodes = Ids(node_ids)
        self._decoded: dict[GpuLabels, tuple[bytes, bytes, bytes]] = {}
        self._states: dict[bytes, int] = {b"": 0}
        self._newest: dict[int, float] = {}  # instance -> time of the state applied last
        self._degrees: dict[int, int] = {}  # instance -> TP degree of the GPUs that it was last seen on
        self.unknown: Counter[str] = Counter()

    def write(self, batches: Iterable[AgentBatch]) -> int:
        """Writes what has not been ingested yet and returns the number of batches that were new."""
        fresh = self.claim(batches)
        self.store(fresh)
        return len(fresh)

    def claim(self, batches: Iterable[AgentBatch]) -> list[AgentBatch]:
        """Returns the batches that are new, each once; they count as ingested once the caller's transaction is."""
        return _claim(list(batches))

    def store(self, fresh: Sequence[AgentBatch]) -> None:
        self._write_gpus([batch.gpus for batch in fresh if batch.gpus.numbers])
        self._write_hosts([batch for batch in fresh if batch.hosts])
        self._write_instances([row for batch in fresh for row in batch.instances])
        self._apply_states(row for batch in fresh for row in batch.instances)
        for batch in fresh:
            if batch.clocks:
                self._clock_sink(batch.clocks, batch.agent, batch.boot, batch.seq)

    def _write_gpus(self, parts: list[GpuSamples]) -> None:
        """Writes rows by column, since at a thousand rows a second what Python does for each counts."""
        if not parts:
            return
        if len(self._decoded) >= LABELS_KEPT:  # never in between: places of states are those of all parts
            self._decoded.clear()
            self._states = {b"": 0}
        decoded = [self._decode_labels(part.of_what) for part in parts]
        gpu, instance, state = (np.frombuffer(b"".join(ids), dtype=np.int64) for ids in zip(*decoded, strict=True))
        if not gpu.any():
            return
        values = dict(zip(GPU_NUMBERS, np.ascontiguousarray(numbers(parts).T), strict=True))
        at_us = _micros(values["at_s"])
        columns = [
            copying.moments("at", at_us),
            copying.Column("gpu_id", copying.BIGINT, gpu),
            copying.floats("energy_j", values["energy_j"]),
            copying.floats("power_w", values["power_w"]),
            copying.floats("sm_clock_mhz", values["sm_clock_mhz"]),
            copying.floats("utilisation", values["utilisation"]),
            copying.floats("memory_used_bytes", values["memory_used_bytes"], copying.BIGINT),
            copying.floats("temperature_c", values["temperature_c"]),
            copying.Column("instance_id", copying.BIGINT, instance, instance == 0),
            copying.Column("instance_state", "", state, state == 0, tuple(self._states)),
            copying.floats("running", values["running"], copying.INTEGER),
        ]
        if not gpu.all():
            known = gpu > 0
            at_us, columns = at_us[known], [column.pick(known) for column in columns]
        copying.write_by_day("telemetry_gpusample", at_us, columns)
        _roll_up_later(at_us)

    def _decode_labels(self, labels: GpuLabels) -> tuple[bytes, bytes, bytes]:
        """Returns each row's ids of GPU and instance (0: none, or not known) and the place of its state, as int64."""
        if found := self._decoded.get(labels):
            return found
        gpus = self._ids("GPU", self._gpus, labels.gpu_uuids)
        instances = np.array(self._instances.of(labels.instance_uids), dtype=np.int64)
        places = [
            self._states.setdefault((state or "").encode(), len(self._states)) for state in labels.instance_states
        ]
        found = gpus.tobytes(), instances.tobytes(), np.array(places, dtype=np.int64).tobytes()
        nameless = sum(uid is None for uid in labels.instance_uids)
        if gpus.all() and np.count_nonzero(instances == 0) == nameless:  # else it may be known the next time
            self._decoded[labels] = found
        return found

    def _ids(self, what: str, ids: Ids, names: Sequence[str]) -> NDArray[np.int64]:
        """Returns the id of each, 0 where it is not known; these are counted."""
        found = np.array(ids.of(names), dtype=np.int64)
        for at in np.flatnonzero(found == 0).tolist():
            self._skip(what, names[at])
        return found

    def _write_hosts(self, batches: Sequence[AgentBatch]) -> None:
        """Writes the domains of the agents' own nodes. Rows of a method that this release does not know are skipped."""
        pairs = [(batch.agent, row) for batch in batches for row in batch.hosts]
        for _, row in pairs:
            if row.method not in HOST_METHODS:
                self._skip("host meter", row.method)
        pairs = [(agent, row) for agent, row in pairs if row.method in HOST_METHODS]
        node = self._ids("node", self._nodes, [agent for agent, _ in pairs])
        rows = [row for (_, row), known in zip(pairs, node.tolist(), strict=True) if known]
        if not rows:
            return
        at_us = _micros(np.array([row.at_s for row in rows]))
        columns = [
            copying.moments("at", at_us),
            copying.Column("node_id", copying.BIGINT, node[node > 0]),
            copying.words("domain", [row.domain.replace("\0", "")[:DOMAIN_LENGTH] for row in rows]),
            copying.words("method", [row.method for row in rows]),
            copying.floats("energy_j", [row.energy_j for row in rows]),
            copying.floats("power_w", [row.power_w for row in rows]),
        ]
        copying.write("telemetry_hostsample", columns)

    def _write_instances(self, rows: list[InstanceSampleRow]) -> None:
        found = self._ids("instance", self._instances, [row.instance_uid for row in rows])
        instance = found[found > 0]
        rows = [row for row, known in zip(rows, found.tolist(), strict=True) if known]
        if not rows:
            return
        at_us = _micros(np.array([row.at_s for row in rows]))
        columns = [
            copying.moments("at", at_us),
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
        _roll_up_later(at_us)

    def _apply_states(self, rows: Iterable[InstanceSampleRow]) -> None:
        """Brings `Instance` up to the newest row of each; an older batch that comes late changes nothing, unless what
        was applied last lies ahead of the clock."""
        newest: dict[int, InstanceSampleRow] = {}
        ahead_s = (timezone.now() + clock_repairs.AHEAD).timestamp()
        for row in rows:
            instance_id = self._instances.get(row.instance_uid)
            if instance_id is None or row.at_s < self._newest.get(instance_id, 0.0) <= ahead_s:
                continue
            if instance_id not in newest or newest[instance_id].at_s <= row.at_s:
                newest[instance_id] = row
        for instance_id, row in newest.items():
            self._newest[instance_id] = row.at_s
            fields: dict[str, Any] = {
                "state": row.state,
                "url": (row.url or "")[:200],
                "detail": row.detail.replace("\0", "")[:300],
                "reshards": row.reshards,
            }
            live = Instance.objects.filter(pk=instance_id).exclude(state=Instance.State.STOPPED)
            changed = live.exclude(**fields).update(**fields)
            if changed and row.state == Instance.State.READY:
                waking = live.filter(wake_asked_at__lte=_moment(row.at_s), woken_at__isnull=True)
                waking.update(woken_at=_moment(row.at_s))
            if row.state in (Instance.State.READY, Instance.State.SLEEPING):  # one of the warm pool serves later
                first = live.filter(ready_at__isnull=True)
                first.update(ready_at=_moment(row.at_s), start_kind=row.start if row.start in Instance.Start else "")
            if row.tp and row.tp != self._degrees.get(instance_id):
                self._degrees[instance_id] = row.tp
                on_its_way = live.filter(reshard_at__lt=_moment(row.at_s), resharded_at__isnull=True, tp=row.tp)
                on_its_way.update(resharded_at=_moment(row.at_s))

    def _skip(self, what: str, name: str) -> None:
        """Counts a row that is skipped. It is no error: a node may be deleted while its agent still reports."""
        self.unknown[what] += 1
        if self.unknown[what] & (self.unknown[what] - 1) == 0:  # at powers of two, so that a storm stays readable
            log.warning("%d rows of unknown %ss skipped so far, now of %r", self.unknown[what], what, name)


def _claim(batches: Sequence[AgentBatch]) -> list[AgentBatch]:
    """Those that are new, each once: the numbers kept by agent and boot are what makes ingestion idempotent.

    One statement claims for each agent all of its numbers, or none where one of them is known. Of the latter, whose
    rows it has locked, those that are new are looked for and claimed by themselves.
    """
    by_source: dict[Source, dict[int, AgentBatch]] = {}
    for batch in batches:
        by_source.setdefault((batch.agent, batch.boot), {}).setdefault(batch.seq, batch)
    if not by_source:
        return []
    with connection.cursor() as cursor:
        refused = by_source.keys() - _claim_all(cursor, by_source)
        if refused:
            asked = [(*source, seq) for source in refused for seq in by_source[source]]
            cursor.execute(UNKNOWN_SQL, [list(column) for column in zip(*asked, strict=True)])
            new: dict[Source, dict[int, AgentBatch]] = {}
            for agent, boot, seq in cursor.fetchall():
                new.setdefault((agent, boot), {})[seq] = by_source[agent, boot][seq]
            if new:
                _claim_all(cursor, new)
            by_source = {
                source: new.get(source, {}) if source in refused else by_source[source] for source in by_source
            }
    return [batch for own in by_source.values() for batch in own.values()]


def _claim_all(cursor: CursorWrapper, by_source: Mapping[Source, Iterable[int]]) -> set[Source]:
    """The sources whose numbers are claimed now: of these none was known."""
    sources = sorted(by_source)
    agents, boots = (list(column) for column in zip(*sources, strict=True))
    cursor.execute(CLAIM_SQL, [timezone.now(), agents, boots, [_ranges(by_source[source]) for source in sources]])
    return set(cursor.fetchall())


def _ranges(seqs: Iterable[int]) -> str:
    """Writes the numbers as PostgreSQL's multirange."""
    first, *others = sorted(seqs)
    runs = [[first, first]]
    for seq in others:
        if seq == runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return "{" + ",".join(f"[{low},{high}]" for low, high in runs) + "}"


def numbers(parts: Sequence[GpuSamples]) -> NDArray[np.float64]:
    """Returns wire.GPU_NUMBERS of all rows of `parts`, shape (rows, columns); NaN: unknown."""
    width = len(GPU_NUMBERS)
    whole = all(len(part.numbers) == NUMBER_BYTES * width * part.rows for part in parts)
    if whole:
        return np.frombuffer(b"".join([part.numbers for part in parts]), dtype="<f8").reshape(-1, width)
    found = np.full((sum(part.rows for part in parts), width), np.nan)
    at = 0
    for part in parts:  # of agents of other versions
        own = np.frombuffer(part.numbers, dtype="<f8").reshape(part.rows, -1)[:, :width]
        found[at : at + part.rows, : own.shape[1]] = own
        at += part.rows
    return found


def _micros(at_s: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(at_s * US_PER_S).astype(np.int64)


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
