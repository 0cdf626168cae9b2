import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.fairness import jain, jain_by_row, jain_of_tenants, jain_of_tenants_by_row
from tests.oracles.timely_jain import freesh_timely_jain, timely_totals

SHARES = st.lists(st.floats(min_value=0.0, max_value=1e9), min_size=1, max_size=50)


@given(SHARES)
def test_index_lies_within_its_bounds_when_values_are_any_shares(values: list[float]) -> None:
    index = jain(values)
    if index is None:
        assert not any(values)
    else:
        assert 1.0 / len(values) <= index <= 1.0


@given(SHARES, st.floats(min_value=0.01, max_value=100.0))
def test_index_is_the_same_when_all_values_are_scaled(values: list[float], factor: float) -> None:
    index, scaled = jain(values), jain(value * factor for value in values)
    if index is not None and max(values) > 1e-200:
        assert scaled == pytest.approx(index)


@given(st.floats(min_value=1e-6, max_value=1e6), st.integers(1, 40))
def test_index_is_one_when_all_are_equal(value: float, count: int) -> None:
    assert jain([value] * count) == pytest.approx(1.0)


def test_index_is_its_least_when_one_has_all() -> None:
    assert jain([0, 0, 0, 7]) == pytest.approx(0.25)


def test_index_is_unknown_when_there_is_no_data() -> None:
    assert jain([]) is None
    assert jain([0.0, 0.0]) is None


def test_index_is_refused_when_a_value_is_negative() -> None:
    with pytest.raises(ValueError, match="not negative"):
        jain([1.0, -1.0])


def test_groups_are_by_output_length_when_requests_differ() -> None:
    output = [400, 10, 20, 300, 100, 200, 30, 40]
    timely = [200, 10, 20, 150, 100, 200, 30, 40]
    assert timely_totals(output, timely) == pytest.approx([30, 70, 300, 350])
    assert freesh_timely_jain(output, timely) == pytest.approx(750**2 / (4 * (30**2 + 70**2 + 300**2 + 350**2)))


def test_timely_index_is_one_when_every_group_gets_as_much() -> None:
    assert freesh_timely_jain([5, 50, 500, 5000], [5, 5, 5, 5]) == pytest.approx(1.0)


def test_empty_groups_are_left_out_when_requests_are_few() -> None:
    assert timely_totals([8], [4]) == pytest.approx([4.0])
    assert freesh_timely_jain([], []) is None


def test_totals_are_refused_when_the_lists_differ_in_length() -> None:
    with pytest.raises(ValueError, match="one value each"):
        timely_totals([1, 2], [1])


def test_index_of_tenants_is_over_the_share_that_each_got_in_time():
    assert jain_of_tenants([50, 100, 0], [100, 100, 0]) == pytest.approx(jain([0.5, 1.0]))


@pytest.mark.parametrize(("timely", "tokens"), [([], []), ([5], [9]), ([5, 0], [9, 0]), ([0, 0], [9, 9])])
def test_index_of_tenants_is_unknown_when_there_is_nothing_to_compare(timely, tokens):
    assert jain_of_tenants(timely, tokens) is None


def test_rows_have_the_index_that_each_has_alone():
    rows = [[50.0, 100.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert jain_by_row(np.array(rows)) == tuple(map(jain, rows))
    assert jain_by_row(np.zeros((2, 0))) == (None, None)
    counted = np.array([[True, True, False], [False] * 3, [True, False, True], [True] * 3])
    assert jain_by_row(np.array(rows), counted) == (jain([50, 100]), None, jain([3, 0]), 1.0)


def test_rows_of_tenants_have_the_index_that_each_has_alone():
    timely, tokens = (
        [[50.0, 100.0, 0.0], [5.0, 0.0, 0.0], [1.0, 0.0, 4.0]],
        [[100.0, 100.0, 0.0], [9.0, 0.0, 0.0], [4.0] * 3],
    )
    alone = tuple(map(jain_of_tenants, timely, tokens))
    assert jain_of_tenants_by_row(np.array(timely), np.array(tokens)) == alone
    assert alone[1] is None


def test_tenants_are_refused_when_the_counts_differ_in_length_or_are_negative():
    with pytest.raises(ValueError, match=r"\(1, 2\) are not those of tokens \(1, 1\)"):
        jain_of_tenants([1, 2], [1])
    with pytest.raises(ValueError, match="not negative"):
        jain_of_tenants([-1, 2], [3, 3])
