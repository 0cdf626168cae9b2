"""What steps are given and answer is noted for all who note, and only while they do."""

import pytest

from core.observations import asking
from core.observations.recording import recall
from core.types import Effects, Rationale, Reason


def longer(state: int, observation: tuple[int, ...], config: str) -> tuple[int, Effects]:
    return state + len(observation), Effects((), None, Rationale(Reason.OPTIMAL, config))


def test_each_who_notes_gets_what_came_meanwhile():
    with asking.noting() as outer:
        asking.step(longer, 1, (5,), "first")
        with asking.noting() as inner:
            state, effects = asking.step(longer, 2, (5, 6), "second")
    asking.step(longer, 3, (), "nobody notes")
    assert (state, effects.rationale.summary) == (4, "second")
    assert [recall(note["given"]) for note in outer] == [(1, (5,), "first"), (2, (5, 6), "second")]
    assert inner == outer[1:]
    assert (inner[0]["step"], inner[0]["reason"]) == (f"{__name__}:longer", "optimal")


def test_answer_is_given_when_it_cannot_be_noted(caplog):
    with asking.noting() as notes:
        state, _ = asking.step(longer, 1, (object(),), "")  # type: ignore[arg-type]
    assert (state, notes) == (2, [])
    assert "cannot be recorded" in caplog.text


def test_noting_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), asking.noting() as notes:
        asking.step(longer, 1, (1 // 0,), "")
    asking.step(longer, 1, (), "")
    assert notes == []
