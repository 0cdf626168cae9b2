"""Stores the rows of messages; one that the database refuses is set aside, and the others are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

from django.conf import settings
from django.db import DataError, IntegrityError, transaction
from django.utils import timezone

from pools import wire
from telemetry.ingest import batch_rows, dead_rows, request_records
from telemetry.ingest.agent_batches import ClockSink, SampleWriter
from telemetry.ingest.batch_rows import Body, SetAside
from telemetry.ingest.own_rows import Owners
from telemetry.storage import copying, time_partitions

EPOCH = date(1970, 1, 1).toordinal()
MAX_LATE_DAYS = 60


@dataclass(slots=True)
class Message:
    """A stream's entry. `body`: what of it can be stored, as far as is known; None: it cannot be read at all."""

    stream: str
    id: str
    data: bytes
    body: Body | None
    aside: list[SetAside] = field(default_factory=list)

    @classmethod
    def read(cls, stream: str, entry_id: str, data: bytes | None) -> Message:
        return cls(stream, entry_id, data or b"", *batch_rows.read(stream, data))


class RowWriter:
    """Writes messages, each row once. It keeps what it looked up, and belongs to one thread."""

    def __init__(self, clock_sink: ClockSink) -> None:
        self.samples = SampleWriter(clock_sink)
        self._objectives = request_records.Objectives()
        self._owners = Owners()
        self._days: set[date] = set()

    def write(self, messages: Sequence[Message]) -> None:
        """Stores all in one transaction; if the database refuses a value, one by one, and that message by row."""
        self._set_strange_times_aside(messages)
        for message in messages:
            if isinstance(message.body, wire.AgentBatch):
                message.body, aside = self.without_foreign(message.stream, message.body)
                message.aside += aside
        self._write(messages)

    def without_foreign(self, stream: str, batch: wire.AgentBatch) -> tuple[Body, list[SetAside]]:
        """Returns the batch without what a node's own stream says of other nodes, and that."""
        node = wire.node_of_stream(stream)
        foreign = None if node is None else self._owners.foreign(node, batch)
        return (batch, []) if foreign is None else batch_rows.without(batch, *foreign)

    def _write(self, messages: Sequence[Message]) -> None:
        try:
            self._commit(messages)
        except (DataError, IntegrityError) as error:
            self._days.clear()  # perhaps a partition was dropped since
            if len(messages) > 1:
                for message in messages:
                    self._write([message])
                return
            self._commit_by_row(messages[0], error)

    def _commit(self, messages: Sequence[Message]) -> None:
        bodies = [message.body for message in messages if message.body is not None]
        self.ensure_days(bodies)
        with transaction.atomic():
            fresh = self.samples.claim(body for body in bodies if isinstance(body, wire.AgentBatch))
            self.samples.store(fresh)
            self._insert([body for body in bodies if isinstance(body, wire.RequestBatch)])
            new = {id(batch) for batch in fresh}
            for message in messages:
                if not isinstance(message.body, wire.AgentBatch) or id(message.body) in new:
                    dead_rows.keep(message.stream, message.id, message.aside, timezone.now())

    def _commit_by_row(self, message: Message, refused: Exception) -> None:
        """Stores what the database takes of a message, and sets the rest aside; the whole where it has no number."""
        now = timezone.now()
        if message.body is not None:
            self.ensure_days([message.body])
        try:
            with transaction.atomic():
                if message.body is not None and self._is_new(message.body):
                    aside = [*message.aside, *self.store(message.body)]
                    dead_rows.keep(message.stream, message.id, aside, now)
        except (DataError, IntegrityError):
            source = "" if message.body is None else batch_rows.source(message.body)
            aside = [batch_rows.whole(message.data, first_line(refused), source)]
            dead_rows.keep(message.stream, message.id, aside, now)

    def _is_new(self, body: Body) -> bool:
        return isinstance(body, wire.RequestBatch) or bool(self.samples.claim([body]))

    def store(self, body: Body) -> list[SetAside]:
        """Stores rows in the caller's transaction, whatever was claimed; returns those that the database refuses. The
        partitions of their days exist (`ensure_days`)."""
        try:
            with transaction.atomic():
                if isinstance(body, wire.AgentBatch):
                    self.samples.store([body])
                else:
                    self._insert([body])
        except (DataError, IntegrityError) as error:
            if batch_rows.count(body) <= 1:
                return [batch_rows.aside(body, first_line(error))]
            return [aside for half in batch_rows.halves(body) for aside in self.store(half)]
        return []

    def _insert(self, batches: Iterable[wire.RequestBatch]) -> None:
        request_records.insert([row for batch in batches for row in batch.rows], self._objectives)

    def ensure_days(self, bodies: Sequence[Body]) -> None:
        """Makes the partitions for all rows, unless they exist."""
        times_s = batch_rows.times_s(bodies)
        days = {
            date.fromordinal(EPOCH + day) for day in copying.distinct((times_s // batch_rows.DAY_S).astype("int64"))
        }
        if days - self._days:
            time_partitions.ensure(days - self._days)
            self._days |= days

    def _set_strange_times_aside(self, messages: Sequence[Message]) -> None:
        """All times are looked at together, and message by message only when one is wrong."""
        now_s = timezone.now().timestamp()
        for kind, stream in ((wire.AgentBatch, wire.BATCH_STREAM), (wire.RequestBatch, wire.REQUEST_STREAM)):
            own = [message for message in messages if isinstance(message.body, kind)]
            days = days_kept(stream)
            bodies = [message.body for message in own if message.body is not None]
            if batch_rows.timely(batch_rows.times_s(bodies), now_s, days).all():
                continue
            for message in own:
                assert message.body is not None
                message.body, aside = batch_rows.without_strange_times(message.body, now_s, days)
                message.aside += aside


def days_kept(stream: str) -> int:
    """Returns how old a stream's rows may be, in days: of older samples there are no roll-ups."""
    own = settings.GREENSERVE_SAMPLE_RETENTION_DAYS
    return MAX_LATE_DAYS if stream == wire.REQUEST_STREAM else min(MAX_LATE_DAYS, own)


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
