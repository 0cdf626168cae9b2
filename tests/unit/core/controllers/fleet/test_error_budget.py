"""The error budget: what spends it, when there is more head-room, and how it is given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.fleet.error_budget import WINDOWS_S, ErrorBudget, ErrorBudgetConfig

CONFIG = ErrorBudgetConfig()


def after(budget: ErrorBudget, *looks: tuple[int, int], from_s: float = 0.0, every_s: float = 10.0) -> ErrorBudget:
    """Returns it after looks in which so many requests ended, and so many of them late."""
    for k, (ended, late) in enumerate(looks):
        budget = budget.renewed(from_s + k * every_s, ended, late, CONFIG)
    return budget


def test_nothing_is_spent_and_there_is_no_headroom_when_nothing_is_late() -> None:
    found = after(ErrorBudget(), *[(50, 0)] * 100)
    assert (found.burns(CONFIG), found.share_left(5.0, CONFIG), found.headroom) == ((0.0, 0.0, 0.0), 0.01, 1.0)


def test_burn_rate_is_how_many_times_as_many_are_late_as_may_be() -> None:
    assert after(ErrorBudget(), (200, 6)).burns(CONFIG) == pytest.approx((3.0, 3.0, 3.0))


def test_each_window_forgets_at_its_own_pace() -> None:
    found = after(ErrorBudget(), (100, 50), (0, 0), (100, 0), every_s=WINDOWS_S[0])
    minutes, hour, days = found.burns(CONFIG)
    assert minutes < hour < days == pytest.approx(25.0, rel=0.01)


def test_what_comes_in_half_an_hour_makes_the_budget_whole_again() -> None:
    found = after(ErrorBudget(), (1000, 20))
    share = found.share_left(1.0, CONFIG)
    assert (20 + share * 1800.0) / (1000 + 1800.0) == pytest.approx(CONFIG.late_share)
    assert found.share_left(0.1, CONFIG) == 0.0, "not even without any that are late"
    assert found.share_left(0.0, CONFIG) == CONFIG.late_share, "nothing comes"


def test_three_days_are_to_be_whole_as_well_as_the_hour() -> None:
    spent = after(ErrorBudget(), (10_000, 400), *[(100, 0)] * 12, every_s=3600.0)
    _, hour, days = spent.burns(CONFIG)
    assert hour < 0.01 < 1.0 < days
    assert spent.share_left(0.03, CONFIG) == 0.0


def test_fleet_learns_from_what_was_late_before_it_has_headroom() -> None:
    once = after(ErrorBudget(), (100, 50), *[(30, 0)] * 100)
    assert once.headroom == 1.0
    soon = after(ErrorBudget(), *[(100, 5)] * 6)
    assert soon.headroom == 1.0
    again = after(ErrorBudget(), (100, 50), *[(30, 0)] * 10, (30, 1))
    assert again.headroom == 1.0, "one is chance"
    assert again.renewed(120.0, 30, 1, CONFIG).headroom == pytest.approx(1.1)


def test_headroom_waits_for_what_was_added_to_help() -> None:
    looks = [(100, 5)] * 13  # from 0 to 120 s
    assert after(ErrorBudget(), *looks[:7]).headroom == pytest.approx(1.1)
    assert after(ErrorBudget(), *looks[:12]).headroom == pytest.approx(1.1)
    assert after(ErrorBudget(), *looks).headroom == pytest.approx(1.1**2)


def test_headroom_has_a_limit() -> None:
    assert after(ErrorBudget(), *[(100, 50)] * 1000).headroom == CONFIG.most


def test_headroom_is_given_back_once_the_budget_is_whole_again_and_slowly() -> None:
    burnt = after(ErrorBudget(), *[(100, 5)] * 7)
    held = after(burnt, *[(10, 0)] * 100, from_s=70.0)
    assert held.burns(CONFIG)[1] > 1.0
    assert held.headroom == pytest.approx(1.1), "35 of 1,700 are more than 1 %"
    back = after(held, (4000, 0), (0, 0), from_s=1070.0, every_s=CONFIG.back_s / 2.0)
    assert back.headroom == pytest.approx(1.1**0.5, rel=0.01)
    assert after(back, *[(100, 0)] * 100, from_s=2000.0).headroom == 1.0


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0.0, 1.0)), max_size=50), st.floats(0.0, 100.0))
def test_what_is_left_and_the_headroom_stay_within_their_bounds(looks: list[tuple[int, float]], rps: float) -> None:
    found = after(ErrorBudget(), *((ended, round(ended * share)) for ended, share in looks))
    assert 0.0 <= found.share_left(rps, CONFIG) <= CONFIG.late_share
    assert 1.0 <= found.headroom <= CONFIG.most


@pytest.mark.parametrize(
    "wrong",
    [{"late_share": 0.0}, {"whole_in_s": 0.0}, {"step": -0.1}, {"most": 0.9}, {"helps_in_s": 0.0}, {"back_s": 0.0}],
)
def test_configuration_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"from|above"):
        ErrorBudgetConfig(**wrong)
