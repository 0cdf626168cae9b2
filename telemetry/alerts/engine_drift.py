"""The source of what engines differ by from what is predicted of them, where a new profile is worth its while."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from core.engine.corrections import Configuration, configuration
from pools.models import EngineProfile, EngineResidual, ModelCard

from .alert_state_machine import Reading
from .sources import Rules, Source, age

DRIFT = "engine_drift"
HEARD = timedelta(hours=1)  # what engines did before says nothing of those that serve now


def _drift(now: datetime, rules: Rules) -> Iterator[Reading]:
    rows = list(EngineResidual.objects.filter(at__gt=now - HEARD).defer("state"))
    if not rows:
        return
    names = _names()
    between = (rules[DRIFT].threshold + rules[DRIFT].clear) / 2.0  # what opens no alert, and ends none
    published = {
        one.configuration: one for one in EngineProfile.objects.filter(published_at__isnull=False).defer("points")
    }
    for row in rows:
        model = names.get(row.shape, [row.shape])[0]
        words = (
            f"Engines of {model} on {row.tp} x {row.gpu_type} ({row.engine}) take {1.0 + row.time_drift:.2f} times the "
            f"predicted time and draw {1.0 + row.power_drift:.2f} times the predicted power; "
            f"{_in_force(published.get(row.configuration), now)}"
        )
        step = f"Measure them: `greenserve node profile --model {model} --tp {row.tp}` on a node with {row.gpu_type}; "
        value = furthest(row) if row.drifted else min(furthest(row), between)
        yield Reading(DRIFT, subject(row.configuration), value, words, step=step + "then publish the profile")


def furthest(row: EngineResidual) -> float:
    """Returns by what share the worse of time and power is off: 0.25 for 1.25 times, and for 0.8 times."""
    return max(max(ratio, 1.0 / ratio) for ratio in (1.0 + row.time_drift, 1.0 + row.power_drift)) - 1.0


def subject(key: Configuration) -> str:
    return f"{key.shape} on {key.tp} x {key.gpu}, {key.engine}"[:200]


def _names() -> dict[str, list[str]]:
    """Returns by shape the models that have it."""
    found: dict[str, list[str]] = {}
    for card in ModelCard.objects.order_by("name"):
        found.setdefault(configuration(card.engine_model_name, "", 1, card.engine).shape, []).append(card.name)
    return found


def _in_force(profile: EngineProfile | None, now: datetime) -> str:
    if profile is None:
        return "no profile is in force, so that the closed form predicts"
    if profile.measured_at is None:
        return f"the profile in force ({profile.version[:8]}) does not say when it was measured"
    days = age((now - profile.measured_at).total_seconds())
    return f"the profile in force ({profile.version[:8]}) was measured {days} ago"


ENGINE_DRIFT = Source((DRIFT,), _drift)
