"""Fills in what decisions brought about, beside what they predicted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, Sum

from scheduler.control.pending_plans import NOT_CARRIED_OUT
from scheduler.models import Decision
from telemetry.ledger.posting import INTERVAL_S
from telemetry.models import EnergyEntry, RequestRecord

GRACE_S = 30.0  # until the ledger and the request records of the epoch are in
OLDEST = timedelta(days=1)
BATCH = 200


def fill(now: datetime) -> int:
    """Fills `realised` of the epochs' decisions whose horizon has passed; returns how many."""
    waiting = (
        Decision.objects.filter(realised__isnull=True, epoch__advisory=False, at__gte=now - OLDEST)
        .exclude(epoch__status__in=NOT_CARRIED_OUT)
        .select_related("epoch", "service")
        .order_by("at")
    )
    done = 0
    for decision in waiting[:BATCH]:
        assert decision.epoch is not None
        end = decision.at + timedelta(seconds=decision.epoch.period_s)
        if end + timedelta(seconds=GRACE_S) > now:
            continue
        values = outcome(decision, decision.at, end)
        done += Decision.objects.filter(pk=decision.pk, realised__isnull=True).update(realised=values)
    return done


def outcome(decision: Decision, start: datetime, end: datetime) -> dict[str, Any]:
    """Energy and carbon of the service's GPUs, and the service it gave, over [start, end); a pool's where it has one.

    Energy is that of whole ledger intervals. Carbon is null when any part of it is: a sum of what is known would look
    like less. The attainment counts requests that were judged.
    """
    entries = EnergyEntry.objects.filter(
        start_at__gte=start - timedelta(seconds=INTERVAL_S / 2), start_at__lt=end - timedelta(seconds=INTERVAL_S / 2)
    )
    records = RequestRecord.objects.filter(started_at__gte=start, started_at__lt=end)
    if decision.pool_id is not None:
        entries, records = entries.filter(pool=decision.pool_id), records.filter(pool=decision.pool_id)
    elif decision.service is not None:
        entries, records = entries.filter(pool__service=decision.service), records.filter(service=decision.service.name)
    energy = entries.aggregate(
        energy_j=Sum("energy_j"), carbon=Sum("carbon_gco2e"), unknown=Count("id", filter=Q(carbon_gco2e__isnull=True))
    )
    judged = records.aggregate(
        requests=Count("request_id"),
        met=Count("request_id", filter=Q(slo_met=True)),
        judged=Count("request_id", filter=Q(slo_met__isnull=False)),
    )
    energy_j = energy["energy_j"]
    return {
        "from": start.isoformat(),
        "to": end.isoformat(),
        "energy_j": energy_j,
        "mean_power_w": None if energy_j is None else energy_j / (end - start).total_seconds(),
        "carbon_gco2e": None if energy["unknown"] else energy["carbon"],
        "requests": judged["requests"],
        "slo_attainment": judged["met"] / judged["judged"] if judged["judged"] else None,
    }
