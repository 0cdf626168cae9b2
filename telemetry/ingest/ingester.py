"""The ingester: from the agents' and gateways' Redis streams into PostgreSQL, each row once.

A message is acknowledged after the commit that has its rows. Dying in between means it is read again, and the
tables refuse it a second time: batches by (agent, boot, seq), request records by (started_at, request_id). Rows that
cannot be stored are committed with the others, as dead rows (`dead_rows`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from pools import wire
from pools.models import Node
from telemetry.ingest.agent_batches import ClockSink
from telemetry.ingest.row_writer import Message, RowWriter
from telemetry.storage import brin_summaries

log = logging.getLogger(__name__)

CONSUMER = "ingester"  # one, under a fixed name: a restarted one finds what the last one had read
CLAIM_AFTER_S = 60.0  # longer than a commit takes; what is written twice all the same is refused by the tables
CLAIM_EVERY_S = 10.0
READ_COUNT = 1_000
READ_AHEAD = 3_000  # more batches for the same commit when there are many: what a commit costs is then shared by more
BLOCK_MS = 1_000
GATHER_S = 0.2  # a breath between reads, so that one commit carries several batches
HEARTBEAT_S = 2.0
BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of a stream as read; one that was deleted while pending has no fields."""

    stream: str
    id: bytes
    fields: Mapping[bytes, bytes] | None


class Ingester:
    """Reads, writes, acknowledges. Those of several control planes share the work, under one consumer's name.

    What one of them read and never acknowledged, since its machine is gone, another takes up after CLAIM_AFTER_S.
    """

    def __init__(self, client: redis.Redis, clock_sink: ClockSink) -> None:
        self._redis = client
        self._rows = RowWriter(clock_sink)
        self._summaries = brin_summaries.Summaries()
        self._streams: tuple[str, ...] = ()  # of agents' batches: the shared one, and each node's
        self._pending = True  # read what an earlier run left unacknowledged before anything new
        self._beat_mono_s = float("-inf")
        self._claimed_mono_s = time.monotonic()

    def run(self, stop: Event) -> None:
        """Reads and writes batches until `stop` is set, and finishes the last. PostgreSQL or Redis away only delays."""
        failures = 0
        while not stop.is_set():
            try:
                if failures or self._beat_mono_s == float("-inf"):
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
        """Makes ready to read from all streams: each node has its own."""
        self._streams = ()
        self._follow_nodes()

    def _follow_nodes(self) -> None:
        """Reads the streams of nodes that are there now. What is in those of deleted nodes is nobody's, and goes."""
        nodes = Node.objects.order_by("pk").values_list("name", flat=True)
        streams = (wire.BATCH_STREAM, *map(wire.batch_stream, nodes))
        if gone := set(self._streams) - set(streams):
            self._redis.delete(*gone)
        with self._redis.pipeline(transaction=False) as pipe:
            for stream in {*streams, wire.REQUEST_STREAM} - set(self._streams):
                pipe.xgroup_create(stream, wire.INGEST_GROUP, id="0", mkstream=True)
            for answer in pipe.execute(raise_on_error=False):
                if isinstance(answer, redis.RedisError) and "BUSYGROUP" not in str(answer):
                    raise answer
        self._streams = streams

    def step(self, block_ms: int = BLOCK_MS) -> int:
        """One read and what follows from it. Returns the number of entries handled."""
        entries = self._read(block_ms) + self._left_by_others()
        self.write(entries)
        self._acknowledge(entries)
        if self._pending and not entries:
            self._pending = False
        self._beat(len(entries))
        return len(entries)

    def _read(self, block_ms: int) -> list[StreamEntry]:
        if self._pending:
            return self._entries("0", READ_COUNT, None)
        entries = self._entries(">", READ_COUNT, block_ms)
        if sum(entry.stream != wire.REQUEST_STREAM for entry in entries) >= READ_COUNT:
            entries += self._entries(">", READ_AHEAD, None, requests=False)
        return entries

    def _entries(self, start: str, most: int, block_ms: int | None, *, requests: bool = True) -> list[StreamEntry]:
        """Returns about `most` entries, as many of each stream. `requests` off: of agents' batches only, since a batch
        of requests may have hundreds of rows."""
        streams = (wire.REQUEST_STREAM, *self._streams) if requests else self._streams
        answer: Any = self._redis.xreadgroup(
            wire.INGEST_GROUP,
            CONSUMER,
            dict.fromkeys(streams, start),
            count=max(1, most // len(streams)),
            block=block_ms,
        )
        return [
            StreamEntry(stream.decode(), entry_id, fields)
            for stream, found in answer or ()
            for entry_id, fields in found
        ]

    def _left_by_others(self) -> list[StreamEntry]:
        """Returns what was read long ago and is not acknowledged: whoever read it is gone."""
        if time.monotonic() - self._claimed_mono_s < CLAIM_EVERY_S:
            return []
        self._claimed_mono_s = time.monotonic()
        found = []
        streams = (wire.REQUEST_STREAM, *self._streams)
        with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xautoclaim(stream, wire.INGEST_GROUP, CONSUMER, round(CLAIM_AFTER_S * 1e3), count=READ_COUNT)
            answers: list[Any] = pipe.execute()
        for stream, answer in zip(streams, answers, strict=True):
            found += [StreamEntry(stream, entry_id, fields) for entry_id, fields in answer[1]]
        return found

    def write(self, entries: Sequence[StreamEntry]) -> None:
        """Commits their rows; those that cannot be stored are set aside, in the same transaction."""
        self._rows.write(
            [
                Message.read(entry.stream, entry.id.decode(), entry.fields.get(b"b"))
                for entry in entries
                if entry.fields is not None
            ]
        )

    def _acknowledge(self, entries: Sequence[StreamEntry]) -> None:
        if not entries:
            return
        with self._redis.pipeline(transaction=True) as pipe:
            handled: dict[str, list[bytes]] = {}
            for entry in entries:
                handled.setdefault(entry.stream, []).append(entry.id)
            for stream, ids in handled.items():
                pipe.xack(stream, wire.INGEST_GROUP, *ids)
                pipe.xdel(stream, *ids)
            pipe.execute()

    def _beat(self, handled: int) -> None:
        if time.monotonic() - self._beat_mono_s < HEARTBEAT_S:
            return
        self._summaries.keep_up(timezone.now())
        self._follow_nodes()
        with self._redis.pipeline(transaction=False) as pipe:
            for stream in (wire.REQUEST_STREAM, *self._streams):
                pipe.xlen(stream)
            backlog = sum(pipe.execute())
        name = wire.process_name("ingester", settings.GREENSERVE_PLANE)
        beat = wire.Heartbeat(name, time.time(), HEARTBEAT_S, f"{backlog} messages waiting, {handled} in the last read")
        self._redis.set(wire.alive_key(name), wire.encode(beat), ex=wire.HEARTBEAT_TTL_S)
        self._beat_mono_s = time.monotonic()
