"""What pools hand on: by turns, to within one request of each share."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.request.hand_on import HandOn


def test_every_fourth_request_goes_on_when_the_share_is_a_quarter() -> None:
    turns = HandOn()
    entered = [turns.enter(0, [0.25, 0.0]) for _ in range(400)]
    assert entered.count(1) == 100
    assert all(sum(entered[n : n + 4]) == 1 for n in range(0, 400, 4))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0, 0.0, 0.0], {0: 100}),
        ([1.0, 0.0, 0.0], {1: 100}),
        ([1.0, 1.0, 0.0], {2: 100}),
        ([0.5, 0.5, 0.0], {0: 50, 1: 25, 2: 25}),
        ([0.3, 0.0, 1.0], {0: 70, 1: 30}),
        ([0.0, 0.0, 1.0], {0: 100}),
    ],
)
def test_shares_of_a_chain_are_parts_of_what_comes_to_each_pool(shares: list[float], expected: dict[int, int]) -> None:
    turns = HandOn()
    assert Counter(turns.enter(0, shares) for _ in range(100)) == expected


def test_largest_class_hands_on_nothing() -> None:
    assert HandOn().enter(1, [1.0, 1.0]) == 1


@given(share=st.floats(0.0, 1.0), others=st.lists(st.booleans(), max_size=200))
def test_any_stretch_of_a_pool_s_requests_keeps_its_share_to_one(share: float, others: list[bool]) -> None:
    """Whoever else comes: requests of the larger class do not count."""
    turns, own, passed = HandOn(), 0, 0
    for larger in others:
        if larger:
            assert turns.enter(1, [share, 0.0]) == 1
            continue
        own += 1
        passed += turns.enter(0, [share, 0.0])
        assert abs(passed - share * own) <= 1.0 + 1e-6
