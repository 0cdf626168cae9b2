"""The actuator's leases, without a socket, a driver or a clock on the wall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from core.ports import LONGEST_LEASE_S, PermanentError, RetryableError
from pools.actuator.leases import AGAIN_S, Journal, Leases

AGENT, OTHER = (1, 100), (2, 200)  # connection and process


class FakeClocks:
    def __init__(self) -> None:
        self.locked: dict[str, float] = {}
        self.sets = 0
        self.broken = False

    def offered(self, gpu: str) -> Sequence[float]:
        if not gpu.startswith("GPU-"):
            raise PermanentError(f"no {gpu}")
        return [210.0, 705.0, 1410.0]

    def set(self, gpu: str, mhz: float) -> None:
        self.sets += 1
        self.locked[gpu] = mhz
        if self.broken:
            raise RetryableError("the driver fails after it has set the clock")

    def reset(self, gpu: str) -> None:
        if self.broken:
            raise RetryableError("the driver is busy")
        self.locked.pop(gpu, None)


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def leases(clocks: FakeClocks, tmp_path: Path) -> Leases:
    return Leases(clocks, Journal(tmp_path / "state.json"))


def test_nearest_clock_at_or_above_is_set_once_when_the_lease_is_renewed(leases: Leases, clocks: FakeClocks) -> None:
    for now_s in (0.0, 1.0, 2.0):
        assert leases.lock(*AGENT, ["GPU-a"], 600.0, 5.0, now_s) == 5.0
    assert clocks.locked == {"GPU-a": 705.0}
    assert clocks.sets == 1
    assert leases.wait_s(2.0) == 5.0


def test_held_clock_is_set_again_when_somebody_else_may_have_reset_it(leases: Leases, clocks: FakeClocks) -> None:
    for second in range(32):
        leases.lock(*AGENT, ["GPU-a"], 705.0, 5.0, float(second))
    assert clocks.sets == 2


def test_clock_returns_when_the_lease_ends_however_long_it_was_asked_for(leases: Leases, clocks: FakeClocks) -> None:
    assert leases.lock(*AGENT, ["GPU-a"], 705.0, 3600.0, 0.0) == LONGEST_LEASE_S < 10.0
    leases.lapse(LONGEST_LEASE_S - 0.1)
    assert clocks.locked
    assert leases.lapse(LONGEST_LEASE_S)
    assert not clocks.locked
    assert leases.wait_s(LONGEST_LEASE_S) is None


def test_only_the_own_clocks_return_when_a_connection_goes(leases: Leases, clocks: FakeClocks) -> None:
    leases.lock(*AGENT, ["GPU-a"], 705.0, 5.0, 0.0)
    leases.lock(*OTHER, ["GPU-b"], 705.0, 5.0, 0.0)
    leases.leave(AGENT[0], 1.0)
    assert clocks.locked == {"GPU-b": 705.0}


def test_held_clock_is_refused_to_others_but_not_to_the_same_process(leases: Leases, clocks: FakeClocks) -> None:
    leases.lock(*AGENT, ["GPU-a"], 705.0, 5.0, 0.0)
    with pytest.raises(RetryableError, match="locked by process 100"):
        leases.lock(*OTHER, ["GPU-a"], 210.0, 5.0, 1.0)
    with pytest.raises(RetryableError, match="locked by process 100"):
        leases.reset(*OTHER, ["GPU-a"], 1.0)
    leases.lock(3, AGENT[1], ["GPU-a"], 210.0, 5.0, 1.0)  # the same process, connected again
    leases.leave(AGENT[0], 2.0)
    assert clocks.locked == {"GPU-a": 210.0}


def test_clock_is_given_back_again_and_again_when_the_driver_fails(leases: Leases, clocks: FakeClocks) -> None:
    leases.lock(*AGENT, ["GPU-a"], 705.0, 1.0, 0.0)
    clocks.broken = True
    assert not leases.lapse(1.0)
    assert leases.wait_s(1.0) == AGAIN_S
    assert leases.held(1.5)[0].left_s < 0.0
    clocks.broken = False
    assert leases.lapse(1.0 + AGAIN_S)
    assert not clocks.locked


def test_clock_is_given_back_when_setting_it_failed_halfway(leases: Leases, clocks: FakeClocks) -> None:
    clocks.broken = True
    with pytest.raises(RetryableError):
        leases.lock(*AGENT, ["GPU-a"], 705.0, 1.0, 0.0)
    clocks.broken = False
    leases.lapse(1.0)
    assert not clocks.locked


@pytest.mark.parametrize("left", ["held", "damaged"])
def test_clocks_are_given_back_when_the_actuator_before_was_killed(
    clocks: FakeClocks, tmp_path: Path, left: str
) -> None:
    journal = Journal(tmp_path / "state.json")
    Leases(clocks, journal).lock(*AGENT, ["GPU-a"], 705.0, 5.0, 0.0)
    if left == "damaged":
        (tmp_path / "state.json").write_text("{")
    Leases(clocks, journal).recover(lambda: ["GPU-a", "GPU-b"], 100.0)
    assert not clocks.locked
    assert journal.read() == ()


def test_nothing_is_locked_when_the_state_file_cannot_be_written(clocks: FakeClocks, tmp_path: Path) -> None:
    leases = Leases(clocks, Journal(tmp_path / "missing" / "state.json"))
    with pytest.raises(RetryableError, match="state file"):
        leases.lock(*AGENT, ["GPU-a"], 705.0, 5.0, 0.0)
    assert not clocks.sets


@pytest.mark.parametrize(
    ("gpus", "mhz", "lease_s"),
    [
        (["GPU-a"], 209.0, 5.0),
        (["GPU-a"], float("nan"), 5.0),
        (["GPU-a"], 705.0, 0.0),
        (["GPU-a"], 705.0, float("inf")),
        (["no-such"], 705.0, 5.0),
        ([], 705.0, 5.0),
        (["GPU-a"] * 65, 705.0, 5.0),
    ],
)
def test_request_is_refused_for_good_when_it_makes_no_sense(
    leases: Leases, clocks: FakeClocks, gpus: list[str], mhz: float, lease_s: float
) -> None:
    with pytest.raises(PermanentError):
        leases.lock(*AGENT, gpus, mhz, lease_s, 0.0)
    assert not clocks.sets
