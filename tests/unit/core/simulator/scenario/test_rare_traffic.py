"""The shipped scenarios of faults and rare traffic: that each has what its head says, and a fleet that can serve it."""

from __future__ import annotations

import numpy as np
import pytest

from core.simulator import shipped_scenarios
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.runs.runner import Loader, requests_of, run_scenario
from core.simulator.scenario.scenario import Scenario, read_scenario

NAMES = ("night", "step", "spikes", "long-among-short", "site-dark", "feed-gone", "wrong-lengths", "heaps")


def shipped(name: str) -> tuple[Scenario, Arrivals]:
    scenario = read_scenario(shipped_scenarios.folder() / f"{name}.yaml")
    (block,) = requests_of(scenario).blocks()
    return scenario, block


def per_s(block: Arrivals, from_s: float, to_s: float, every_s: float = 1e9) -> float:
    """Returns the mean rate from `from_s` to `to_s` of each period of `every_s`, in requests/s."""
    place_s = block.arrival_s % every_s
    rounds = max(1, round(float(block.arrival_s[-1]) / every_s))
    return float(((place_s >= from_s) & (place_s < to_s)).sum()) / (to_s - from_s) / rounds


@pytest.mark.parametrize("name", NAMES)
def test_a_fleet_without_any_policy_keeps_the_objectives(name: str) -> None:
    scenario, _ = shipped(name)
    slos = {(own.slo.ttft_s, own.slo.tpot_mean_s) for service in scenario.services for own in service.classes}
    assert slos == {(1.0, 0.1)}
    figures = run_scenario(scenario, requests_of(scenario), "single_pool").figures
    assert figures["slo_attainment"] >= 0.995
    assert figures["rejected"] == 0


def test_the_night_has_a_request_a_minute() -> None:
    _, block = shipped("night")
    assert per_s(block, 0.0, 14_400.0) == pytest.approx(1.0 / 60.0, rel=0.2)


def test_the_step_is_to_four_times_within_a_minute_and_back() -> None:
    _, block = shipped("step")
    low, high, after = per_s(block, 0.0, 1200.0), per_s(block, 1260.0, 2460.0), per_s(block, 2520.0, 3600.0)
    assert high / low == pytest.approx(4.0, rel=0.1)
    assert after == pytest.approx(low, rel=0.1)


def test_a_spike_is_twelve_times_the_rate_for_20_s() -> None:
    _, block = shipped("spikes")
    assert per_s(block, 200.0, 220.0, 300.0) / per_s(block, 0.0, 200.0, 300.0) == pytest.approx(12.0, rel=0.1)
    assert per_s(block, 220.0, 300.0, 300.0) == pytest.approx(per_s(block, 0.0, 200.0, 300.0), rel=0.1)


def test_a_heap_is_a_hundred_requests_within_a_second() -> None:
    _, block = shipped("heaps")
    assert per_s(block, 119.0, 120.0, 240.0) == pytest.approx(100.0, rel=0.1)
    assert per_s(block, 120.0, 240.0, 240.0) == pytest.approx(2.0, rel=0.1)


def test_two_of_a_hundred_prompts_are_long_and_the_others_short() -> None:
    _, block = shipped("long-among-short")
    long = block.prompt_tokens > 300
    assert long.mean() == pytest.approx(0.02, rel=0.2)
    assert block.prompt_tokens[long].min() >= 8000
    assert block.prompt_tokens[long].max() <= 16_000
    assert block.prompt_tokens[~long].mean() == pytest.approx(200.0, rel=0.02)


def test_the_sites_that_stay_get_the_load_of_the_dark_one() -> None:
    scenario, block = shipped("site-dark")
    assert len(scenario.sites) == 2
    before, dark, after = per_s(block, 0.0, 1200.0), per_s(block, 1201.0, 2400.0), per_s(block, 2400.0, 3600.0)
    assert dark / before == pytest.approx(1.5, rel=0.1)
    assert after == pytest.approx(before, rel=0.1)
    assert per_s(block, 1200.0, 1201.0) > 1.5 * dark


def test_the_feed_that_is_gone_is_missing_for_hours_and_comes_back() -> None:
    scenario, block = shipped("feed-gone")
    known = {
        name: [site.intensity_g_per_kwh(3600.0 * hour + 1800.0) is not None for hour in range(4)]
        for name, site in scenario.sites.items()
    }
    assert known == {"location-1": [True, False, False, True], "location-2": [True] * 4, "location-3": [True] * 4}
    assert block.arrival_s[-1] > 3.9 * 3600.0


def test_predicted_lengths_are_off_by_half_of_the_answer() -> None:
    scenario, block = shipped("wrong-lengths")
    load = Loader(scenario, [scenario.groups[0].instances[0]]).load(block)
    long = block.output_tokens >= 350
    errors = load.predicted_tokens[long] / block.output_tokens[long] - 1.0
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(0.5, rel=0.05)
    assert (load.cell != load.request_class).mean() > 0.25
