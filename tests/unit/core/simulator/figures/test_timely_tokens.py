"""FREESH's groups from a stream, against those of core.fairness, which has all requests at hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.fairness import jain
from core.simulator.figures.timely_tokens import MOST_TOKENS, TimelyGroups
from tests.oracles.timely_jain import timely_totals


def streamed(classes: np.ndarray, output: np.ndarray, timely: np.ndarray, cut: int) -> TimelyGroups:
    groups = TimelyGroups(2)
    for part in (slice(None, cut), slice(cut, None)):
        groups.add(classes[part], output[part], timely[part])
    return groups


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60, unique=True), st.integers(0, 60), st.integers(0, 1000))
def test_groups_are_those_of_all_requests_when_lengths_differ(lengths: list[int], cut: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    output = np.array(lengths)
    timely = rng.integers(0, output + 1)
    classes = rng.integers(0, 2, output.size)
    groups = streamed(classes, output, timely, cut)
    expected = [timely_totals(output[classes == k], timely[classes == k]) for k in (0, 1)]
    assert [groups.totals(k) for k in (0, 1)] == [pytest.approx(part) for part in expected]
    assert groups.jain(0, 1) == pytest.approx(jain([*expected[0], *expected[1]]))


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(0, 1000))
def test_groups_share_a_length_by_count_when_a_border_falls_into_it(lengths: list[int], seed: int) -> None:
    output = np.array(lengths)
    timely = np.random.default_rng(seed).integers(0, 100, output.size)
    means = {length: timely[output == length].mean() for length in set(lengths)}
    groups = streamed(np.zeros(output.size, np.int64), output, timely, 1)
    assert groups.totals(0) == pytest.approx(timely_totals(output, [means[length] for length in lengths]))
    assert sum(groups.totals(0)) == pytest.approx(timely.sum())


def test_lengths_count_as_the_longest_known_when_they_are_beyond() -> None:
    groups = TimelyGroups(1)
    groups.add(np.zeros(4, np.int64), np.array([1, 2, 10**12, 10**15]), np.array([1, 2, 30, 10]))
    assert groups.totals(0) == [1.0, 2.0, 20.0, 20.0]
    assert groups._count.shape[1] <= 2 * MOST_TOKENS


def test_jain_is_unknown_when_there_are_no_requests() -> None:
    assert TimelyGroups(2).jain(0, 1) is None
