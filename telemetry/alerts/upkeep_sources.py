"""Sources of what GreenServe did for itself and people should know: rows set aside, restarts, clocks set back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db.models import Count, Max, Sum

from pools import clock_repairs, wire
from pools.models import AuditEntry
from telemetry.models import DeadRow

from .alert_state_machine import Reading
from .sources import Rules, Source, age, connect

DEAD_SPAN = timedelta(days=1)
STALL_SPAN_S = 3_600.0
CLOCK_SPAN = timedelta(hours=1)


def _dead_rows(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Counts what was set aside of each agent and gateway within DEAD_SPAN and is still there."""
    rows = DeadRow.objects.filter(received_at__gte=now - DEAD_SPAN).order_by()
    for source, parts, count, newest in rows.values_list("source").annotate(Count("pk"), Sum("rows"), Max("pk")):
        why = DeadRow.objects.values_list("why", flat=True).get(pk=newest)
        number = max(parts, count)  # of a message that cannot be read no rows are counted
        words = f"{number} rows of {source or 'an unknown sender'} could not be stored: {why}"
        yield Reading("rows_set_aside", source, float(number), words)


def _stalls(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Yields the processes that the supervisor restarted because they made no progress, by its own table and clock."""
    with connect() as client:
        keys = sorted(client.scan_iter(match=wire.PROCESSES_KEY + "*", count=1_000))
        found: Any = client.mget(keys) if keys else []
    try:
        rows = [row for data in filter(None, found) for row in wire.decode(data, wire.ProcessTable).processes]
    except msgspec.DecodeError:
        return  # what cannot be read was not said
    for row in rows:
        if row.stalled_s is not None and row.stalled_s < STALL_SPAN_S:
            words = f"{row.name} made no progress and was restarted {age(row.stalled_s)} ago, {row.stalls} times in all"
            yield Reading("process_stalled", row.name, float(row.stalls), words)


def _clock(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Yields one reading when marks lay ahead of the clock within CLOCK_SPAN, with what was set back last."""
    notes = AuditEntry.objects.filter(
        kind=clock_repairs.KIND, at__gte=now - CLOCK_SPAN, at__lte=now + clock_repairs.AHEAD
    ).order_by("-pk")
    last = notes.first()
    if last is not None:
        words = f"The clock was set back: {last.label}, and go on from now"
        yield Reading("clock_set_back", "", float(notes.count()), words)


DEAD_ROWS = Source(("rows_set_aside",), _dead_rows)
STALLS = Source(("process_stalled",), _stalls)
CLOCK = Source(("clock_set_back",), _clock)
