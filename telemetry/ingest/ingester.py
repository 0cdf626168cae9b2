"""The ingester: from the agents' and gateways' Redis streams into PostgreSQL, each row once.

A message is acknowledged after the commit that has its rows. Dying in between means it is read again, and the
tables refuse it a second time: batches by (agent, boot, seq), request records by (started_at, request_id).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from threading import Event
from typing import Any

import msgspec
import numpy as np
import redis
from django.conf import settings
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, connection, transaction
from django.utils import timezone
from numpy.typing import NDArray

from pools import wire
from telemetry.ingest import request_records
from telemetry.ingest.agent_batches import ClockSink, SampleWriter, numbers
from telemetry.models import RequestRecord
from telemetry.storage import brin_summaries, copying, time_partitions

log = logging.getLogger(__name__)

DEAD_STREAM = "greenserve:dead"
DEAD_KEPT = 1_000
CONSUMER = "ingester"  # one, under a fixed name: a restarted one finds what the last one had read
READ_COUNT = 1_000
READ_AHEAD = 3_000  # more batches for the same commit when there are many: what a commit costs is then shared by more
BLOCK_MS = 1_000
GATHER_S = 0.2  # a breath between reads, so that one commit carries several batches
HEARTBEAT_S = 2.0
BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)
DAY_S = 86_400
EPOCH = date(1970, 1, 1).toordinal()
MAX_LATE_DAYS = 60
MAX_EARLY_S = 3_600.0
STATUSES = set(RequestRecord.Status.values)


class Malformed(Exception):
    """A message that can never be written; it goes to the dead-letter stream."""


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of a stream as read; one that was deleted while pending has no fields."""

    stream: str
    id: bytes
    fields: Mapping[bytes, bytes] | None


@dataclass(slots=True)
class Message:
    """An entry, decoded."""

    entry: StreamEntry
    body: wire.AgentBatch | wire.RequestBatch


