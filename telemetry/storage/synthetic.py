"""Reads which of the time on record was made up."""

from __future__ import annotations

from telemetry.models import SyntheticHistory


def newest() -> SyntheticHistory | None:
    """Returns the newest span that was made up; None: all was measured."""
    return SyntheticHistory.objects.order_by("-end_at").first()
