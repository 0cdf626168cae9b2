"""The ingester: from the agents' and gateways' Redis streams into PostgreSQL, each row once.

A message is acknowledged after the commit that holds its rows. Dying in between means it is read again, and the
tables refuse it a second time: batches by (agent, boot, seq), request records by (started_at, request_id).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from threading import Event
from typing import Any

import msgspec
import redis
from django.conf import settings
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, connection, transaction

from pools import wire
from telemetry import partitions, requests
from telemetry.models import RequestRecord
from telemetry.samples import ClockSink, SampleWriter

log = logging.getLogger(__name__)

DEAD_STREAM = "greenserve:dead"
DEAD_KEPT = 1_000
CONSUMER = "ingester"  # one, under a fixed name: a restarted one finds what the last one had read
READ_COUNT = 1_000
BLOCK_MS = 1_000
GATHER_S = 0.2  # a breath between reads, so that one commit carries several batches
HEARTBEAT_S = 2.0
BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)
DAY_S = 86_400
MAX_LATE_DAYS = 60
MAX_EARLY_S = 3_600.0
STATUSES = set(RequestRecord.Status.values)


class Malformed(Exception):
    """A message that can never be written; it goes to the dead-letter stream."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a stream as read; one that was deleted while pending has no fields."""

    stream: str
    id: bytes
    fields: Mapping[bytes, bytes] | None


@dataclass(frozen=True, slots=True)
class Message:
    """An entry, decoded."""

    entry: Entry
    body: wire.AgentBatch | wire.RequestBatch

    days: frozenset[int]  # those of its rows, counted from 1970


class Ingester:
    """Reads, writes, acknowledges. One instance of it runs at a time; a second does no harm."""

    def __init__(self, client: redis.Redis, clock_sink: ClockSink) -> None:
        self._redis = client
        self._samples = SampleWriter(clock_sink)
        self._objectives = requests.Objectives()
        self._days: set[date] = set()
        self._pending = True  # read what an earlier run left unacknowledged before anything new
        self._beat_at = 0.0

    def run(self, stop: Event) -> None:
        """Until `stop` is set; a running batch is finished. PostgreSQL or Redis being away only delays."""
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
        messages: list[Message] = []
        dead: list[tuple[Entry, str]] = []
        for entry in entries:
            try:
                messages.append(_decode(entry))
            except Malformed as error:
                dead.append((entry, str(error)))
        written = self._write(messages, dead)
        self._acknowledge(written, dead)
        if self._pending and not entries:
            self._pending = False
        self._beat(len(entries))
        return len(entries)

    def _read(self, block_ms: int) -> list[Entry]:
        start = "0" if self._pending else ">"
        answer: Any = self._redis.xreadgroup(
            wire.INGEST_GROUP,
            CONSUMER,
            {wire.BATCH_STREAM: start, wire.REQUEST_STREAM: start},
            count=READ_COUNT,
            block=None if self._pending else block_ms,
        )
        return [
            Entry(stream.decode(), entry_id, fields) for stream, found in answer or () for entry_id, fields in found
        ]

    def _write(self, messages: list[Message], dead: list[tuple[Entry, str]]) -> list[Entry]:
        """All in one transaction; if the database refuses a value, one by one, to single out the message at fault."""
        try:
            if messages:
                self._commit(messages)
        except (DataError, IntegrityError) as error:
            self._days.clear()  # perhaps a partition was dropped since
            if len(messages) == 1:
                dead.append((messages[0].entry, str(error).strip()))
                return []
            return [entry for message in messages for entry in self._write([message], dead)]
        return [message.entry for message in messages]

    def _commit(self, messages: list[Message]) -> None:
        self._ensure_partitions(messages)
        with transaction.atomic():
            self._samples.write(m.body for m in messages if isinstance(m.body, wire.AgentBatch))
            rows = [row for m in messages if isinstance(m.body, wire.RequestBatch) for row in m.body.rows]
            requests.insert(rows, self._objectives)

    def _ensure_partitions(self, messages: list[Message]) -> None:
        numbers = {day for message in messages for day in message.days}
        found = {datetime.fromtimestamp(day * DAY_S, UTC).date() for day in numbers}
        if found - self._days:
            partitions.ensure(found - self._days)
            self._days |= found

    def _acknowledge(self, written: list[Entry], dead: list[tuple[Entry, str]]) -> None:
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
            for entry in (*written, *(entry for entry, _ in dead)):
                pipe.xack(entry.stream, wire.INGEST_GROUP, entry.id)
                pipe.xdel(entry.stream, entry.id)
            pipe.execute()

    def _beat(self, handled: int) -> None:
        now = time.time()
        if now - self._beat_at < HEARTBEAT_S:
            return
        backlog = self._redis.xlen(wire.BATCH_STREAM) + self._redis.xlen(wire.REQUEST_STREAM)
        beat = wire.Heartbeat("ingester", now, HEARTBEAT_S, f"{backlog} messages waiting, {handled} in the last read")
        self._redis.set(wire.alive_key("ingester"), wire.encode(beat), ex=wire.HEARTBEAT_TTL_S)
        self._beat_at = now


def _decode(entry: Entry) -> Message:
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
    now_s = time.time()
    days = MAX_LATE_DAYS
    if isinstance(body, wire.AgentBatch):  # what its samples would be rolled up with is gone
        days = min(days, settings.GREENSERVE_SAMPLE_RETENTION_DAYS)
    times_s = _times_s(body)
    for at_s in (min(times_s), max(times_s)) if times_s else ():
        if not now_s - days * DAY_S < at_s < now_s + MAX_EARLY_S:
            raise Malformed(f"time {at_s!r} is not of the last {days} days: is a clock wrong?")
    return Message(entry, body, frozenset(int(at_s // DAY_S) for at_s in times_s))


def _times_s(body: wire.AgentBatch | wire.RequestBatch) -> list[float]:
    if isinstance(body, wire.RequestBatch):
        return [row.started_at_s for row in body.rows]
    rows: tuple[Sequence[Any], ...] = (body.gpus, body.instances, body.clocks)
    return [row.at_s for part in rows for row in part]


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
