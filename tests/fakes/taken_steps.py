"""Steps as loops took them, and in words where those of two worlds differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from core.observations.recording import recall


@dataclass(frozen=True)
class Taken:
    """A step as it was taken."""

    step: str
    state: Any
    observation: Any
    config: Any
    commands: Any
    reason: str


def every(notes: list[Mapping[str, Any]]) -> list[Taken]:
    """Returns all steps that were taken."""
    return [Taken(note["step"], *recall(note["given"]), recall(note["commands"]), note["reason"]) for note in notes]


def taken(notes: list[Mapping[str, Any]]) -> list[Taken]:
    """Returns the steps, without what repeats a step to no effect: live, scale has its turn right after it followed the
    carbon loop."""
    found: list[Taken] = []
    for own in every(notes):
        if not (found and found[-1].step == own.step and not own.commands):
            found.append(own)
    return found


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Returns in words where two values are not the same; sums may have been made in another order."""
    if is_dataclass(ours) and type(ours) is type(theirs):
        names = [own.name for own in fields(ours)]
        ours, theirs = ({name: getattr(value, name) for name in names} for value in (ours, theirs))
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        own = [
            found
            for key in ours.keys() & theirs.keys()
            for found in differences(ours[key], theirs[key], f"{where}.{key}")
        ]
        alone = sorted(f"{where}.{key}: in one world alone" for key in ours.keys() ^ theirs.keys())
        return sorted(own) + alone
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for n, (own, other) in pairs for found in differences(own, other, f"{where}[{n}]")]
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        ours, theirs = ours.tolist(), theirs.tolist()
    if isinstance(ours, list) and isinstance(theirs, list):
        return differences(tuple(ours), tuple(theirs), where)
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    same = math.isclose(ours, theirs, rel_tol=1e-12) if numbers else ours == theirs
    return [] if same else [f"{where}: {ours} live, {theirs} simulated"]
