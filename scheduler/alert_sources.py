"""Reads from epochs what alert rules judge; `telemetry.alerts` finds this module by its name in the settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pools.models import Service
from scheduler.control import active_operations
from scheduler.models import Epoch, SlowLoop
from telemetry.alerts.alert_state_machine import Level, Reading
from telemetry.alerts.sources import Rules, Source

LOOKED_AT = 10  # epochs back
NOT_WELL = (Epoch.Status.FAILED, Epoch.Status.INFEASIBLE)


def _epochs(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Yields how many of the newest epochs of each loop and service failed, or met not all constraints, in a row.

    A paused loop yields nothing, so that its alert ends: a person has seen to it.
    """
    paused = set(active_operations.open_pauses().values_list("service_id", "loop"))
    for service in Service.objects.all():
        for kind in SlowLoop.values:
            if (service.pk, kind) in paused:
                continue
            newest = list(
                Epoch.objects.filter(service=service, kind=kind, advisory=False, due_at__lte=now)
                .order_by("-due_at", "-pk")
                .only("status", "error")[:LOOKED_AT]
            )
            if newest:
                yield _reading(f"{service.name}/{kind}", newest)


def _reading(subject: str, newest: list[Epoch]) -> Reading:
    in_a_row = next((n for n, epoch in enumerate(newest) if epoch.status not in NOT_WELL), len(newest))
    service, _, kind = subject.rpartition("/")
    failed = newest[0].status == Epoch.Status.FAILED
    what = "failed" if failed else "found no plan that meets all constraints"
    words = f"The {kind} epoch of {service} {what}, {in_a_row} in a row. {newest[0].error}".strip()[:500]
    step = "" if failed else "Look at the decision: it names what cannot be met"
    level = Level.BAD if failed else Level.WARN
    decision = newest[0].decisions.order_by("pk").values_list("pk", flat=True).first() if in_a_row else None
    return Reading("epoch_failed", subject, float(in_a_row), words, level, step, decision)


EPOCHS = Source(("epoch_failed",), _epochs)
