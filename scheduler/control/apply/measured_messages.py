"""Makes the messages that say what was measured of engines: of the configurations that services may run in."""

from __future__ import annotations

from collections.abc import Collection

from core.engine import measured
from core.engine.corrections import Configuration, configuration
from core.engine.profiles import Profile
from pools import wire
from pools.models import ModelCard

STEP_S = 300.0  # of a residual's age: a message is not sent anew since engines go on as they did


def measured_engines() -> list[wire.MeasuredEngine]:
    """Returns what this process knows of configurations of services' models."""
    every = {configuration(one.model, one.gpu, one.tp, one.engine) for one in measured.profiles()}
    known = sorted(every | set(measured.residuals()))
    if not known:
        return []
    cards = ModelCard.objects.filter(services__isnull=False).distinct()
    served = {(configuration(card.engine_model_name, "", 1, card.engine).shape, card.engine) for card in cards}
    return [_message(key) for key in known if (key.shape, key.engine) in served]


def of_gpus(every: Collection[wire.MeasuredEngine], gpu_types: Collection[str]) -> list[wire.MeasuredEngine]:
    """Returns those of the GPU types of a node."""
    return [one for one in every if one.gpu in gpu_types]


def contents(named: Collection[wire.MeasuredEngine]) -> list[Profile]:
    """Returns the profiles that messages name."""
    found = (measured.profile_of(one.configuration) for one in named if one.profile)
    return [one for one in found if one is not None]


def _message(key: Configuration) -> wire.MeasuredEngine:
    profile, residual = measured.profile_of(key), measured.residual_of(key)
    version = "" if profile is None else profile.version
    if residual is None:
        return wire.MeasuredEngine(*key, version)
    at_s = None if residual.at_s is None else residual.at_s // STEP_S * STEP_S
    return wire.MeasuredEngine(*key, version, residual.time, residual.power, at_s)
