"""Who sleeps and who wakes: the break-even of idling, wishes, and room that idle ones make."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.fleet import sleep
from core.controllers.fleet.sleep import SleepConfig, Sleeper, SleepObservation
from core.types import Effects, PutToSleep, Reason, WakeUp

PLACE = ("here", "A100-80GB")


def service(name: str = "a", awake: bool = True, **fields: Any) -> Sleeper:
    """One GPU; idling costs what waking does after 50 s."""
    usual = {"open": 0, "quiet_s": 0.0, "waited_s": 0.0, "wake_s": 20.0, "wake_j": 1500.0, "saved_w": 30.0}
    return Sleeper(name, awake, **{**usual, "gpus": {PLACE: 1}, **fields})


def decided(*services: Sleeper, free: int = 0) -> Effects:
    return sleep.step(None, SleepObservation(0.0, services, {PLACE: free}), SleepConfig())[1]


@pytest.mark.parametrize(("quiet_s", "sleeps"), [(49.9, False), (50.0, True)])
def test_service_sleeps_once_idling_has_cost_what_waking_does(quiet_s: float, sleeps: bool) -> None:
    effects = decided(service(quiet_s=quiet_s))
    assert effects.commands == ((PutToSleep("a"),) if sleeps else ())
    assert effects.rationale.reason is (Reason.SLACK if sleeps else Reason.NO_CHANGE)


def test_policy_says_how_long_where_it_does() -> None:
    assert decided(service(quiet_s=5.0, idle_s=5.0)).commands == (PutToSleep("a"),)
    assert decided(service(quiet_s=100.0, idle_s=101.0)).commands == ()


def test_service_never_sleeps_when_that_saves_nothing() -> None:
    assert decided(service(quiet_s=1e9, saved_w=0.0)).commands == ()


@pytest.mark.parametrize("open_requests", [1, None], ids=["requests", "not known"])
def test_service_stays_awake_when_it_has_requests_or_nobody_knows(open_requests: int | None) -> None:
    assert decided(service(open=open_requests, quiet_s=1e6)).commands == ()


def test_service_wakes_when_requests_wait_and_its_gpus_are_free() -> None:
    effects = decided(service(awake=False, open=2), free=1)
    assert effects.commands == (WakeUp("a"),)
    own = sleep.of_service(effects, "a")
    assert (own.commands, own.rationale.reason) == (effects.commands, Reason.CONGESTED)
    assert own.rationale.summary == "a wakes, which takes 20.0 s: 2 requests wait."


def test_decision_says_whether_the_time_to_wake_was_measured() -> None:
    own = sleep.of_service(decided(service(awake=False, open=2, measured=True), free=1), "a")
    assert own.rationale.summary == "a wakes, which takes 20.0 s as measured: 2 requests wait."
    assert own.rationale.inputs["wake_source"] == "measured"


def test_idle_service_makes_room_though_its_time_has_not_come() -> None:
    effects = decided(service("a", awake=False, open=1), service("b", quiet_s=3.0))
    assert effects.commands == (PutToSleep("b"), WakeUp("a"))


def test_cheapest_that_nobody_has_asked_for_makes_room() -> None:
    others = [
        service("dear", quiet_s=40.0, wake_s=60.0),
        service("fresh", quiet_s=1.0),
        service("stale", quiet_s=40.0),
        service("elsewhere", quiet_s=49.0, gpus={("there", "A100-80GB"): 1}),
    ]
    assert decided(service(awake=False, open=1), *others).commands == (PutToSleep("stale"), WakeUp("a"))


def test_nobody_sleeps_in_vain_when_idle_ones_do_not_suffice() -> None:
    effects = decided(
        service(awake=False, open=1, gpus={PLACE: 2}), service("idle", quiet_s=3.0), service("busy", open=1)
    )
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.AT_LIMIT


def test_longest_waiting_wakes_first_when_gpus_are_short() -> None:
    late = service("late", awake=False, open=1, waited_s=1.0)
    early = service("z", awake=False, open=1, waited_s=2.0)
    assert decided(late, early, free=1).commands == (WakeUp("z"),)


sleepers = st.builds(
    service,
    st.sampled_from("abcdefgh"),
    st.booleans(),
    open=st.integers(0, 2),
    quiet_s=st.floats(0.0, 100.0),
    gpus=st.builds(lambda n: {PLACE: n}, st.integers(1, 4)),
)


@given(st.lists(sleepers, unique_by=lambda own: own.name), st.integers(0, 4))
def test_gpus_are_never_had_twice_and_no_request_loses_its_engine(services: list[Sleeper], free: int) -> None:
    left, by_name = free, {own.name: own for own in services}
    for command in decided(*services, free=free).commands:
        assert isinstance(command, (PutToSleep, WakeUp))
        own = by_name[command.service]
        if isinstance(command, PutToSleep):
            assert own.idle
        left += own.gpus[PLACE] * (1 if isinstance(command, PutToSleep) else -1)
        assert left >= 0
