import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.accounting import EnergyKind, EnergySlice, MeterPoint, split_intervals


def point(at_s: float, energy_j: float, state: str | None = None, running: int | None = None) -> MeterPoint:
    held = state is not None
    return MeterPoint(at_s, energy_j, 7 if held else None, 3 if held else None, state, running)


def only(slices: list[EnergySlice]) -> EnergySlice:
    assert len(slices) == 1
    return slices[0]


@pytest.mark.parametrize(
    ("state", "running", "kind"),
    [
        (None, None, EnergyKind.IDLE),
        ("ready", 3, EnergyKind.SERVING),
        ("ready", 0, EnergyKind.IDLE),
        ("ready", None, EnergyKind.UNATTRIBUTED),
        ("starting", None, EnergyKind.TRANSITION),
        ("draining", 2, EnergyKind.SERVING),
        ("draining", 0, EnergyKind.TRANSITION),
        ("failed", None, EnergyKind.IDLE),
        ("unheard-of", 1, EnergyKind.UNATTRIBUTED),
    ],
)
def test_kind_follows_what_the_later_sample_saw_when_split(
    state: str | None, running: int | None, kind: EnergyKind
) -> None:
    piece = only(split_intervals([point(100.0, 10.0), point(101.0, 60.0, state, running)]))
    assert (piece.kind, piece.energy_j) == (kind, 50.0)
    assert piece.instance_id == (None if state is None else 7)


def test_energy_is_unattributed_when_samples_are_missing() -> None:
    piece = only(split_intervals([point(100.0, 0.0, "ready", 1), point(106.0, 60.0, "ready", 1)]))
    assert (piece.kind, piece.pool_id, piece.energy_j) == (EnergyKind.UNATTRIBUTED, None, 60.0)


def test_new_value_is_unattributed_when_the_counter_was_reset() -> None:
    slices = split_intervals(
        [point(100.0, 900.0, "ready", 1), point(101.0, 40.0, "ready", 1), point(102.0, 90.0, "ready", 1)]
    )
    assert {piece.kind: piece.energy_j for piece in slices} == {EnergyKind.UNATTRIBUTED: 40.0, EnergyKind.SERVING: 50.0}


def test_delta_is_divided_by_time_when_it_crosses_a_cell() -> None:
    slices = split_intervals([point(99.0, 0.0), point(101.0, 100.0)])
    assert [(piece.start_s, piece.end_s, piece.energy_j) for piece in slices] == [
        (99.0, 100.0, 50.0),
        (100.0, 101.0, 50.0),
    ]


def test_slices_are_merged_when_of_one_cell_and_kind() -> None:
    points = [point(100.0 + i, 10.0 * i, "ready", 1 if i % 2 else 0) for i in range(11)]
    slices = split_intervals(points)
    assert [(piece.kind, piece.energy_j) for piece in slices] == [
        (EnergyKind.SERVING, 50.0),
        (EnergyKind.IDLE, 50.0),
    ]


def test_nothing_is_split_when_there_is_at_most_one_sample() -> None:
    assert split_intervals([]) == []
    assert split_intervals([point(1.0, 2.0)]) == []


def test_samples_are_refused_when_out_of_order() -> None:
    with pytest.raises(ValueError, match="order of time"):
        split_intervals([point(2.0, 0.0), point(1.0, 5.0)])


STATES = st.sampled_from([(None, None), ("ready", 0), ("ready", 4), ("starting", None), ("draining", 1)])
STEPS = st.lists(
    st.tuples(st.floats(0.01, 30.0), st.floats(0.0, 50_000.0), STATES, st.booleans()), min_size=1, max_size=40
)


@given(st.floats(0.0, 2e9), st.floats(0.0, 1e9), STEPS)
def test_no_joule_is_lost_when_split(
    at_s: float, energy_j: float, steps: list[tuple[float, float, tuple[str | None, int | None], bool]]
) -> None:
    points = [point(at_s, energy_j)]
    for length_s, delta_j, (state, running), reset in steps:
        at_s += length_s
        energy_j = delta_j if reset else energy_j + delta_j
        points.append(point(at_s, energy_j, state, running))
    slices = split_intervals(points)
    metered = math.fsum(b.energy_j - (0.0 if b.energy_j < a.energy_j else a.energy_j) for a, b in pairwise(points))
    largest = max(p.energy_j for p in points)
    assert math.fsum(piece.energy_j for piece in slices) == pytest.approx(metered, rel=1e-9, abs=1e-9 * largest)
    for piece in slices:
        assert piece.energy_j >= 0.0
        assert piece.end_s > piece.start_s
        assert math.floor(piece.start_s / 10.0) >= math.floor(piece.end_s / 10.0) - 1
    assert len({(piece.start_s, piece.kind, piece.instance_id) for piece in slices}) == len(slices)


@given(STEPS)
def test_slices_add_up_to_the_counter_when_it_never_resets(
    steps: list[tuple[float, float, tuple[str | None, int | None], bool]],
) -> None:
    at_s, energy_j = 1_700_000_000.0, 5e6
    points = [point(at_s, energy_j)]
    for length_s, delta_j, (state, running), _ in steps:
        at_s, energy_j = at_s + length_s, energy_j + delta_j
        points.append(point(at_s, energy_j, state, running))
    total = math.fsum(piece.energy_j for piece in split_intervals(points))
    assert total == pytest.approx(points[-1].energy_j - points[0].energy_j, rel=1e-9, abs=1e-6)
