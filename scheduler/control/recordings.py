"""Keeps what each controller was given and answered, so that a live run can be replayed.

What `core.observations.asking` notes goes into the epoch's row. `replay` calls the steps again, as the simulator does,
without clock, database or nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from core.observations.recording import named, recall
from scheduler.models import Epoch

KEPT = timedelta(days=2)
GIVEN_0_1 = "told"  # "given" in recordings of version 0.1, which are gone after KEPT: the next version drops it


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
