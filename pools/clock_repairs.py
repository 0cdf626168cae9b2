"""Marks that lie ahead of the clock, because it was set back: how far ahead is too far, and the record of their repair.

A mark says up to when something was done, or when it is due. Whoever keeps one that lies ahead sets it back to now,
rather than wait until the clock has caught up, and notes it here. The note stands in the audit trail, and
`telemetry.alerts` raises an alert of it.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from pools.access import audit

log = logging.getLogger(__name__)

AHEAD = timedelta(seconds=60)  # marks further ahead are set back; what is less is waited for
KIND, ACTION = "clock", "set back"


def is_ahead(mark: datetime, now: datetime) -> bool:
    return mark > now + AHEAD


def note(marks: str, rows: int, furthest: datetime, now: datetime) -> None:
    """Records a repair, in the caller's transaction. `marks`: what they are of, in the plural."""
    ahead_s = (furthest - now).total_seconds()
    label = f"{rows} {marks} lay up to {ahead_s:.0f} s ahead of the clock"
    log.warning("%s: they were set back to %s", label, now.isoformat())
    before, after = {"furthest": furthest.isoformat()}, {"rows": rows, "now": now.isoformat()}
    audit.note(audit.Actor(), ACTION, kind=KIND, object_key=marks, label=label, before=before, after=after)
