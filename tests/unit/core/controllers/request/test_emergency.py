"""The emergency ladder: each rung only when the one below is not enough, and down again when all is calm."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.queue.deadlines import fewest_late, late_in_order
from core.controllers.request.emergency import (
    EmergencyConfig,
    EmergencyObservation,
    EmergencyState,
    Mate,
    Rung,
    Waiting,
    step,
)
from core.types import Reason, ReorderQueue, ResteerRequests, SetSmClock, SquashRequests
from tests.unit.laws import examples

CONFIG = EmergencyConfig()


def request(
    name: str, deadline_s: float, service_s: float = 1.0, top_s: float = 0.5, arrival_s: float = 0.0
) -> Waiting:
    return Waiting(name, arrival_s, deadline_s, service_s, top_s)


def observe(*queue: Waiting, now_s: float = 0.0, mhz: float = 1000.0, mates: tuple[Mate, ...] = ()):
    return EmergencyObservation(now_s, "i1", queue, now_s, mhz, 1980.0, mates)


def test_nothing_happens_when_all_are_in_time():
    state, effects = step(None, observe(request("a", 1.0), request("b", 2.0)), CONFIG)
    assert (state.rung, effects.commands, effects.rationale.reason) == (Rung.CALM, (), Reason.NO_CHANGE)
    assert effects.next_tick_s == 1.0


def test_queue_is_reordered_when_that_is_enough():
    state, effects = step(None, observe(request("late", 9.0), request("soon", 1.5), request("mid", 3.0)), CONFIG)
    assert effects.commands == (ReorderQueue("i1", ("soon", "mid", "late")),)
    assert (state.rung, effects.rationale.reason) == (Rung.REORDER, Reason.REORDERED)
    assert not state.ramped
    json.dumps(effects.rationale.inputs, allow_nan=False)


def test_those_that_can_be_saved_go_before_those_that_cannot():
    _, effects = step(None, observe(request("lost", 0.2), request("a", 0.5), request("b", 1.0)), CONFIG)
    assert ReorderQueue("i1", ("a", "b", "lost")) in effects.commands


def test_clock_goes_to_the_top_when_reordering_is_not_enough():
    state, effects = step(None, observe(request("a", 1.0), request("b", 1.0)), CONFIG)
    assert SetSmClock("i1", 1980.0) in effects.commands
    assert (state.rung, effects.rationale.reason) == (Rung.RAMP, Reason.RAMPED)
    assert state.ramped


def full(now_s: float, **more) -> EmergencyObservation:
    """Three that want 0.5 s each and have 0.6 s, at the top clock."""
    queue = [request(name, now_s + 0.6, 0.5, 0.5, arrival_s=now_s - 12.0) for name in "abc"]
    return observe(*queue, now_s=now_s, mhz=1980.0, **more)


MATES = (Mate("i2", 0.0), Mate("i3", 1e6))


def test_requests_go_elsewhere_only_when_the_backlog_persists():
    state, _ = step(None, full(0.0, mates=MATES), CONFIG)
    state, effects = step(state, full(1.0, mates=MATES), CONFIG)
    assert state.rung is Rung.RAMP
    assert not any(isinstance(c, ResteerRequests) for c in effects.commands)
    state, effects = step(state, full(2.0, mates=MATES), CONFIG)
    (moves,) = [c for c in effects.commands if isinstance(c, ResteerRequests)]
    assert moves.moves == (("b", "i2"),)  # one more would be late there
    assert (state.rung, effects.rationale.reason) == (Rung.RESTEER, Reason.RESTEERED)


def test_requests_go_elsewhere_at_once_when_it_gets_worse():
    state, _ = step(None, full(0.0, mates=MATES), CONFIG)
    worse = full(0.5, mates=MATES)
    worse = observe(*worse.queue, request("d", 1.1, 0.5, 0.5), now_s=0.5, mhz=1980.0, mates=MATES)
    state, effects = step(state, worse, CONFIG)
    assert any(isinstance(c, ResteerRequests) for c in effects.commands)


def climb(config: EmergencyConfig = CONFIG) -> list:
    """Nobody can help: what happens each second."""
    state, seen = None, []
    for second in range(7):
        state, effects = step(state, full(float(second)), config)
        seen.append((state.rung, effects))
    return seen


def test_requests_are_given_back_only_at_the_end():
    seen = climb()
    rungs = [rung for rung, _ in seen]
    assert rungs == sorted(rungs)
    assert rungs[-1] is Rung.SQUASH
    first = rungs.index(Rung.SQUASH)
    assert first >= 4  # patience on the second and on the third rung
    (squash,) = [c for c in seen[first][1].commands if isinstance(c, SquashRequests)]
    assert set(squash.requests) < {"a", "b", "c"}
    assert squash.retry_after_s > 0.0
    assert seen[first][1].rationale.reason is Reason.SQUASHED


def test_requests_are_not_given_back_when_they_have_not_waited_long():
    assert all(
        not isinstance(c, SquashRequests)
        for _, effects in climb(EmergencyConfig(squash_after_s=60.0))
        for c in effects.commands
    )


def test_ladder_is_left_when_all_is_calm_for_long_enough():
    state = EmergencyState(Rung.RESTEER, 0.0, 3)
    state, _ = step(state, observe(now_s=10.0), CONFIG)
    assert state.ramped
    state, _ = step(state, observe(now_s=14.0), CONFIG)
    assert state.ramped
    back, _ = step(state, observe(request("a", 14.1), request("b", 14.1), now_s=14.0), CONFIG)
    assert back.calm_since_s is None
    state, effects = step(state, observe(now_s=15.0), CONFIG)
    assert (state.rung, effects.commands) == (Rung.CALM, ())


def test_no_request_is_lost_or_doubled_whatever_happens():
    for _, effects in climb():
        for command in effects.commands:
            names = command.requests if isinstance(command, (ReorderQueue, SquashRequests)) else ()
            assert len(set(names)) == len(names)


queues = st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.1, 3.0)), max_size=7)


@settings(max_examples=examples(40), deadline=None)
@given(queues, st.floats(0.0, 3.0))
def test_no_order_leaves_fewer_late(queue, start_s):
    deadlines, service = [d for d, _ in queue], [s for _, s in queue]
    in_time, late = fewest_late(deadlines, service, start_s)
    assert sorted(in_time + late) == list(range(len(queue)))
    assert in_time == sorted(in_time, key=lambda i: (deadlines[i], i))
    kept = late_in_order([deadlines[i] for i in in_time], [service[i] for i in in_time], start_s)
    assert kept == []
    tried = min(
        len(late_in_order([deadlines[i] for i in order], [service[i] for i in order], start_s))
        for order in itertools.permutations(range(min(len(queue), 6)))
    )
    if len(queue) <= 6:
        assert len(late) == tried


@settings(max_examples=examples(30), deadline=None)
@given(queues, st.integers(0, 4), st.floats(0.0, 20.0), st.floats(0.0, 5.0))
def test_every_request_is_somewhere_when_stepped(queue, rung, now_s, mate_free):
    waiting = [request(f"r{i}", now_s - 5.0 + d, s, s / 2, now_s - 11.0) for i, (d, s) in enumerate(queue)]
    mates = (Mate("i2", now_s + mate_free), Mate("i3", now_s))
    state = EmergencyState(Rung(rung), now_s - 3.0, 0)
    after, effects = step(state, observe(*waiting, now_s=now_s, mates=mates), CONFIG)
    moved = {r for c in effects.commands if isinstance(c, ResteerRequests) for r, _ in c.moves}
    gone = {r for c in effects.commands if isinstance(c, SquashRequests) for r in c.requests}
    assert not moved & gone
    for command in effects.commands:
        if isinstance(command, ReorderQueue):
            assert set(command.requests) == {w.request for w in waiting} - moved - gone
    assert after.rung >= state.rung or after.rung is Rung.CALM
    assert after.rung <= state.rung + 2  # reordering and the ramp may come together, nothing else is skipped


@pytest.mark.parametrize("wrong", [{"period_s": 0.0}, {"patience_s": 0.0}, {"most_moves": 0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="longer than nothing"):
        EmergencyConfig(**wrong)


@pytest.mark.parametrize(
    ("highest", "kinds"),
    [
        (Rung.REORDER, {ReorderQueue}),
        (Rung.RAMP, {ReorderQueue, SetSmClock}),
        (Rung.RESTEER, {ReorderQueue, SetSmClock, ResteerRequests}),
        (Rung.SQUASH, {ReorderQueue, SetSmClock, ResteerRequests, SquashRequests}),
    ],
)
def test_no_rung_above_the_highest_is_climbed(highest, kinds):
    config, state, seen = EmergencyConfig(highest=highest), None, set()
    for now_s in range(20):
        queue = (request("lost", 0.2), request("b", now_s + 3.0, 2.0, 2.0), request("a", now_s + 2.5, 2.0, 2.0))
        obs = observe(*queue, now_s=float(now_s), mates=(Mate("i2", 0.0),))
        state, effects = step(state, obs, config)
        seen |= {type(command) for command in effects.commands}
        assert state.rung <= highest
    assert seen == kinds


def test_ladder_without_a_rung_is_refused():
    with pytest.raises(ValueError, match="at least one rung"):
        EmergencyConfig(highest=Rung.CALM)
