from dataclasses import replace

import pytest

from core.algorithms.clock.projection import Scoreboard
from core.algorithms.clock.speed_table import SpeedTable
from core.controllers.clock.throttllem_clock import ThrottleConfig, ThrottleObservation, ThrottleState, step
from core.engine.measured import Basis
from core.types import Reason, SetSmClock, Source
from tests.unit.core.boards import Row, board, table

TABLE = table()
NO_TBT = ThrottleConfig(tbt_s=None)
ONE = Row(kv=1, remaining=10)  # from 10.1 ms a token at 1000 MHz on


def observe(runs: Scoreboard, now_s: float = 0.0, speed: SpeedTable = TABLE) -> ThrottleObservation:
    return ThrottleObservation(now_s, "i1", runs, speed)


def test_clock_is_the_lowest_when_no_limit_asks_for_more() -> None:
    state, effects = step(None, observe(board(ONE)), NO_TBT)
    assert effects.commands == (SetSmClock("i1", 500.0),)
    assert effects.rationale.reason is Reason.WITHIN_LIMITS
    assert (state.target_mhz, effects.next_tick_s) == (500.0, None)
    assert "source" not in effects.rationale.inputs  # nobody said what this table rests on


def test_decision_names_what_the_speeds_rest_on() -> None:
    known = replace(TABLE, basis=Basis(Source.MEASURED, 5.0))
    _, effects = step(None, observe(board(ONE), speed=known), NO_TBT)
    assert (effects.rationale.inputs["source"], effects.rationale.inputs["measured_at_s"]) == ("measured", 5.0)


@pytest.mark.parametrize(("deadline_s", "mhz"), [(0.3, 500.0), (0.15, 750.0), (0.11, 1000.0), (0.09, 1250.0)])
def test_clock_is_the_lowest_that_makes_the_deadline(deadline_s: float, mhz: float) -> None:
    """Ten iterations of 10.1 to 10.3 ms at 1000 MHz; judged 7 s later with a deadline 7 s later, alike."""
    for now_s in (0.0, 7.0):
        runs = board(Row(kv=1, remaining=10, deadline_s=now_s + deadline_s))
        state, _ = step(None, observe(runs, now_s), NO_TBT)
        assert state.target_mhz == mhz


def test_clock_is_the_lowest_that_keeps_the_mean_time_between_tokens() -> None:
    state, effects = step(None, observe(board(ONE)), ThrottleConfig(tbt_s=0.0105))
    assert state.target_mhz == 1000.0
    failed = {it.label: it.failed for it in effects.rationale.alternatives if not it.feasible}
    assert failed == {"750 MHz": "mean time between tokens"}
    assert [it.label for it in effects.rationale.alternatives if it.chosen] == ["1000 MHz"]


def test_clock_is_the_top_when_a_lost_request_runs() -> None:
    state, effects = step(ThrottleState(750.0), observe(board(ONE, Row(lost=True))), NO_TBT)
    assert effects.commands == (SetSmClock("i1", 1500.0),)
    assert effects.rationale.reason is Reason.LOST
    assert state.target_mhz == 1500.0


def test_clock_is_the_top_when_none_makes_the_deadline() -> None:
    state, effects = step(None, observe(board(Row(kv=1, remaining=10, deadline_s=0.01))), NO_TBT)
    assert state.target_mhz == 1500.0
    assert effects.rationale.reason is Reason.AT_LIMIT
    assert not any(it.chosen for it in effects.rationale.alternatives)


def test_nothing_is_asked_when_the_clock_stays() -> None:
    _, effects = step(ThrottleState(500.0), observe(board(ONE)), NO_TBT)
    assert effects.commands == ()
    assert effects.rationale.inputs["to_mhz"] == 500.0


def test_clock_falls_to_the_lowest_when_nothing_runs() -> None:
    _, effects = step(ThrottleState(1500.0), observe(board()), NO_TBT)
    assert effects.commands == (SetSmClock("i1", 500.0),)


def test_configuration_is_refused_when_no_time_is_left_between_tokens() -> None:
    with pytest.raises(ValueError, match="between tokens"):
        ThrottleConfig(tbt_s=0.0)
