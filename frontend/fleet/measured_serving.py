"""Measured while serving: by how much a model's engines differ from what is predicted of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from core.engine.corrections import configuration
from pools.models import EngineResidual, ModelCard


@dataclass(frozen=True, slots=True)
class ServingRow:
    mode: str
    time_ratio: float
    power_ratio: float
    windows: float
    at: datetime
    corrected: bool
    drifted: bool


def rows(card: ModelCard) -> list[ServingRow]:
    """Returns what was measured of the card's configurations; fine-tunes of one base share it."""
    shape = configuration(card.engine_model_name, "", 1, card.engine).shape
    return [
        ServingRow(
            mode=f"{row.gpu_type}/TP{row.tp}",
            time_ratio=1.0 + row.time_drift,
            power_ratio=1.0 + row.power_drift,
            windows=row.windows,
            at=row.at,
            corrected=bool(row.time),
            drifted=row.drifted,
        )
        for row in EngineResidual.objects.filter(shape=shape, engine=card.engine).defer("state")
    ]
