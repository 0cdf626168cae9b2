"""The fleet loop: the least power that carries what is ahead, and no change that does not last."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet.site_mix import Offer, SiteRule, any_keeps, best_mix
from core.controllers.fleet.right_size import (
    RightSizeConfig,
    RightSizeObservation,
    RightSizeState,
    step,
    still_expected_rps,
)
from core.engine.engine_model import engine_model
from core.engine.load_profile import clocks, modelled
from core.types import Limits, Mode, PoolKey, Reason, ScaleTo, Source
from tests.unit.laws import examples

LIMITS = Limits(ttft_s=0.125, tpot_s=0.09)
POOL = PoolKey("east", "chat")
CONFIG = RightSizeConfig(learn_s=0.0)  # what is little known has tests of its own


def offer(tp: int, room: int, chunk_tokens: float | None = 2048.0) -> Offer:
    worker = engine_model("Llama2-70B", "H100-SXM-80GB", tp)
    profile = modelled(worker, 1155.0, 211.0, clocks(worker.gpu_params, 60.0, 1330.0), chunk_tokens=chunk_tokens)
    assert profile is not None
    return Offer(Mode("H100-SXM-80GB", tp), profile, room)


OFFERS = (offer(4, 24), offer(8, 12))
TP8, TP8_PROFILE = OFFERS[1].mode, OFFERS[1].profile
TP8_MOST = TP8_PROFILE.top().within(LIMITS)[0]


def decide(state, *rates, now_s=0.0, limits=LIMITS, config=CONFIG, offers=OFFERS):
    return step(state, RightSizeObservation(now_s, POOL, rates, offers, limits), config)


def test_fleet_is_the_one_of_least_power_among_all_counts_and_clocks():
    state, effects = decide(None, 40.0, 40.0, offers=OFFERS[1:])
    own, need = OFFERS[1].profile, 44.0
    most = float(own.top().within(LIMITS)[0])
    watts = {
        (count, float(mhz)): count * float(w)
        for count in range(1, 13)
        for mhz, ttft_s, tpot_s, w in zip(
            own.mhz, *(values[:, 0] for values in own.at(np.array([40.0 / count]))), strict=True
        )
        if count * most >= need and ttft_s <= LIMITS.ttft_s and tpot_s <= LIMITS.tpot_s
    }
    (count, mhz), least = min(watts.items(), key=lambda item: item[1])
    assert effects.commands == (ScaleTo(POOL, {TP8: count}),)
    assert state.workers == {("", TP8): count}
    (chosen,) = [one for one in effects.rationale.alternatives if one.chosen]
    assert chosen.power_w == pytest.approx(least)
    assert chosen.label.endswith(f"at {mhz:.0f} MHz")
    json.dumps(effects.rationale.inputs, allow_nan=False)


def test_decision_names_the_origin_and_the_time_of_each_profile():
    own = replace(TP8_PROFILE, source=Source.MEASURED, measured_at_s=5.0)
    _, effects = decide(None, 40.0, 40.0, offers=(OFFERS[0], replace(OFFERS[1], profile=own)))
    known = {OFFERS[0].mode.name: {"source": "modelled"}, TP8.name: {"source": "measured", "measured_at_s": 5.0}}
    assert effects.rationale.inputs["profiles"] == known
    (chosen,) = [one for one in effects.rationale.alternatives if one.chosen]
    assert chosen.source is (Source.MODELLED if OFFERS[0].mode.name in chosen.label else Source.MEASURED)


def test_degree_needs_a_higher_clock_when_a_prompt_may_share_its_iteration():
    alone, shared = (best_mix([offer(4, 24, tokens)], 40.0, 44.0, LIMITS).parts[0] for tokens in (None, 2048.0))
    assert shared.mhz > alone.mhz
    assert not any_keeps(OFFERS[:1], Limits(0.05, 0.09))  # at no clock


def carries(state, offers=OFFERS, limits=LIMITS):
    most = {own.kind: float(own.profile.top().within(limits)[0]) for own in offers}
    return sum(count * most[kind] for kind, count in state.workers.items())


def test_more_is_asked_for_at_once_when_the_load_rises():
    state, _ = decide(None, 20.0, 20.0)
    after, effects = decide(state, 20.0, 60.0, now_s=10.0)
    assert effects.rationale.reason is Reason.CONGESTED
    assert all(after.workers[kind] >= count for kind, count in state.workers.items())
    # 60 now and 20 before: 100 is what is ahead, with headroom
    assert carries(after) >= CONFIG.headroom * 100.0


def test_less_is_asked_for_only_when_it_would_have_done_for_a_while():
    state, _ = decide(None, 80.0, 80.0)
    reasons = []
    for now_s in range(10, 90, 10):
        state, effects = decide(state, 20.0, 20.0, now_s=float(now_s))
        reasons.append(effects.rationale.reason)
    assert reasons == [Reason.GRACE] * 6 + [Reason.SLACK, Reason.NO_CHANGE]


def test_wait_for_a_smaller_fleet_begins_anew_when_the_load_comes_back():
    state, _ = decide(None, 80.0, 80.0)
    state, _ = decide(state, 20.0, 20.0, now_s=10.0)
    assert state.better_since_s == 10.0
    state, _ = decide(state, 80.0, 80.0, now_s=20.0)
    assert state.better_since_s is None


def test_all_there_is_room_for_is_taken_when_nothing_carries_the_load():
    state, effects = decide(None, 5000.0, 5000.0)
    assert effects.rationale.reason is Reason.AT_LIMIT
    assert effects.commands == (ScaleTo(POOL, {TP8: 12}),)
    _, again = decide(state, 5000.0, 5000.0)
    assert again.commands == ()


def test_nothing_is_decided_before_any_load_was_seen():
    state, effects = decide(None)
    assert state is None
    assert effects.rationale.reason is Reason.NO_DATA


def test_one_instance_stays_when_there_is_no_traffic():
    state, effects = decide(None, 0.0, 0.0)
    ((_, mode),) = state.workers
    assert effects.commands == (ScaleTo(POOL, {mode: 1}),)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.floats(0.0, 120.0), min_size=1, max_size=12))
def test_fleet_carries_what_is_needed_whenever_there_is_room(rates):
    state, effects = decide(None, *rates)
    if effects.rationale.reason is not Reason.AT_LIMIT:
        assert carries(state) >= CONFIG.burst * max(rates) - 1e-6


def test_more_is_asked_for_when_requests_wait():
    state, _ = decide(None, 20.0, 20.0)
    obs = RightSizeObservation(10.0, POOL, (20.0, 20.0), OFFERS, LIMITS, waiting=900)
    after, effects = step(state, obs, CONFIG)
    assert effects.rationale.reason is Reason.CONGESTED
    assert carries(after) >= 20.0 + 900 / CONFIG.catch_up_s


# -- sites -----------------------------------------------------------------------------------------------------------

EAST, WEST = (replace(own, site=site, room=4) for own, site in ((OFFERS[1], "east"), (OFFERS[1], "west")))


def at_sites(state, *rates, now_s=0.0, config=CONFIG, west_g=100.0, **more):
    offers = (replace(EAST, per_watt=300.0), replace(WEST, per_watt=west_g))
    return step(state, RightSizeObservation(now_s, POOL, rates, offers, LIMITS, **more), config)


def test_dirtier_site_takes_only_what_the_cleaner_has_no_room_for():
    one = float(TP8_MOST)
    state, effects = at_sites(None, 5.5 * one / CONFIG.headroom)
    assert state.workers == {("west", TP8): 4, ("east", TP8): 2}
    assert {command.pool.site: dict(command.workers) for command in effects.commands} == {
        "west": {TP8: 4},
        "east": {TP8: 2},
    }


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.floats(0.0, 400.0), min_size=1, max_size=6), st.integers(0, 4))
def test_site_never_draws_more_than_its_cap_whatever_the_load(rates, fit):
    """Counts each instance at the most that it draws at any clock, those on their way out included."""
    highest_w = float(TP8_PROFILE.watts.max())
    cap_w = (fit + 0.5) * highest_w
    state, standing = None, {}
    for n, rate in enumerate(rates):
        state, _ = at_sites(state, rate, now_s=10.0 * n, caps_w={"west": cap_w}, standing=standing)
        asked = {} if state is None else state.workers
        both = {kind: max(asked.get(kind, 0), standing.get(kind, 0)) for kind in {*asked, *standing}}
        assert both.get(("west", TP8), 0) * highest_w <= cap_w
        standing = both


def test_reason_of_a_site_has_that_sites_part_of_each_mix():
    _, effects = decide(None, 5.5 * TP8_MOST, offers=(EAST, WEST))
    whole = next(row for row in effects.rationale.alternatives if row.chosen)
    chosen = [next(row for row in own.rationale.alternatives if row.chosen) for own in effects.decisions]
    assert [own.pool.site for own in effects.decisions] == ["east", "west"]
    assert sum(row.power_w for row in chosen) == pytest.approx(whole.power_w)
    for own, row in zip(effects.decisions, chosen, strict=True):
        assert own.rationale.reason is effects.rationale.reason
        assert row.label.startswith(f"{own.workers[TP8]} x ")
        assert row.label.endswith(f", {own.pool.site}")


def test_what_stands_beyond_a_cap_that_fell_is_taken_away():
    highest_w = float(TP8_PROFILE.watts.max())
    state, _ = at_sites(None, 60.0)
    assert state.workers[("west", TP8)] > 1
    after, _ = at_sites(state, 60.0, now_s=10.0, caps_w={"west": 1.5 * highest_w}, standing=state.workers)
    assert after.workers[("west", TP8)] == 1
    assert after.workers[("east", TP8)] >= 1


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from((1.0, 40.0, 120.0)), min_size=40, max_size=40), st.integers(1, 6))
def test_site_has_no_more_starts_and_stops_in_an_hour_than_its_budget(rates, budget):
    config = replace(CONFIG, changes_per_hour=budget)
    state, _ = at_sites(None, rates[0], config=config)
    changes = []
    for n, rate in enumerate(rates):
        now_s, before = 180.0 * n, state.workers
        state, _ = at_sites(state, rate, now_s=now_s, config=config, west_g=100.0 + 500.0 * (n % 2))
        for site in ("east", "west"):
            count = abs(state.workers.get((site, TP8), 0) - before.get((site, TP8), 0))
            changes.append((now_s, site, count))
            last_hour = sum(own for at_s, where, own in changes if where == site and at_s > now_s - 3600.0)
            assert last_hour <= budget


def test_half_of_the_changes_are_left_for_what_the_load_asks_for():
    config = replace(CONFIG, changes_per_hour=4, hold_s=0.0)
    state, _ = at_sites(None, 100.0, config=config)
    before = sum(state.workers.values())
    for n in range(1, 20):
        state, _ = at_sites(state, 1.0, now_s=10.0 * n, config=config)
    assert sum(state.workers.values()) >= before - 4  # of two sites, two each
    grown, effects = at_sites(state, 100.0, now_s=210.0, config=config)
    assert effects.rationale.reason in (Reason.CONGESTED, Reason.AT_LIMIT)
    assert sum(grown.workers.values()) > sum(state.workers.values())


def test_kinds_are_mixed_when_a_small_one_carries_the_rest_for_less():
    """Eight GPUs of one type: a TP8 and nothing else, or TP4 and two of TP2."""
    both = [replace(OFFERS[0], room=3), replace(OFFERS[1], room=1)]
    most = [float(own.profile.top().within(LIMITS)[0]) for own in both]
    mixed = best_mix(both, most[1] + 0.9 * most[0], most[1] + 0.9 * most[0], LIMITS)
    assert mixed.workers == {both[0].kind: 1, both[1].kind: 1}
    alone = best_mix(both[:1], most[1] + 0.9 * most[0], most[1] + 0.9 * most[0], LIMITS)
    assert alone.short or alone.cost > mixed.cost


def test_what_runs_stays_among_the_choices_when_a_site_is_too_large_to_try_all():
    large = (replace(OFFERS[0], room=4000), replace(OFFERS[1], room=2000))
    state, effects = decide(None, 3001.0, offers=large)
    assert effects.rationale.reason is Reason.OPTIMAL
    assert carries(state) >= 3001.0
    state = replace(state, mix=best_mix(large, 3001.0, 3333.0, LIMITS, {"": SiteRule(least={TP8: 401})}))
    _, again = decide(state, 3001.0, now_s=10.0, offers=large)
    assert again.rationale.reason is not Reason.CONGESTED


def test_site_without_a_use_is_left_empty_and_no_site_when_nothing_may_run():
    state, _ = at_sites(None, 1.0)
    assert {site for site, _ in state.workers} == {"west"}
    none, effects = at_sites(None, 1.0, caps_w={"east": 1.0, "west": 1.0})
    assert none is None
    assert effects.rationale.reason is Reason.AT_LIMIT


def cramped(room4, room8):
    """On 12 GPUs for (3, 1): three of TP4, or a TP8 and a TP4; TP8 serves for less."""
    return replace(OFFERS[0], room=room4), replace(OFFERS[1], room=room8)


def standing(offers, counts, rps):
    """A fleet as it was asked for, whatever it costs."""
    rule = {"": SiteRule(least=counts, most=counts)}
    state, _ = decide(None, rps, offers=offers)
    return replace(state, mix=best_mix(offers, rps, rps, LIMITS, rule))


TP4 = OFFERS[0].mode
TP4_MOST = float(OFFERS[0].profile.top().within(LIMITS)[0])


@pytest.mark.parametrize(("room4", "room8", "expected"), [(3, 1, {("", TP4): 3}), (6, 3, {("", TP8): 1})])
def test_kinds_change_only_where_the_load_is_carried_meanwhile(room4, room8, expected):
    offers = cramped(room4, room8)
    state = standing(offers, {TP4: 2}, 1.8 * TP4_MOST)
    grown, effects = decide(state, 2.2 * TP4_MOST, offers=offers)
    assert effects.rationale.reason is Reason.CONGESTED
    assert grown.workers == expected


def test_a_kind_that_keeps_no_first_token_in_time_counts_for_nothing():
    offers = cramped(6, 3)
    least = {offers[0].kind: 2, offers[1].kind: None}
    state, _ = step(None, RightSizeObservation(0.0, POOL, (1.0,), offers, LIMITS, least=least), CONFIG)
    assert state.workers == {("", TP4): 2}


def carried_rps(state: RightSizeState) -> float:
    return sum(
        n * float(offer.profile.top().within(LIMITS)[0])
        for offer in OFFERS
        for kind, n in state.workers.items()
        if kind == offer.kind
    )


def test_what_is_expected_is_carried_though_it_was_not_seen():
    few = RightSizeObservation(0.0, POOL, (1.0, 1.0), OFFERS, LIMITS)
    seen, _ = step(None, few, CONFIG)
    said, effects = step(None, replace(few, expected_rps=40.0), CONFIG)
    assert carried_rps(seen) < 40.0 <= carried_rps(said)
    assert effects.rationale.summary.startswith("chat: 40 requests/s of the expected load are ahead")


def test_a_decision_names_the_expected_load_only_where_capacity_is_kept_for_it():
    state, _ = decide(None, 40.0, 40.0)
    few = RightSizeObservation(10.0, POOL, (1.0, 1.0), OFFERS, LIMITS, expected_rps=40.0)
    _, kept = step(state, few, CONFIG)
    assert kept.rationale.reason is Reason.NO_CHANGE
    assert kept.rationale.summary == "chat: nothing else saves enough under the expected load."
    _, larger = step(state, replace(few, rates_rps=(60.0, 60.0)), CONFIG)
    assert "requests/s are ahead" in larger.rationale.summary


def test_what_is_expected_counts_for_less_as_more_is_seen():
    state, _ = step(None, RightSizeObservation(100.0, POOL, (1.0,), OFFERS, LIMITS, first_s=100.0), CONFIG)
    assert still_expected_rps(None, 5.0, 4.0) == 4.0
    assert [still_expected_rps(state, 100.0 + s, 4.0) for s in (0.0, 1800.0, 3600.0, 9999.0)] == [4.0, 2.0, 0.0, 0.0]
    for now_s, rps in ((200.0, 60.0), (210.0, 1.0), (300.0, 1.0)):
        state, _ = decide(state, rps, now_s=now_s)
    assert state.since_s == 100.0


def little_known(state, now_s, first_s, count, room=24):
    """Asks for TP4s, of which `count` keep what came."""
    (offer,) = (replace(OFFERS[0], room=room),)
    least = {offer.kind: count}
    obs = RightSizeObservation(now_s, POOL, (0.1,), (offer,), LIMITS, least=least, first_s=first_s)
    return step(state, obs, replace(CONFIG, learn_s=600.0))


@pytest.mark.parametrize(
    ("known_s", "count", "expected"),
    [(0.0, 1, 2), (599.0, 1, 2), (600.0, 1, 1), (0.0, 9, 12), (300.0, 9, 11), (450.0, 9, 10), (600.0, 9, 9)],
)
def test_spare_instances_stand_by_while_little_is_known(known_s, count, expected):
    state, effects = little_known(None, 1000.0 + known_s, 1000.0, count)
    assert sum(state.workers.values()) == expected
    assert ("little is known" in effects.rationale.summary) == (expected > count)


def test_what_was_once_known_stays_known_when_requests_pause():
    state, _ = little_known(None, 1000.0, 1000.0, 1)
    for now_s, first_s in ((1300.0, None), (1550.0, 1500.0), (1700.0, None), (1760.0, 1700.0)):
        state, _ = little_known(state, now_s, first_s, 1)
        assert (state.since_s, sum(state.workers.values())) == (1000.0, 2 if now_s < 1760.0 else 1)


def test_spare_instances_come_back_with_the_first_request_after_a_silence():
    state, _ = little_known(None, 0.0, None, 1)
    known = []
    for now_s, first_s in ((500.0, None), (700.0, None), (770.0, None), (5000.0, 4995.0), (5500.0, None)):
        state, _ = little_known(state, now_s, first_s, 1)
        known.append((now_s - state.since_s, sum(state.workers.values())))
    assert known == [(500.0, 2), (700.0, 2), (770.0, 1), (5.0, 2), (505.0, 2)]


def test_no_spare_instance_is_asked_for_where_there_is_no_room():
    state, effects = little_known(None, 0.0, 0.0, 3, room=3)
    assert sum(state.workers.values()) == 3
    assert effects.rationale.reason is not Reason.AT_LIMIT


def test_spare_instance_is_of_another_kind_where_one_kind_has_no_room_for_it():
    offers = cramped(1, 1)
    east, west = offers[0], replace(offers[1], site="west")
    least = {east.kind: 1, west.kind: 1}
    obs = RightSizeObservation(0.0, POOL, (0.1,), (east, west), LIMITS, least=least)
    state, _ = step(None, obs, replace(CONFIG, learn_s=600.0))
    assert state.workers == {east.kind: 1, west.kind: 1}
    state, _ = step(None, replace(obs, offers=(east,)), replace(CONFIG, learn_s=600.0))
    assert state.workers == {east.kind: 1}


def test_headroom_of_the_error_budget_is_capacity():
    few = RightSizeObservation(0.0, POOL, (30.0, 30.0), OFFERS, LIMITS)
    more, _ = step(None, replace(few, headroom=1.5), CONFIG)
    assert carried_rps(more) >= 45.0


def test_a_decision_says_how_much_of_its_power_is_for_the_promise():
    few = RightSizeObservation(0.0, POOL, (30.0, 30.0), OFFERS, LIMITS)
    _, plain = step(None, replace(few, rates_rps=(30.0,)), RightSizeConfig(headroom=1.0, burst=0.0))
    assert plain.rationale.inputs["for_promise_w"] == pytest.approx(0.0, abs=1e-6)
    _, more = step(None, replace(few, headroom=2.0), CONFIG)
    (chosen,) = [one for one in more.rationale.alternatives if one.chosen]
    for_promise_w = more.rationale.inputs["for_promise_w"]
    assert 0.0 < for_promise_w < chosen.power_w
    assert f"{for_promise_w:.0f} of {chosen.power_w:.0f} W for the promise" in more.rationale.summary


def test_a_decision_says_which_limits_no_kind_of_instance_keeps():
    few = RightSizeObservation(0.0, POOL, (1.0,), OFFERS, LIMITS)
    _, all_kept = step(None, few, CONFIG)
    assert "planned without" not in all_kept.rationale.summary
    _, late = step(None, replace(few, without_e2e_s=0.5, limits=replace(LIMITS, ttft_s=0.001)), CONFIG)
    said = "chat: no mode keeps its limits (E2E of 0.5 s and TTFT of 0.001 s), planned without them."
    assert late.rationale.summary.endswith(said)
    assert all(own.rationale.summary.endswith(said) for own in late.decisions)
    assert late.rationale.inputs["without_e2e_s"] == 0.5


def test_a_decision_says_nothing_of_limits_where_nothing_may_run():
    _, effects = step(None, RightSizeObservation(0.0, POOL, (1.0,), (), LIMITS, without_e2e_s=0.5), CONFIG)
    assert effects.rationale.summary == "chat: no load has been seen."
