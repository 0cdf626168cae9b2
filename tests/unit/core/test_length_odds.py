"""What is said of an answer's length: classes, probabilities above a length, quantiles, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.length_odds import LengthOdds

ODDS = LengthOdds("text", (50, 200), (0.5, 0.3, 0.2), 400.0)


def test_a_length_belongs_to_the_class_whose_upper_border_it_does_not_exceed() -> None:
    assert [ODDS.class_of(tokens) for tokens in (1, 50, 51, 200, 201, 10_000)] == [0, 0, 1, 1, 2, 2]
    assert ODDS.most_probable() == 0
    assert LengthOdds("text", (9,), (0.5, 0.5), 10.0).most_probable() == 0


def test_the_probability_above_a_border_is_that_of_the_classes_beyond_it() -> None:
    assert ODDS.exceeds(50) == pytest.approx(0.5)
    assert ODDS.exceeds(200) == pytest.approx(0.2)
    assert ODDS.exceeds(0) == 1.0


def test_half_of_the_longest_class_is_longer_than_its_median() -> None:
    assert ODDS.exceeds(400) == pytest.approx(0.1)
    assert ODDS.quantile(0.9) == 400


def test_half_of_the_shortest_class_is_shorter_than_its_median_where_that_is_known() -> None:
    odds = LengthOdds("text", (50, 200), (0.5, 0.3, 0.2), 400.0, 40.0)
    assert odds.quantile(0.25) == 40
    assert odds.exceeds(40) == pytest.approx(0.75)
    assert odds.exceeds(20) == 1.0
    assert odds.quantile(0.0) == 32  # 40 lies midway between it and the border by logarithms
    assert ODDS.quantile(0.25) == 8


@pytest.mark.parametrize("median", [0.5, 51.0])
def test_a_median_of_the_shortest_class_is_refused_when_it_lies_outside(median: float) -> None:
    with pytest.raises(ValueError, match="the shortest class's median lies between 1 token and its border"):
        LengthOdds("text", (50, 200), (0.5, 0.3, 0.2), 400.0, median)


def test_within_a_class_logarithms_of_lengths_are_uniform() -> None:
    assert ODDS.exceeds(100) == pytest.approx(0.2 + 0.3 / 2)
    assert ODDS.quantile(0.65) == 100


def test_a_dear_underestimate_moves_the_quantile_up_a_class() -> None:
    assert ODDS.class_of(ODDS.quantile(0.4)) == 0
    assert ODDS.class_of(ODDS.quantile(3 / (3 + 1))) == 1
    assert ODDS.class_of(ODDS.quantile(9 / (9 + 1))) == 2


def test_a_single_class_has_no_border() -> None:
    only = LengthOdds("text", (), (1.0,), 64.0)
    assert only.class_of(5) == 0
    assert only.quantile(0.5) == 64
    assert only.exceeds(64) == pytest.approx(0.5)


@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=6, unique=True),
    st.lists(st.floats(0.01, 1.0), min_size=7, max_size=7),
    st.floats(0.0, 0.999),
)
def test_a_quantile_is_exceeded_as_seldom_as_it_says(borders: list[int], weights: list[float], share: float) -> None:
    cuts = tuple(sorted(borders))
    used = weights[: len(cuts) + 1]
    odds = LengthOdds("text", cuts, tuple(w / sum(used) for w in used), cuts[-1] + 100.0)
    tokens = odds.quantile(share)
    assert odds.exceeds(tokens) <= 1.0 - share + 1e-6
    assert tokens == 1 or odds.exceeds(tokens - 1) >= 1.0 - share - 1e-6


@pytest.mark.parametrize(
    ("borders", "probabilities", "tail", "words"),
    [
        ((50, 50), (0.3, 0.3, 0.4), 90.0, "ascend"),
        ((0,), (0.5, 0.5), 90.0, "ascend"),
        ((50,), (1.0,), 90.0, "2 classes"),
        ((50,), (1.5, -0.5), 90.0, "between 0 and 1"),
        ((50,), (math.nan, 0.5), 90.0, "between 0 and 1"),
        ((50,), (0.5, 0.4), 90.0, "0.9000"),
        ((50,), (0.5, 0.5), 50.0, "above 50 tokens"),
        ((50,), (0.5, 0.5), math.inf, "above 50 tokens"),
    ],
)
def test_other_figures_are_refused(
    borders: tuple[int, ...], probabilities: tuple[float, ...], tail: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        LengthOdds("text", borders, probabilities, tail)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_a_quantile_lies_between_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="a quantile lies"):
        ODDS.quantile(share)
