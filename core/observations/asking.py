"""Asks controllers' steps, and notes what they are given and answer: live loops keep it, tests compare by it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from core.observations.recording import record
from core.types import Effects

log = logging.getLogger(__name__)

S = TypeVar("S")
R = TypeVar("R")
Obs = TypeVar("Obs")
C = TypeVar("C")

_notes: ContextVar[tuple[list[dict[str, Any]], ...]] = ContextVar("notes", default=())  # the outermost first


@contextmanager
def noting() -> Iterator[list[dict[str, Any]]]:
    """Collects what the steps that run inside are given and answer, as JSON; whoever notes around it gets that too."""
    notes: list[dict[str, Any]] = []
    token = _notes.set((*_notes.get(), notes))
    try:
        yield notes
    finally:
        _notes.reset(token)


def step(
    function: Callable[[S, Obs, C], tuple[R, Effects]], state: S, observation: Obs, config: C
) -> tuple[R, Effects]:
    """Calls `function(state, observation, config)`, and notes what it was given and answered."""
    answer = function(state, observation, config)
    noted = _notes.get()
    if not noted:
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
        for notes in noted:
            notes.append(note)
    return answer
