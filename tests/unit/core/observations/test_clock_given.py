"""What clock rules are given is the same in every world: the limits that they act at, and the lowest clock."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from core.engine.engine_model import GPUS
from core.observations.clock_given import (
    RecentRate,
    SeenShares,
    clock_limits,
    instance_load,
    least_mhz,
    pace_limits,
    taken_in,
)
from core.policy.presets import PRESETS, policy
from core.types import ClockObservation, Limits

SLO = Limits(2.0, 0.1, 60.0)
A100 = GPUS["A100-80GB"]


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("freesh", Limits(), Limits(1.6, 0.08, 48.0)),
        ("freesh", Limits(1.0, 0.09, 50.0), Limits(1.0, 0.08, 48.0)),  # the tighter of threshold and share
        ("freesh", Limits(None, 0.05, 10.0), Limits(1.6, 0.05, 10.0)),
        ("muserve", Limits(), SLO),
        ("dynamollm", Limits(0.4, 0.1), Limits(0.45 * 0.4, 0.9 * 0.1, 0.9 * 60.0)),  # shares of the class's own
        ("greenserve", Limits(), Limits(0.7 * 2.0, 0.95 * 0.1, 0.95 * 60.0)),
    ],
)
def test_clocks_act_at_shares_of_limits_or_at_thresholds(name: str, own: Limits, expected: Limits) -> None:
    assert astuple(clock_limits(SLO, own, PRESETS[name].knobs)) == pytest.approx(astuple(expected))


def test_thresholds_of_classes_are_as_loose_as_the_policy_takes_limits() -> None:
    knobs = policy("freesh", {"slo_factor": 10.0}).knobs
    assert clock_limits(SLO, Limits(1.0, 0.09, 50.0), knobs) == Limits(2.0, pytest.approx(0.16), 96.0)


def test_a_limit_that_nobody_has_set_is_none() -> None:
    assert clock_limits(Limits(), Limits(), PRESETS["freesh"].knobs) == Limits()
    assert clock_limits(Limits(), Limits(tpot_s=0.2), PRESETS["freesh"].knobs) == Limits(tpot_s=0.2)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"clock_floor": "gpu"}, A100.f_min),
        ({"clock_floor": "voltage"}, A100.f_v),
        ({"clock_floor_mhz": 800.0}, 800.0),
        ({"clock_floor": "voltage", "clock_floor_mhz": 800.0}, 800.0),
        ({"clock_floor_mhz": 1.0}, A100.f_min),
        ({"clock_floor_mhz": 9000.0}, A100.f_max),
    ],
)
def test_floor_is_what_the_knobs_say_within_the_range_of_the_gpu(own: dict[str, object], expected: float) -> None:
    knobs = policy("freesh", own).knobs
    found = least_mhz(A100.name, A100.f_min, A100.f_max, knobs.clock_floor, knobs.clock_floor_mhz)
    assert found == expected


SEEN = ClockObservation(10.0, "i1", 1200.0, 800.0, 1410.0, 3, 5, 1.5, 0.08, 9.0, Limits(1.4, 0.075))


def test_requests_that_the_next_iteration_takes_in_are_no_queue() -> None:
    assert taken_in(None, 512.0) == 0
    assert taken_in(1024, 512.0) == 2
    assert taken_in(1024, 0.0) == 1024
    shares = SeenShares(0.7, 0.75, True)
    assert [instance_load(SEEN, "own", 2.0, count, shares).waiting for count in (0, 2, 9)] == [5, 3, 0]


def test_latencies_seen_count_by_the_shares_of_their_limits() -> None:
    found = instance_load(SEEN, "own", None, 0, SeenShares(0.7, 0.75, True))
    assert (found.ttft_s, found.tpot_s) == pytest.approx((0.7 * 1.5, 0.75 * 0.08))
    assert (found.instance, found.load_rps, found.limits, found.min_mhz) == ("i1", None, SEEN.limits, 800.0)
    assert instance_load(SEEN, "own", None, 0, SeenShares(0.7, 0.75, False)).ttft_s is None
    unseen = replace(SEEN, ttft_s=None, tpot_s=None)
    found = instance_load(unseen, "own", None, 0, SeenShares(0.7, 0.75, True))
    assert (found.ttft_s, found.tpot_s) == (None, None)


def test_rate_is_of_five_seconds_or_of_the_memory_where_that_is_higher() -> None:
    rate = RecentRate()
    assert [rate.next_rps(came, 2.5, 60.0) for came in (5.0, 5.0, 0.0)] == pytest.approx([2.0, 2.0, 2.0 * 57.5 / 60.0])
    assert rate.next_rps(50.0, 2.5, 60.0) == 10.0  # a burst counts at once, over 5 s
    assert rate.next_rps(0.0, 4.95, 60.0) == pytest.approx(2.45, rel=0.01)  # it is over, though agents look early


def test_rate_of_a_lull_is_that_of_the_memory() -> None:
    rate = RecentRate()
    assert rate.next_rps(20.0, 5.0, 60.0) == 4.0
    assert rate.next_rps(0.0, 5.0, 60.0) == pytest.approx(4.0 * 55.0 / 60.0)
    assert rate.next_rps(0.0, 120.0, 60.0) == 0.0


@pytest.mark.parametrize(
    ("limits", "tpot_s"),
    [
        (Limits(1.0, 0.1), 0.08),
        (Limits(1.0, 0.1, 31.0), 0.8 * 30.0 / 800.0),
        (Limits(None, 0.1, 600.0), 0.08),
        (Limits(1.0), 0.8 * 0.2),
    ],
)
def test_a_limit_on_e2e_is_one_on_tpot_for_a_long_answer(limits: Limits, tpot_s: float) -> None:
    assert pace_limits(limits, 800.0, 0.7, 0.8).tpot_s == pytest.approx(tpot_s)
