"""Runs what beat asks of trials."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from . import turns


@shared_task
def turn_trials() -> int:
    """Gives each service whose trial has come to another block that block's policy. Returns how many were switched."""
    return turns.turn(timezone.now())
