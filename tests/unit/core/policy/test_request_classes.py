from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.request_classes import ClassGrid, classify


@dataclass(frozen=True)
class Cell:
    name: str
    rank: int
    input_min: int = 0
    input_max: int | None = None
    output_min: int = 0
    output_max: int | None = None


FREESH_A = (
    Cell("SS", 0, 0, 184, 0, 444),
    Cell("SL", 1, 0, 184, 444, None),
    Cell("LS", 2, 184, None, 0, 444),
    Cell("LL", 3, 184, None, 444, None),
)


@pytest.mark.parametrize(
    ("prompt", "output", "name"),
    [(0, 0, "SS"), (183, 443, "SS"), (184, 443, "LS"), (183, 444, "SL"), (184, 444, "LL"), (14050, 1000, "LL")],
)
def test_class_contains_the_lengths_when_bounds_are_half_open(prompt: int, output: int, name: str) -> None:
    assert classify(FREESH_A, prompt, output) == name


def test_smallest_class_above_takes_it_when_bounds_leave_a_gap() -> None:
    cells = (Cell("L", 2, 200, 400, 0, 100), Cell("M", 1, 100, 200, 0, 100))
    assert classify(cells, 50, 10) == "M"


def test_largest_class_takes_it_when_longer_than_all() -> None:
    cells = (Cell("S", 0, 0, 100, 0, 100), Cell("L", 1, 100, 200, 0, 100))
    assert classify(cells, 5000, 10) == "L"


def test_classification_is_refused_when_there_is_no_class() -> None:
    with pytest.raises(ValueError, match="at least one class"):
        classify((), 1, 1)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_exactly_one_class_contains_a_request_when_the_partition_is_whole(prompt: int, output: int) -> None:
    holding = [
        cell.name
        for cell in FREESH_A
        if cell.input_min <= prompt
        and (cell.input_max is None or prompt < cell.input_max)
        and cell.output_min <= output
        and (cell.output_max is None or output < cell.output_max)
    ]
    assert holding == [classify(FREESH_A, prompt, output)]


@st.composite
def _partitions(draw: st.DrawFn) -> list[Cell]:
    """Any classes: they may overlap and leave gaps."""
    lengths = st.integers(0, 30)
    bounds = st.none() | lengths
    return [
        Cell(str(n), draw(st.integers(0, 3)), draw(lengths), draw(bounds), draw(lengths), draw(bounds))
        for n in range(draw(st.integers(1, 6)))
    ]


@given(_partitions(), st.integers(0, 35), st.integers(0, 35), st.integers(0, 35))
def test_grid_says_the_same_as_the_classes(cells: list[Cell], prompt: int, output: int, longer: int) -> None:
    grid = ClassGrid(cells)
    assert grid.name(prompt, output) == classify(cells, prompt, output)
    borders = {length for cell in cells for length in (cell.input_min, cell.input_max) if length}
    low, high = sorted((prompt, longer))
    assert grid.has_border(low, high) == any(low < border <= high for border in borders)


def test_grid_is_refused_when_there_is_no_class() -> None:
    with pytest.raises(ValueError, match="at least one class"):
        ClassGrid(())
