"""Tries again to store rows that were set aside: those that somebody names, and by itself those whose time has come."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import DataError, IntegrityError, transaction
from django.utils import timezone

from pools import wire
from pools.access import audit
from telemetry.ingest import batch_rows, dead_rows
from telemetry.ingest.agent_batches import ClockSink
from telemetry.ingest.batch_rows import Body, SetAside
from telemetry.ingest.row_writer import RowWriter, days_kept, first_line
from telemetry.models import DeadRow

log = logging.getLogger(__name__)

AT_ONCE = 2_000  # dead rows
KIND, ACTION = "dead rows", "replay"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome for one dead row. `why`: what still keeps it from being stored; empty: it is stored and gone."""

    id: int
    rows: int
    why: str


def replay(ids: Iterable[int], clock_sink: ClockSink) -> list[Replayed]:
    """Stores each dead row whole, and forgets it in the same transaction; or leaves it as it is and says why.

    A request record that is there already stays as it is. Samples are stored once, as nobody else has what was set
    aside of their batch.
    """
    writer = RowWriter(clock_sink)
    return [found for pk in sorted(set(ids)) if (found := _replay(pk, writer)) is not None]


def replay_due(now: datetime, clock_sink: ClockSink) -> list[Replayed]:
    """Replays rows that were ahead of the clock and whose time has come, so many at once, and notes it.

    Such rows are of the time before a clock was set back, or of a clock that was ahead.
    """
    due = DeadRow.objects.filter(due_at__lte=now).order_by("due_at", "pk").values_list("pk", flat=True)
    found = replay(due[:AT_ONCE], clock_sink)
    stored = [one for one in found if not one.why]
    if stored:
        rows = sum(one.rows for one in stored)
        label = f"{rows} rows that were ahead of the clock: their time has come"
        log.info("stored %s", label)
        audit.note(audit.Actor(), ACTION, kind=KIND, label=label, after={"rows": rows, "dead_rows": len(stored)})
    return found


@transaction.atomic
def _replay(pk: int, writer: RowWriter) -> Replayed | None:
    row = DeadRow.objects.select_for_update().filter(pk=pk).first()
    if row is None:  # somebody else replayed it
        return None
    body, aside = batch_rows.read(row.stream, bytes(row.body))
    if body is not None:
        body, strange = batch_rows.without_strange_times(body, timezone.now().timestamp(), days_kept(row.stream))
        aside += strange
    if isinstance(body, wire.AgentBatch):
        body, foreign = writer.without_foreign(row.stream, body)
        aside += foreign
    if body is not None and not aside:
        aside = _store(row, body, writer)
    if aside:
        DeadRow.objects.filter(pk=pk).update(**dead_rows.reason(aside[0]))
        return Replayed(pk, row.rows, aside[0].why)
    row.delete()
    return Replayed(pk, 0 if body is None else batch_rows.count(body), "")


def _store(row: DeadRow, body: Body, writer: RowWriter) -> list[SetAside]:
    """Stores all, or nothing and returns what cannot be stored. Of a message that is set aside whole, no number was
    claimed: somebody may have sent it again since."""
    writer.ensure_days([body])
    try:
        with transaction.atomic():
            if (
                isinstance(body, wire.AgentBatch)
                and row.kind == DeadRow.DeadKind.MESSAGE
                and not writer.samples.claim([body])
            ):
                return []
            aside = writer.store(body)
            if aside:
                transaction.set_rollback(True)
            return aside
    except (DataError, IntegrityError) as error:
        return [batch_rows.whole(b"", first_line(error))]
