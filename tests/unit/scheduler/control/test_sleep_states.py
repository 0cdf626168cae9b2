"""Who claims GPUs beside whom, by who sleeps."""

from __future__ import annotations

import pytest

from scheduler.control.sleep_states import SleepState

NEVER = SleepState()
BY_LEVEL = SleepState(asleep=True, kind="level")
AWAKE, ASLEEP = SleepState(kind="stop"), SleepState(asleep=True, kind="stop")
SHORT = SleepState(asleep=True, short=True, kind="stop")


@pytest.mark.parametrize(
    ("own", "beside", "claims"),
    [
        (NEVER, NEVER, True),
        (NEVER, ASLEEP, True),
        (BY_LEVEL, NEVER, False),
        (BY_LEVEL, AWAKE, False),
        (AWAKE, BY_LEVEL, False),
        (AWAKE, NEVER, True),
        (AWAKE, AWAKE, True),
        (AWAKE, ASLEEP, False),
        (ASLEEP, NEVER, False),
        (ASLEEP, AWAKE, False),
        (SHORT, NEVER, True),
        (SHORT, AWAKE, False),
    ],
)
def test_service_claims_gpus_beside_another(own: SleepState, beside: SleepState, claims: bool) -> None:
    assert own.claims_beside(beside) is claims
