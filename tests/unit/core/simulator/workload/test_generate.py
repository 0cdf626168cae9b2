import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulator.workload import OUTPUT_QUANTILES, Generator, azure_conv_like, generate
from core.simulator.workload.columns import cut
from core.simulator.workload.curves import DAY_S, PRESETS, WEEK_S, RateCurve, WeekShape, week_curve
from core.simulator.workload.lengths import AZURE_CONV, Exponential, Fixed, Lengths
from tests.unit.core.simulator.workload.helpers import assert_same, whole
from tests.unit.laws import examples

PLAIN = Lengths(Fixed(100.0), Fixed(20.0))
BURSTS = Lengths(Exponential(100.0), Exponential(20.0), 0.5)
HOURS = RateCurve(3600.0, (1.0, 3.0, 0.0, 4.0))


def arrivals(generator: Generator, seed: int = 1, requests: int = 200_000) -> np.ndarray:
    return whole(cut(generate(generator, seed), requests, None)).arrival_s


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(cv: float) -> None:
    at_s = arrivals(Generator(4.0, PLAIN, cv=cv))
    gaps_s = np.diff(at_s, prepend=0.0)
    assert gaps_s.min() >= 0.0
    assert gaps_s.mean() == pytest.approx(0.25, rel=1e-9 if cv == 0.0 else 4.0 * cv / math.sqrt(at_s.size))
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)


def test_counts_are_poisson_when_cv_is_one() -> None:
    at_s = arrivals(Generator(4.0, PLAIN))
    counts = np.bincount((at_s / 5.0).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, rel=0.05)


def test_rates_follow_the_curve_when_there_is_one() -> None:
    at_s = whole(cut(generate(Generator(2.0, PLAIN, curve=HOURS, start_s=3600.0), 1), None, 24 * 3600.0)).arrival_s
    rounds = np.bincount((at_s / 3600.0).astype(int), minlength=24).reshape(-1, 4)
    share = rounds.sum(axis=0) / rounds.sum()
    assert share == pytest.approx([3 / 8, 0.0, 4 / 8, 1 / 8], abs=0.004)
    assert rounds.sum() / (rounds.size * 3600.0) == pytest.approx(2.0, rel=0.01)


@given(st.floats(0.0, 1e6), st.lists(st.floats(0.0, 1e7), min_size=1, max_size=20))
def test_times_invert_the_integral_of_the_curve(start_s: float, worked: list[float]) -> None:
    curve = RateCurve(100.0, (2.0, 1.0, 5.0, 0.5))

    def integral(at_s: np.ndarray) -> np.ndarray:
        rates = np.array(curve.rates) / np.mean(curve.rates)
        ends = np.concatenate([[0.0], np.cumsum(rates * 100.0)])
        rounds = at_s // 400.0
        return rounds * 400.0 + np.interp(at_s - rounds * 400.0, 100.0 * np.arange(5), ends)

    found = curve.times_s(start_s, np.array(worked))
    grown = integral(start_s + found) - integral(np.array([start_s]))
    np.testing.assert_allclose(grown, worked, rtol=1e-9, atol=1e-6)


def test_week_meets_the_published_ratios_exactly() -> None:
    for name, to_mean, to_valley in (("conversation", 1.7, 3.3), ("coding", 2.8, 34.6)):
        rates = np.array(week_curve(PRESETS[name]).rates)
        assert rates.max() / rates.mean() == pytest.approx(to_mean, rel=1e-12)
        assert rates.max() / rates.min() == pytest.approx(to_valley, rel=1e-12)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_week_has_days_and_weekends(name: str) -> None:
    days = np.array(week_curve(PRESETS[name]).rates).reshape(7, -1)
    assert (days.argmax(axis=1) == 14 * 12).all()  # peaks every day at 14:00
    assert (days.argmin(axis=1) == 2 * 12).all()
    assert days[:5].max(axis=1) == pytest.approx(1.0)
    assert (days[5:].mean(axis=1) < days[:5].mean(axis=1).min()).all()
    assert np.abs(np.diff(days.ravel())).max() < 0.05  # no jumps, not on Saturday's morning either


def test_weekend_is_much_lower_when_coding() -> None:
    ratio = {}
    for name, shape in PRESETS.items():
        days = np.array(week_curve(shape).rates).reshape(7, -1).mean(axis=1)
        ratio[name] = days[5:].mean() / days[:5].mean()
    assert ratio["coding"] < 0.4 < 0.7 < ratio["conversation"] < 0.95


