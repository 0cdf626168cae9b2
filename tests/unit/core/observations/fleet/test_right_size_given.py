"""What GreenServe's scale loop is given, from plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from core.algorithms.fleet.arrival_replay import Arrivals
from core.controllers.fleet.error_budget import ErrorBudget
from core.engine.engine_model import gpu
from core.observations.clock_given import ProfileClocks
from core.observations.fleet.right_size_given import (
    BUDGET,
    ClassLengths,
    Ended,
    PoolLoad,
    PoolNow,
    caps_w,
    least_instances,
    observation,
    offers,
    spent,
)
from core.observations.mode_profile import Lengths
from core.types import Limits, Mode, PoolKey

H100 = "H100-SXM-80GB"
TP8, TP4 = Mode(H100, 8), Mode(H100, 4)
MHZ = ProfileClocks(60.0, "voltage", None)
SHORT = ClassLengths(Limits(0.25, 0.1), Lengths(40.0, 200.0))
LONG = ClassLengths(Limits(2.0, 0.15), Lengths(300.0, 200.0))


def load(*classes: ClassLengths, chunk_tokens: int = 512) -> PoolLoad:
    return PoolLoad("Llama2-70B", "vllm-v1", Lengths(170.0, 200.0), classes or (SHORT,), chunk_tokens, MHZ)


@pytest.mark.parametrize(
    ("classes", "chunk_tokens", "expected"),
    [
        ((SHORT,), 512, (0.25, 1024)),
        ((SHORT,), 0, (0.25, 2048)),
        ((SHORT, LONG), 512, (0.25, 384)),  # 340 tokens
        ((SHORT, LONG), 128, (0.25, 192)),  # 40 and 128
        ((replace(SHORT, limits=Limits()),), 512, (None, 1024)),
    ],
)
def test_worst_iteration_has_a_prompt_of_ones_own_and_one_of_the_longest(
    classes: tuple[ClassLengths, ...], chunk_tokens: int, expected: tuple[float | None, int]
) -> None:
    assert load(*classes, chunk_tokens=chunk_tokens).worst_case == expected


def test_first_token_comes_later_where_engines_take_whole_prompts() -> None:
    whole, chunked = load(chunk_tokens=0).profile(TP8), load().profile(TP8)
    assert whole is not None
    assert chunked is not None
    assert whole.ttft_s[0, -1] > 1.5 * chunked.ttft_s[0, -1]
    assert np.array_equal(whole.tpot_s, chunked.tpot_s)


def test_profiled_clocks_lie_above_the_voltage_floor() -> None:
    profile = load().profile(TP8)
    assert profile is not None
    assert profile.mhz[0] == gpu(H100).f_v
    assert set(np.diff(profile.mhz)[:-1]) == {60.0}


def test_unknown_engine_has_no_offer() -> None:
    unknown = replace(load(), model="nobody's")
    assert offers(unknown, {("east", TP8): 1}, {"east": 1.0}) == ()


@pytest.mark.parametrize(
    ("e2e_s", "expected", "without_s"),
    [
        (None, Limits(0.175, 0.045), None),
        (99.0, Limits(0.175, 0.045), None),  # the TPOT limit keeps it
        (12.0, Limits(0.175, (12.0 - 0.25) / 800.0), None),  # for four times the mean answer
        (4.0, Limits(0.175, (4.0 - 0.25) / 200.0), None),  # for the mean one
        (0.5, Limits(0.175, 0.045), 0.5),
    ],
)
def test_plans_keep_shares_of_the_limits_and_e2e_where_a_mode_can(
    e2e_s: float | None, expected: Limits, without_s: float | None
) -> None:
    own = load(replace(SHORT, limits=Limits(0.25, 0.1, e2e_s)))
    kinds = offers(own, {("east", TP8): 1}, {"east": 1.0})
    found = own.planned(kinds, 0.7, 0.45)
    assert (found.ttft_s, found.tpot_s) == pytest.approx((expected.ttft_s, expected.tpot_s))
    assert own.without_e2e_s(found) == without_s
    now = PoolNow({("east", TP8): 1}, {}, {}, 0)
    assert observation(7.0, PoolKey("east", "chat"), [1.0], kinds, found, now, own).without_e2e_s == without_s


def test_plans_without_e2e_name_the_strictest_class() -> None:
    strict, stricter = (replace(SHORT, limits=Limits(0.25, 0.1, e2e_s)) for e2e_s in (0.6, 0.5))
    own = load(strict, stricter, LONG)
    kinds = offers(own, {("east", TP8): 1}, {"east": 1.0})
    assert own.without_e2e_s(own.planned(kinds, 0.7, 0.45)) == 0.5


@dataclass(frozen=True)
class Place:
    name: str
    pue: float
    power_cap_w: float | None


def test_capped_sites_have_what_others_leave() -> None:
    sites = [Place("east", 1.25, 5000.0), Place("west", 1.0, None), Place("north", 1.0, 100.0)]
    assert caps_w(sites, {"east": 1000.0, "west": 9e9, "north": 200.0}) == {"east": 3000.0, "north": 0.0}


def test_observation_offers_what_there_is_room_for_now() -> None:
    kinds = offers(load(), {("east", TP4): 4, ("east", TP8): 2}, {"east": 1.0})
    now = PoolNow({("east", TP4): 1, ("east", TP8): 0}, {"east": 900.0}, {("east", TP4): 3}, 2)
    found = observation(7.0, PoolKey("east", "chat"), [1.0, 2.0], kinds, Limits(0.1), now)
    assert [(offer.kind, offer.room) for offer in found.offers] == [(("east", TP4), 1)]
    assert (found.rates_rps, found.caps_w, found.standing, found.waiting) == (
        (1.0, 2.0),
        {"east": 900.0},
        {("east", TP4): 3},
        2,
    )


def test_prompts_that_have_no_time_to_wait_spend_nothing() -> None:
    kinds = offers(load(), {("east", TP4): 1, ("east", TP8): 1}, {"east": 1.0})
    prompts, limits = np.array([100.0, 100.0, 30_000.0, 30_000.0]), np.array([0.25, 0.25, 0.25, np.inf])
    ended = Ended(prompts, limits, np.array([True, False, True, True]))
    found = spent(ErrorBudget(), 10.0, load(), kinds, ended)
    assert (found.ended[0], found.late[0]) == (3.0, 2.0)
    unknown = spent(ErrorBudget(), 10.0, replace(load(), model="nobody's"), kinds, ended)
    assert (unknown.ended[0], unknown.late[0]) == (4.0, 3.0)


def test_no_time_is_left_where_clocks_take_it_all() -> None:
    kinds = offers(load(), {("east", TP8): 1}, {"east": 1.0})
    close = Ended(np.array([2048.0]), np.array([0.12]), np.array([True]))
    paced = replace(load(), ttft_pace=0.5)
    assert spent(ErrorBudget(), 10.0, load(), kinds, close).late[0] == 1.0
    assert spent(ErrorBudget(), 10.0, paced, kinds, close).late[0] == 0.0


def test_more_instances_are_needed_as_the_budget_is_spent() -> None:
    rng = np.random.default_rng(1)
    at_s = np.sort(np.concatenate([rng.uniform(0.0, 3600.0, 2000), np.repeat([900.0, 2700.0], 6)]))
    came = Arrivals(at_s, np.full(at_s.size, 1500.0), np.full(at_s.size, 0.6))
    kinds = offers(load(), {("east", TP8): 12}, {"east": 1.0})
    some, many = (ErrorBudget().renewed(3600.0, 1000, late, BUDGET) for late in (5, 60))
    counts = [
        least_instances(3600.0, load(), kinds, came, 0.5, budget)["east", TP8]
        for budget in (ErrorBudget(), some, many, replace(many, headroom=1.5))
    ]
    assert counts == sorted(counts)
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize(("every_s", "count"), [(60.0, 1), (10.0, 2)])
def test_one_of_few_may_be_late_once_an_hour_is_known(every_s: float, count: int) -> None:
    at_s = np.concatenate([np.arange(70) * every_s, [70.0 * every_s]])
    prompts = np.full(71, 100.0)
    at_s[40], prompts[39:41] = at_s[39] + 0.01, 2700.0
    came = Arrivals(at_s, prompts, np.full(71, 0.25))
    kinds = offers(load(), {("east", TP8): 4}, {"east": 1.0})
    found = least_instances(float(at_s[-1]), load(), kinds, came, 1.0 / every_s, ErrorBudget())
    assert found["east", TP8] == count


@pytest.mark.parametrize(("hopeless", "count"), [(4, 1), (30, 2)])
def test_fewer_may_be_late_where_many_are_late_on_whatever_fleet(hopeless: int, count: int) -> None:
    at_s = np.sort(
        np.concatenate([np.arange(1988) * 1.8, np.arange(1, 7) * 500.0 + 0.01, np.arange(1, 7) * 500.0 + 0.02])
    )
    prompts = np.full(at_s.size, 50.0)
    prompts[np.isclose(at_s % 500.0, 0.01) | np.isclose(at_s % 500.0, 0.02)] = 2700.0
    prompts[10 : 10 + hopeless] = 9000.0
    came = Arrivals(at_s, prompts, np.full(at_s.size, 0.25))
    kinds = offers(load(), {("east", TP8): 4}, {"east": 1.0})
    found = least_instances(float(at_s[-1]), load(), kinds, came, 0.5, ErrorBudget())
    assert found["east", TP8] == count
