"""Keeps what each controller was given and answered, so that a live run can be replayed.

`step` stands before every controller's own; what it notes goes into the epoch's row. `replay` calls the steps again, as
the simulator does, without clock, database or nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from core.observations.recording import named, recall, record
from core.types import Effects
from scheduler.models import Epoch

log = logging.getLogger(__name__)

KEPT = timedelta(days=2)
GIVEN_0_1 = "told"  # "given" in recordings of version 0.1, which are gone after KEPT: the next version drops it

S = TypeVar("S")
R = TypeVar("R")
Obs = TypeVar("Obs")
C = TypeVar("C")

_notes: ContextVar[list[dict[str, Any]] | None] = ContextVar("notes", default=None)


@contextmanager
def noting() -> Iterator[list[dict[str, Any]]]:
    """Collects what the steps that run inside are given and answer."""
    notes: list[dict[str, Any]] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def step(
    function: Callable[[S, Obs, C], tuple[R, Effects]], state: S, observation: Obs, config: C
) -> tuple[R, Effects]:
    """Calls `function(state, observation, config)`, and notes what it was given and answered."""
    answer = function(state, observation, config)
    notes = _notes.get()
    if notes is None:
        return answer
    try:
        note = {
            "step": f"{function.__module__}:{function.__qualname__}",
            "given": record((state, observation, config)),
            "commands": record(answer[1].commands),
            "reason": answer[1].rationale.reason.value,
        }
    except TypeError:  # a decision is not to fail for its recording
        log.exception("a step of %s cannot be recorded", function.__module__)
    else:
        notes.append(note)
    return answer


def keep(epoch: Epoch, notes: list[dict[str, Any]], now: datetime) -> None:
    """Puts the notes into the epoch's row, and lets go of those of long ago."""
    Epoch.objects.filter(pk=epoch.pk).update(recording=notes)
    Epoch.objects.filter(recording__isnull=False, due_at__lt=now - KEPT).update(recording=None)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step of a recorded epoch, taken again."""

    epoch_id: int
    kind: str
    step: str
    same: bool
    then: str  # reason and commands, in words
    now: str


def replay(epoch: Epoch) -> list[Replayed]:
    """Takes the epoch's steps again. Raises RecordingError when the code has moved on from what was recorded."""
    found = []
    for note in epoch.recording or []:
        state, observation, config = recall(note["given"] if "given" in note else note[GIVEN_0_1])
        _, effects = named(note["step"])(state, observation, config)
        commands = recall(note["commands"])
        same = commands == effects.commands and note["reason"] == effects.rationale.reason.value
        found.append(
            Replayed(
                epoch.pk,
                epoch.kind,
                note["step"],
                same,
                f"{note['reason']}: {commands}",
                f"{effects.rationale.reason.value}: {effects.commands}",
            )
        )
    return found
