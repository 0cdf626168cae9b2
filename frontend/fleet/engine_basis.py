"""Says in words what a configuration's figures rest on, and how old that is: the same on every page."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from core.engine import measured
from core.engine.corrections import Configuration, configuration
from core.types import Mode
from frontend import formats
from pools.models import ModelCard


@dataclass(frozen=True, slots=True)
class ModeBasis:
    """A mode, and what its figures rest on. `origin`: of its profile; empty: it has none."""

    mode: str
    words: str
    origin: str


def words(key: Configuration) -> str:
    """Returns `measured 3 h ago`, `calibrated 20 s ago`, `modelled`, or `modelled by data sheet`."""
    basis = measured.basis(key)
    if basis.only_modelled:
        return basis.source.value
    at_s = basis.measured_at_s
    age = "at an unknown time" if at_s is None else f"{formats.seconds(max(0.0, time.time() - at_s))} ago"
    return f"{basis.source.value} {age}"


def of_modes(card: ModelCard, modes: Iterable[Mode]) -> list[ModeBasis]:
    """Returns what the figures of a model's modes rest on."""
    keys = {mode: configuration(card.engine_model_name, mode.gpu, mode.tp, card.engine) for mode in sorted(set(modes))}
    return [ModeBasis(mode.name, words(key), _origin(key)) for mode, key in keys.items()]


def measured_modes(card: ModelCard) -> list[ModeBasis]:
    """Returns the model's modes of which something was measured."""
    shape = configuration(card.engine_model_name, "", 1, card.engine).shape
    own = (configuration(one.model, one.gpu, one.tp, one.engine) for one in measured.profiles())
    every = {*own, *measured.residuals()}
    return of_modes(card, (Mode(key.gpu, key.tp) for key in every if (key.shape, key.engine) == (shape, card.engine)))


def _origin(key: Configuration) -> str:
    profile = measured.profile_of(key)
    return "" if profile is None else profile.origin