class Ingester:
    """Reads, writes, acknowledges. One instance of it runs at a time; a second does no harm."""

    def __init__(self, client: redis.Redis, clock_sink: ClockSink) -> None:
        self._redis = client
        self._samples = SampleWriter(clock_sink)
        self._objectives = request_records.Objectives()
        self._summaries = brin_summaries.Summaries()
        self._days: set[date] = set()
        self._pending = True  # read what an earlier run left unacknowledged before anything new
        self._beat_at = 0.0

    def run(self, stop: Event) -> None:
        """Reads and writes batches until `stop` is set, and finishes the last. PostgreSQL or Redis away only delays."""
        failures = 0
        while not stop.is_set():
            try:
                if failures or self._beat_at == 0.0:
                    self.ensure_groups()
                handled = self.step()
                failures = 0
                if not self._pending and handled < READ_COUNT:
                    stop.wait(GATHER_S)
            except (DatabaseError, InterfaceError, redis.RedisError) as error:
                wait_s = BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)]
                log.warning("waiting %g s to try again: %s", wait_s, str(error).strip())
                failures += 1
                self._pending = True
                connection.close()
                stop.wait(wait_s)

    def ensure_groups(self) -> None:
        for stream in (wire.BATCH_STREAM, wire.REQUEST_STREAM):
            try:
                self._redis.xgroup_create(stream, wire.INGEST_GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def step(self, block_ms: int = BLOCK_MS) -> int:
        """One read and what follows from it. Returns the number of entries handled."""
        entries = self._read(block_ms)
        written, dead = self.write(entries)
        self._acknowledge(written, dead)
        if self._pending and not entries:
            self._pending = False
        self._beat(len(entries))
        return len(entries)

    def _read(self, block_ms: int) -> list[StreamEntry]:
        start = "0" if self._pending else ">"
        answer: Any = self._redis.xreadgroup(
            wire.INGEST_GROUP,
            CONSUMER,
            {wire.BATCH_STREAM: start, wire.REQUEST_STREAM: start},
            count=READ_COUNT,
            block=None if self._pending else block_ms,
        )
        entries = [
            StreamEntry(stream.decode(), entry_id, fields)
            for stream, found in answer or ()
            for entry_id, fields in found
        ]
        if not self._pending and sum(entry.stream == wire.BATCH_STREAM for entry in entries) == READ_COUNT:
            entries += self._more()
        return entries

    def _more(self) -> list[StreamEntry]:
        """Of the agents' batches only: a batch of requests may have hundreds of rows."""
        answer: Any = self._redis.xreadgroup(
            wire.INGEST_GROUP, CONSUMER, {wire.BATCH_STREAM: ">"}, count=READ_AHEAD, block=None
        )
        return [
            StreamEntry(wire.BATCH_STREAM, entry_id, fields) for _, found in answer or () for entry_id, fields in found
        ]

    def write(self, entries: Sequence[StreamEntry]) -> tuple[list[StreamEntry], list[tuple[StreamEntry, str]]]:
        """Commits their rows. Returns the entries that are in now, and those that never can be, with why."""
        messages: list[Message] = []
        dead: list[tuple[StreamEntry, str]] = []
        for entry in entries:
            try:
                messages.append(_decode(entry))
            except Malformed as error:
                dead.append((entry, str(error)))
        timely, days = _timely(messages, dead)
        return self._write(timely, days, dead), dead

    def _write(
        self, messages: list[Message], days: set[date], dead: list[tuple[StreamEntry, str]]
    ) -> list[StreamEntry]:
        """Writes all in one transaction; if the database refuses a value, one by one, to find the message at fault."""
        try:
            if messages:
                self._commit(messages, days)
        except (DataError, IntegrityError) as error:
            self._days.clear()  # perhaps a partition was dropped since
            if len(messages) == 1:
                dead.append((messages[0].entry, str(error).strip()))
                return []
            return [entry for message in messages for entry in self._write([message], days, dead)]
        return [message.entry for message in messages]

    def _commit(self, messages: list[Message], days: set[date]) -> None:
        if days - self._days:
            time_partitions.ensure(days - self._days)
            self._days |= days
        with transaction.atomic():
            self._samples.write(m.body for m in messages if isinstance(m.body, wire.AgentBatch))
            rows = [row for m in messages if isinstance(m.body, wire.RequestBatch) for row in m.body.rows]
            request_records.insert(rows, self._objectives)

    def _acknowledge(self, written: list[StreamEntry], dead: list[tuple[StreamEntry, str]]) -> None:
        if not written and not dead:
            return
        with self._redis.pipeline(transaction=True) as pipe:
            for entry, why in dead:
                if entry.fields is None:
                    continue
                log.error("message %s of %s put aside: %s", entry.id.decode(), entry.stream, why)
                body = entry.fields.get(b"b", b"")
                aside: Any = {"stream": entry.stream, "id": entry.id, "error": why, "b": body}
                pipe.xadd(DEAD_STREAM, aside, maxlen=DEAD_KEPT)
            handled: dict[str, list[bytes]] = {}
            for entry in (*written, *(entry for entry, _ in dead)):
                handled.setdefault(entry.stream, []).append(entry.id)
            for stream, ids in handled.items():
                pipe.xack(stream, wire.INGEST_GROUP, *ids)
                pipe.xdel(stream, *ids)
            pipe.execute()

    def _beat(self, handled: int) -> None:
        now = time.time()
        if now - self._beat_at < HEARTBEAT_S:
            return
        self._summaries.keep_up(timezone.now())
        backlog = self._redis.xlen(wire.BATCH_STREAM) + self._redis.xlen(wire.REQUEST_STREAM)
        beat = wire.Heartbeat("ingester", now, HEARTBEAT_S, f"{backlog} messages waiting, {handled} in the last read")
        self._redis.set(wire.alive_key("ingester"), wire.encode(beat), ex=wire.HEARTBEAT_TTL_S)
        self._beat_at = now


def _decode(entry: StreamEntry) -> Message:
    """Raises Malformed, saying which field is wrong."""
    data = (entry.fields or {}).get(b"b")
    if data is None:
        raise Malformed("no field 'b'")
    body: wire.AgentBatch | wire.RequestBatch
    try:
        if entry.stream == wire.BATCH_STREAM:
            body = wire.decode(data, wire.AgentBatch)
        else:
            body = wire.decode(data, wire.RequestBatch)
            for row in body.rows:
                _check(row)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from error
    return Message(entry, body)


def _timely(messages: Sequence[Message], dead: list[tuple[StreamEntry, str]]) -> tuple[list[Message], set[date]]:
    """Returns those whose rows are all of the time that is kept, and their days; the others go to `dead`."""
    now_s, kept, found = time.time(), [], set()
    for kind, days in (
        (wire.AgentBatch, min(MAX_LATE_DAYS, settings.GREENSERVE_SAMPLE_RETENTION_DAYS)),  # older ones have no roll-ups
        (wire.RequestBatch, MAX_LATE_DAYS),
    ):
        of_kind = [message for message in messages if isinstance(message.body, kind)]
        times_s = _times_s(of_kind)  # all are looked at together, and one by one only when one is wrong
        if _strange(times_s, now_s, days) is not None:
            wrong = [_strange(_times_s([message]), now_s, days) for message in of_kind]
            for message, at_s in zip(of_kind, wrong, strict=True):
                if at_s is not None:
                    why = f"time {at_s!r} is not of the last {days} days: is a clock wrong?"
                    dead.append((message.entry, why))
            of_kind = [message for message, at_s in zip(of_kind, wrong, strict=True) if at_s is None]
            times_s = _times_s(of_kind)
        kept += of_kind
        found |= {date.fromordinal(EPOCH + day) for day in copying.distinct((times_s // DAY_S).astype(np.int64))}
    return kept, found


def _strange(times_s: NDArray[np.float64], now_s: float, days: int) -> float | None:
    """Returns a time that is too old, not yet, or not a number; None: there is none."""
    fine = (times_s > now_s - days * DAY_S) & (times_s < now_s + MAX_EARLY_S)
    return None if fine.all() else float(times_s[~fine][0])


def _times_s(messages: Sequence[Message]) -> NDArray[np.float64]:
    """Returns the times of all rows, in Unix seconds."""
    batches = [message.body for message in messages if isinstance(message.body, wire.AgentBatch)]
    others = [row.at_s for batch in batches for row in batch.instances]
    others += [row.at_s for batch in batches for row in batch.clocks]
    others += [row.at_s for batch in batches for row in batch.hosts]
    for message in messages:
        if isinstance(message.body, wire.RequestBatch):
            others += [row.started_at_s for row in message.body.rows]
    of_gpus = numbers([batch.gpus for batch in batches if batch.gpus.numbers])[:, wire.GPU_NUMBERS.index("at_s")]
    return np.concatenate([of_gpus, np.array(others, dtype=np.float64)])


def _check(row: wire.RequestRow) -> None:
    if row.status not in STATUSES:
        raise Malformed(f"request {row.request_id!r}: unknown status {row.status!r}")
    if not 0 < len(row.request_id) <= 64 or "\0" in row.request_id:
        raise Malformed(f"request id {row.request_id!r} is empty, too long or not text")
    if row.instance_uid:
        try:
            uuid.UUID(row.instance_uid)
        except ValueError:
            raise Malformed(f"request {row.request_id!r}: instance {row.instance_uid!r} is not a uid") from None
