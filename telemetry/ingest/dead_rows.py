"""Keeps rows that could not be stored: as many as KEPT, for at most KEPT_FOR."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Max

from telemetry.ingest import batch_rows
from telemetry.ingest.batch_rows import SetAside
from telemetry.models import DeadRow

log = logging.getLogger(__name__)

KEPT = 20_000  # of the table's rows; a node whose clock is wrong makes one a second
KEPT_FOR = timedelta(seconds=batch_rows.KEPT_S)


def keep(stream: str, entry_id: str, aside: Sequence[SetAside], now: datetime) -> None:
    """Stores what was set aside of a stream's entry, in the caller's transaction; a second time changes nothing."""
    if not aside:
        return
    made = DeadRow.objects.bulk_create(
        [
            DeadRow(
                received_at=now,
                stream=stream,
                entry_id=entry_id,
                place=place,
                source=one.source.replace("\0", "")[:100],
                kind=one.kind,
                rows=one.rows,
                **reason(one),
                body=one.body,
            )
            for place, one in enumerate(aside)
        ],
        ignore_conflicts=True,
    )
    log.error("%d parts of message %s of %s set aside: %s", len(made), entry_id, stream, aside[0].why)
    newest = DeadRow.objects.aggregate(newest=Max("pk"))["newest"]
    if newest is not None and newest > KEPT:
        DeadRow.objects.filter(pk__lte=newest - KEPT).delete()


def reason(one: SetAside) -> dict[str, Any]:
    """Returns the columns that say why, and when it is tried again."""
    due_at = None if one.due_s is None else datetime.fromtimestamp(one.due_s, UTC)
    return {"why": one.why.replace("\0", "")[:500], "due_at": due_at}


def forget(now: datetime) -> int:
    """Deletes what was set aside long ago; returns how many."""
    return DeadRow.objects.filter(received_at__lt=now - KEPT_FOR).delete()[0]
