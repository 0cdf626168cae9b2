"""Deferred work: cheapest time before the deadlines, and never late where it can be in time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.queue.aimd import AimdConfig, next_window
from core.controllers.request.deferral import Backlog, DeferralConfig, DeferralObservation, grid_intensity, plan, step
from core.types import Reason, RunDeferred, SiteView

EXACT = DeferralConfig(caution=1.0, reserve_s=0.0)
NOW_S = 1_000.0


def site(*values: float | None, gpus: int = 4, pue: float = 1.0) -> SiteView:
    return SiteView("s", {"A100-80GB": gpus}, pue, values)


def observed(
    values: tuple[float | None, ...], *backlogs: tuple[int, float], rate: float | None = 1.0
) -> DeferralObservation:
    """Steps of 10 s; backlogs as (lines, seconds from now)."""
    rows = tuple(Backlog(f"b{n}", lines, NOW_S + in_s) for n, (lines, in_s) in enumerate(backlogs))
    return DeferralObservation(NOW_S, "llama", 10.0, (site(*values),), rows, rate)


def by_step(observation: DeferralObservation, rate: float = 1.0) -> list[float]:
    made = plan(observation, grid_intensity(observation.sites), rate)
    return [stretch.lines for stretch in made.stretches]


def test_cleanest_step_is_taken_when_there_is_time() -> None:
    assert by_step(observed((400, 300, 100, 200), (10, 40))) == [0, 0, 10, 0]
    assert by_step(observed((400, 300, 100, 200), (25, 40))) == [0, 5, 10, 10]


def test_earlier_of_equal_steps_is_taken() -> None:
    assert by_step(observed((300, 100, 100), (10, 30))) == [0, 10, 0]


def test_early_deadline_takes_its_room_first_when_a_cleaner_step_comes_later() -> None:
    assert by_step(observed((400, 300, 100), (10, 20), (10, 30))) == [0, 10, 10]


def test_unknown_step_is_used_only_when_the_known_do_not_suffice() -> None:
    assert by_step(observed((None, 900, 100), (15, 30))) == [0, 5, 10]
    assert by_step(observed((None, 900, None), (25, 30))) == [10, 10, 5]
    assert by_step(observed((900,), (15, 30))) == [10, 5], "what the forecast does not reach is unknown"


def test_everything_runs_at_once_when_nothing_is_known() -> None:
    _, effects = step(None, observed((None, None, None), (10, 30)), EXACT)
    assert effects.commands == (RunDeferred("llama", 10, NOW_S + 10),)
    assert effects.rationale.reason is Reason.NO_DATA


def test_waiting_says_how_long_and_for_what() -> None:
    made, effects = step(None, observed((400, 300, 100), (5, 30)), EXACT)
    assert not made.runs_now
    assert effects.commands == ()
    assert effects.next_tick_s == NOW_S + 10
    assert effects.rationale.summary == "5 lines of llama wait 20 s: then 100 g/kWh, now 400."
    assert effects.rationale.reason is Reason.OPTIMAL


def test_grams_of_plan_and_of_haste_are_weighed_when_energy_is_known() -> None:
    observation = replace(observed((400, 100), (10, 20)), energy_j_per_line=3.6e6)
    _, effects = step(None, observation, EXACT)
    planned, at_once = effects.rationale.alternatives
    assert (planned.chosen, planned.carbon_gco2e, at_once.carbon_gco2e) == (True, 1_000.0, 4_000.0)
    _, effects = step(None, observed((400, 100), (10, 20)), EXACT)
    assert [row.carbon_gco2e for row in effects.rationale.alternatives] == [None, None]


def test_few_lines_run_when_no_rate_is_known() -> None:
    _, effects = step(None, observed((400, 100), (100, 20), rate=None), DeferralConfig(probe_lines=8))
    assert effects.commands == (RunDeferred("llama", 8, NOW_S + 10),)
    assert effects.rationale.reason is Reason.NO_DATA


def test_runs_at_once_when_the_deadline_cannot_be_kept() -> None:
    made, effects = step(None, observed((400, 100), (50, 20)), EXACT)
    assert made.late_lines == pytest.approx(30)
    assert effects.commands
    assert effects.rationale.reason is Reason.INFEASIBLE


def test_nothing_is_done_when_nothing_is_left_or_all_deadlines_have_passed() -> None:
    for observation in (observed((400, 100)), observed((400, 100), (0, 20)), observed((400, 100), (5, -1))):
        assert step(None, observation, EXACT)[1].commands == ()


def test_intensity_is_weighted_by_gpus_and_pue_and_missing_where_a_site_lacks_it() -> None:
    two = (site(100, 100, None, gpus=2, pue=1.5), site(400, None, 400, gpus=1, pue=1.0))
    assert grid_intensity(two) == (175.0, None, None)
    assert grid_intensity((site(100, 200), site(None, None))) == (100.0, 200.0), "a feed that knows nothing is left out"
    assert grid_intensity((site(100, gpus=0), site(300, gpus=0))) == (200.0,), "it runs nowhere yet"
    assert grid_intensity(()) == ()


values = st.lists(st.one_of(st.none(), st.integers(0, 5).map(float)), min_size=1, max_size=4).map(tuple)
work = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)


@given(values, work)
@settings(deadline=None)
def test_plan_costs_no_more_than_any_other_by_brute_force(
    steps: tuple[float | None, ...], rows: list[tuple[int, int]]
) -> None:
    """Steps of 10 s with room for two lines each; an unknown gram costs more than all known ones together."""
    unknown = 1e6
    observation = observed(steps, *[(lines, due * 10.0) for lines, due in rows])
    made = plan(observation, grid_intensity(observation.sites), 0.2)
    horizon = max(due for _, due in rows)
    cost = [steps[i] if i < len(steps) and steps[i] is not None else unknown for i in range(horizon)]
    found = []
    for taken in itertools.product(range(3), repeat=horizon):
        sums = list(itertools.accumulate(taken))
        if all(sums[due - 1] >= sum(n for n, d in rows if d <= due) for _, due in rows):
            found.append(sum(c * n for c, n in zip(cost, taken, strict=True)))
    spent = sum(cost[math.floor((s.start_s - NOW_S) / 10.0 + 1e-6)] * s.lines for s in made.stretches if s.lines)
    if found:
        assert made.late_lines == 0
        assert spent == pytest.approx(min(found))
    else:
        assert made.late_lines > 0
        assert made.runs_now


@given(
    values,
    st.lists(st.tuples(st.integers(1, 30), st.floats(1.0, 60.0)), min_size=1, max_size=3),
    st.sampled_from([EXACT, DeferralConfig(1.0, 15.0), DeferralConfig(3.0, 0.0), DeferralConfig(2.0, 20.0)]),
)
@settings(deadline=None)
def test_deadlines_are_kept_whenever_they_can_be(
    steps: tuple[float | None, ...], rows: list[tuple[int, float]], config: DeferralConfig
) -> None:
    """Followed for its whole life, at the rate that it was given, earliest deadline first."""
    rate = 1.0
    due = sorted((NOW_S + in_s, float(lines)) for lines, in_s in rows)
    possible = all(
        sum(lines for deadline_s, lines in due if deadline_s <= last_s) <= (last_s - NOW_S) * rate for last_s, _ in due
    )
    left, now_s, late = [lines for _, lines in due], NOW_S, 0.0
    for _ in range(500):
        ahead = steps[int((now_s - NOW_S) // 10.0) :] if now_s < NOW_S + 10.0 * len(steps) else ()
        backlogs = tuple(
            Backlog(str(i), math.ceil(n - 1e-6), d) for i, ((d, _), n) in enumerate(zip(due, left, strict=True))
        )
        offset_s = (now_s - NOW_S) % 10.0
        view = DeferralObservation(now_s - offset_s, "llama", 10.0, (site(*ahead),), backlogs, rate)
        view = replace(view, now_s=now_s, step_s=10.0)
        _, effects = step(None, view, config)
        if effects.next_tick_s is None:
            break
        end_s = min(effects.next_tick_s, now_s + 2.5)
        if effects.commands:
            room = (end_s - now_s) * rate
            for i, n in enumerate(left):
                took = min(room, n)
                left[i] -= took
                room -= took
        now_s = end_s
        for i, (deadline_s, _) in enumerate(due):
            if deadline_s <= now_s + 1e-9:
                late += left[i] if left[i] > 1e-6 else 0.0
                left[i] = 0.0
    assert sum(left) <= 1e-6
    if possible:
        # Lines are whole to the planner and a fluid here: a rounding up can only bring work forward.
        assert late <= 1e-6


def test_window_halves_when_somebody_waits_and_grows_only_when_full() -> None:
    config = AimdConfig(least=1, most=10, increase=2, decrease=0.5)
    assert next_window(8, True, True, config) == 4
    assert next_window(1, True, True, config) == 1
    assert next_window(8, False, True, config) == 10
    assert next_window(9.5, False, True, config) == 10
    assert next_window(4, False, False, config) == 4
    assert next_window(4, None, True, config) == 4