@given(st.floats(1.1, 5.0), st.floats(1.5, 50.0), st.floats(0.0, 1.0), st.integers(0, 23))
def test_week_meets_any_ratios_or_says_that_it_cannot(mean: float, more: float, weekend: float, hour: int) -> None:
    try:
        rates = np.array(week_curve(WeekShape(mean, mean * more, weekend, hour)).rates)
    except ValueError as error:
        if "no week has these ratios" not in str(error):
            raise
        return
    assert rates.max() / rates.mean() == pytest.approx(mean, rel=1e-8)
    assert rates.max() / rates.min() == pytest.approx(mean * more, rel=1e-12)


def test_generated_week_has_the_ratios_of_its_curve_when_requests_are_counted() -> None:
    curve = week_curve(PRESETS["coding"])
    at_s = whole(cut(generate(Generator(2.0, PLAIN, curve=curve), 1), None, WEEK_S)).arrival_s
    assert at_s.size == pytest.approx(2.0 * WEEK_S, rel=3e-3)
    half_hours = np.bincount((at_s / 1800.0).astype(int), minlength=336)
    expected = np.array(curve.rates).reshape(336, 6).mean(axis=1) / np.mean(curve.rates) * 3600.0
    assert np.abs((half_hours - expected) / np.sqrt(expected)).max() < 4.5


def test_week_is_shifted_when_it_starts_later() -> None:
    curve = week_curve(PRESETS["conversation"])
    tuesday = arrivals(Generator(1.0, PLAIN, curve=curve, start_s=DAY_S), requests=50_000)
    wrapped = arrivals(Generator(1.0, PLAIN, curve=curve, start_s=DAY_S + WEEK_S), requests=50_000)
    np.testing.assert_allclose(wrapped, tuesday, atol=1e-6)
    assert (np.abs(arrivals(Generator(1.0, PLAIN, curve=curve), requests=50_000) - tuesday) > 1.0).any()


@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from(
        [
            Generator(3.0, AZURE_CONV),
            Generator(3.0, PLAIN, cv=2.0),
            Generator(0.5, BURSTS, cv=0.5, curve=HOURS, start_s=5000.0),
            Generator(9.0, AZURE_CONV, curve=week_curve(PRESETS["coding"])),
        ]
    ),
    st.integers(0, 2**32),
    st.integers(1, 700),
    st.integers(1, 700),
)
def test_requests_are_the_same_when_blocks_have_another_size(
    generator: Generator, seed: int, first: int, second: int
) -> None:
    found = [whole(cut(generate(generator, seed, 3, size), 1000, None)) for size in (first, second)]
    assert_same(*found)
    assert (np.diff(found[0].arrival_s) >= 0.0).all()


def test_requests_differ_when_seed_or_stream_does() -> None:
    generator = Generator(3.0, AZURE_CONV)
    one, two, three = (next(generate(generator, seed, stream, 50)) for seed, stream in ((1, 0), (1, 1), (2, 0)))
    for other in (two, three):
        assert (one.arrival_s != other.arrival_s).any()
        assert (one.prompt_tokens != other.prompt_tokens).any()


def test_traffic_is_the_same_when_the_seed_is() -> None:
    first, second = (list(itertools.islice(azure_conv_like(7, 3.0), 50)) for _ in range(2))
    assert first == second
    assert first != list(itertools.islice(azure_conv_like(8, 3.0), 50))


def test_traffic_has_the_published_statistics_when_drawn_at_length() -> None:
    drawn = list(itertools.islice(azure_conv_like(1, 4.0), 20_000))
    assert len(drawn) / drawn[-1].at_s == pytest.approx(4.0, rel=0.05)
    assert np.median([request.prompt_tokens for request in drawn]) == pytest.approx(1020, rel=0.05)
    assert np.median([request.output_tokens for request in drawn]) == pytest.approx(129, rel=0.05)
    assert all(2 <= r.prompt_tokens <= 14_050 and 7 <= r.output_tokens <= OUTPUT_QUANTILES[-1] for r in drawn)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(drawn))


def test_prompts_are_cut_when_bounded() -> None:
    drawn = list(itertools.islice(azure_conv_like(1, 1.0, max_prompt=100), 200))
    assert max(request.prompt_tokens for request in drawn) == 100


@pytest.mark.parametrize(("rate", "most"), [(0.0, 10), (-1.0, 10), (1.0, 0)])
def test_traffic_is_refused_when_its_figures_make_no_sense(rate: float, most: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        azure_conv_like(1, rate, most)
