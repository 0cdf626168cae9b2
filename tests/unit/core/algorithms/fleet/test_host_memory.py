"""Whose weights stay in a machine's memory while engines sleep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.fleet.host_memory import with_one_more


def test_those_that_have_slept_longest_give_way() -> None:
    kept = {"a": 4.0, "b": 3.0, "c": 2.0}
    assert with_one_more(kept, "d", 1.0, 10.0) == {**kept, "d": 1.0}
    assert with_one_more(kept, "d", 2.0, 10.0) == {"b": 3.0, "c": 2.0, "d": 2.0}
    assert with_one_more(kept, "d", 10.0, 10.0) == {"d": 10.0}
    assert with_one_more(kept, "d", 11.0, 10.0) == kept, "nobody gives way to what does not fit at all"


def test_one_that_falls_asleep_again_has_slept_shortest() -> None:
    assert list(with_one_more({"a": 1.0, "b": 1.0}, "a", 1.0, 2.0)) == ["b", "a"]


@given(st.lists(st.floats(0.1, 9.0), max_size=12), st.floats(1.0, 20.0))
def test_all_together_never_exceed_the_room(sizes: list[float], room: float) -> None:
    kept: dict[str, float] = {}
    for number, size in enumerate(sizes):
        kept = with_one_more(kept, str(number), size, room)
        assert sum(kept.values()) <= room
