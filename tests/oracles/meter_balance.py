"""The ledger's entries against the counter they were split from: not a microjoule is lost or entered twice."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Sum

from pools.models import Gpu
from telemetry.models import EnergyEntry, MeterMark


@dataclass(frozen=True, slots=True)
class Balance:
    """Entries against the meter, in whole microjoules. The difference is zero."""

    entries_uj: int
    metered_uj: int

    @property
    def difference_uj(self) -> int:
        return self.entries_uj - self.metered_uj


def balance(gpu: Gpu | int) -> Balance:
    """What the ledger holds of a GPU, and what its counter moved between its first sample and its mark."""
    mark = MeterMark.objects.filter(gpu=gpu).first()
    entered = EnergyEntry.objects.filter(gpu=gpu).aggregate(total=Sum("energy_uj"))["total"] or 0
    return Balance(int(entered), mark.energy_uj - mark.opened_energy_uj if mark else 0)
