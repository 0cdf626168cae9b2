"""The figures of a past period, with what the loops decided in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from scheduler.models import Decision
from telemetry.selectors.period_figures import period_figures


def past_figures(
    start: datetime, end: datetime, service: str = "", site_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """Returns `period_figures`, and `decisions`: how many there were by loop and reason, without those that advise."""
    rows = Decision.objects.filter(Q(epoch=None) | Q(epoch__advisory=False), at__gte=start, at__lt=end)
    if service:
        rows = rows.filter(service__name=service)
    if site_ids is not None:
        rows = rows.filter(pool__site__in=site_ids)
    counts: dict[str, dict[str, int]] = {}
    for kind, reason, count in rows.order_by().values_list("kind", "reason").annotate(Count("pk")):
        counts.setdefault(kind, {})[reason] = count
    return {**period_figures(start, end, service, site_ids), "decisions": counts}
