"""Whole amounts cut into whole shares: nothing is left over, and each share is as near as whole numbers can be."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.accounting.whole_shares import cut, whole_weights

WEIGHTS = st.lists(st.integers(0, 10**20), min_size=1, max_size=9).filter(any)


@given(st.integers(-(10**22), 10**22), WEIGHTS)
def test_shares_add_up_and_lie_within_one_of_the_exact_ones(total, weights):
    shares = cut(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(total * weight, sum(weights))) < 1


@pytest.mark.parametrize("weights", [[], [0, 0], [3, -1]])
def test_no_share_can_be_cut_when_weights_make_no_sense(weights):
    with pytest.raises(ValueError, match="above 0"):
        cut(5, weights)


def test_weights_keep_their_proportions_when_they_are_made_whole():
    assert whole_weights({"a": Fraction("0.5"), "b": Fraction("1.25"), "c": Fraction(2)}) == {"a": 2, "b": 5, "c": 8}
