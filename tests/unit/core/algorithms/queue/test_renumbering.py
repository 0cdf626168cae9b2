"""New numbers inside an engine: the order is the wanted one, and as few as possible get one."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.queue.renumbering import Place, renumbered

# Numbers with gaps and without.
places = st.lists(st.integers(-3, 12), max_size=9, unique=True).map(lambda found: [(n, 0.0) for n in found])
LATE_S = 1000.0


def after(wanted: list[Place], found: dict[int, int]) -> list[Place]:
    """The places once those with new numbers have come again, in the order wanted."""
    return [(found[n], LATE_S + n) if n in found else place for n, place in enumerate(wanted)]


def most_that_rise(wanted: list[Place]) -> int:
    return next(
        size
        for size in range(len(wanted), -1, -1)
        if any(all(a < b for a, b in pairwise(some)) for some in combinations(wanted, size))
    )


@given(places)
def test_engine_serves_in_the_order_wanted_and_as_few_as_possible_come_again(wanted: list[Place]) -> None:
    found = renumbered(wanted)
    assert len(found) == len(wanted) - most_that_rise(wanted)
    there = after(wanted, found)
    assert there == sorted(there)


def test_nobody_comes_again_when_the_order_is_the_wanted_one() -> None:
    assert renumbered([]) == {}
    assert renumbered([(5, 0.0), (5, 1.0), (9, 0.5)]) == {}


def test_one_that_is_to_go_first_is_ahead_of_all() -> None:
    assert renumbered([(900, 4.0), (100, 0.0), (200, 1.0)]) == {0: 99}


def test_one_that_is_to_go_last_is_behind_all() -> None:
    assert renumbered([(100, 0.0), (200, 1.0), (50, 2.0)]) == {2: 201}
