"""Limits of classes, and of pools to which several come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.observations.limits import at_factor, class_limits, due_within_s, planned, present_limits
from core.policy.knobs import Knobs
from core.types import Limits

SLO = Limits(2.0, 0.15, 60.0)


@pytest.mark.parametrize(
    ("own", "by_class", "expected"),
    [
        (Limits(0.25, 0.1, 5.0), False, SLO),
        (Limits(0.25, 0.1, 5.0), True, Limits(0.25, 0.1, 60.0)),
        (Limits(4.0, 0.1), True, Limits(2.0, 0.1, 60.0)),
        (Limits(), True, SLO),
    ],
)
def test_class_keeps_the_stricter_of_both_where_its_own_count(own: Limits, by_class: bool, expected: Limits) -> None:
    assert class_limits(SLO, own, Knobs(class_limits=by_class)) == expected


def test_policy_takes_limits_that_many_times_as_loose():
    loose = Knobs(class_limits=True, slo_factor=10.0)
    assert class_limits(SLO, Limits(0.25, 0.1, 5.0), loose) == Limits(0.5, 0.2, 120.0)
    assert at_factor(Limits(tpot_s=0.1), 20.0) == Limits(tpot_s=0.4)


def test_plans_keep_shares_of_ttft_and_tpot_and_all_of_e2e():
    assert planned(Limits(2.0, 0.5, 60.0), 0.25, 0.5) == Limits(0.5, 0.25, 60.0)
    assert planned(Limits(), 0.25, 0.5) == Limits()


SMALL, MIDDLE, LARGE = ("S", Limits(0.25, 0.1)), ("M", Limits(0.4, 0.1)), ("L", Limits(2.0, 0.15))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, [0.25, 0.4, 2.0]),
        ({"S": 0.3}, [0.25, 0.25, 2.0]),
        ({"S": 0.3, "M": 0.5}, [0.25, 0.25, 0.25]),
        ({"S": 1.0, "M": 1.0}, [0.25, 0.4, 0.25]),
        ({"S": 0.3, "M": 0.02}, [0.25, 0.25, 0.4]),
    ],
)
def test_pool_keeps_the_strictest_of_the_classes_that_come_to_it(
    shares: dict[str, float], expected: list[float]
) -> None:
    found = present_limits([SMALL, MIDDLE, LARGE], shares)
    assert [found[name].ttft_s for name in ("S", "M", "L")] == expected
    assert [found[name].tpot_s for name in ("S", "M", "L")] == [0.1, 0.1, 0.1 if found["L"].ttft_s < 2.0 else 0.15]


@given(shares=st.lists(st.floats(0.0, 0.95), min_size=3, max_size=3), more=st.floats(0.0, 0.05))
def test_handing_on_more_loosens_no_limit_of_a_larger_pool(shares: list[float], more: float) -> None:
    classes = [SMALL, MIDDLE, LARGE]
    names = [name for name, _ in classes]
    before = present_limits(classes, dict(zip(names, [*shares[:2], 0.0], strict=True)))
    after = present_limits(classes, dict(zip(names, [shares[0] + more, shares[1], 0.0], strict=True)))
    assert (after["L"].ttft_s or 0.0) <= (before["L"].ttft_s or 0.0)


@pytest.mark.parametrize(
    ("limits", "tokens", "within_s"),
    [
        (Limits(), 100, None),
        (Limits(ttft_s=1.0), 100, None),
        (Limits(ttft_s=1.0, tpot_s=0.1), 100, 11.0),
        (Limits(tpot_s=0.1), 100, 10.0),
        (Limits(tpot_s=0.1), 0, 0.1),
        (Limits(1.0, 0.1, 5.0), 100, 5.0),
    ],
)
def test_request_is_due_by_its_limit_or_when_its_answer_keeps_the_others(limits, tokens, within_s):
    assert due_within_s(limits, tokens) == (None if within_s is None else pytest.approx(within_s))
