from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from telemetry.models import MeterMark
from telemetry.seeding import history


class Command(BaseCommand):
    help = (
        "Gives a new demo fleet days of synthetic history (GREENSERVE_DEMO_DAYS). A fleet with a past stays as it is."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if MeterMark.objects.exists():
            self.stdout.write("nothing seeded: this fleet has a past already")
            return
        span = history.seed(timezone.now())
        self.stdout.write(f"synthetic history from {span.start_at:%Y-%m-%d %H:%M} to {span.end_at:%Y-%m-%d %H:%M} UTC")
