from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.accounting.counters import EnergyKind, MeterTrace, counter_at, plausible, split
from tests.fakes.meter_points import EnergySlice, MeterPoint, split_intervals, state_code, trace_of


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


def test_delta_is_divided_by_time_when_it_crosses_a_interval() -> None:
    slices = split_intervals([point(99.0, 0.0), point(101.0, 100.0)])
    assert [(piece.start_s, piece.end_s, piece.energy_j) for piece in slices] == [
        (99.0, 100.0, 50.0),
        (100.0, 101.0, 50.0),
    ]


def test_slices_are_merged_when_of_one_interval_and_kind() -> None:
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


def trace(*readings: tuple[float, float]) -> MeterTrace:
    """Of (seconds, joules)."""
    return trace_of([point(at_s, energy_j) for at_s, energy_j in readings])


def test_gpu_time_is_divided_with_the_energy_when_a_interval_saw_two_kinds() -> None:
    found = split_intervals([point(100.0, 0.0), point(103.0, 30.0, "ready", 1), point(110.0, 100.0, "ready", 0)])
    assert {piece.kind: piece.gpu_us for piece in found} == {
        EnergyKind.SERVING: 3_000_000,
        EnergyKind.UNATTRIBUTED: 7_000_000,
    }


def test_readings_are_passed_over_when_a_clock_was_set_back() -> None:
    """From 30 s on the clock is 20 s slow: its samples fall between those of before."""
    right = [(float(second), 5e6 + 300.0 * second) for second in range(31)]
    late = [(second + 0.5, 5e6 + 300.0 * (second + 20)) for second in range(11, 40)]
    seen = trace(*sorted(right + late))
    kept = seen.pick(plausible(seen, 800.0))
    assert int(split(kept).energy_uj.sum()) == round(300.0 * 59 * 1e6)


def test_low_reading_is_no_reset_when_the_counter_goes_on_from_where_it_was() -> None:
    seen = trace((0.0, 900_000.0), (1.0, 900_300.0), (2.0, 12.0), (3.0, 900_900.0))
    assert plausible(seen, 800.0).tolist() == [True, True, False, True]


def test_counter_starts_again_when_the_new_value_could_have_been_counted_since() -> None:
    seen = trace((0.0, 900_000.0), (1.0, 900_300.0), (60.0, 9_000.0), (61.0, 9_300.0))
    assert plausible(seen, 800.0).all()
    assert int(split(seen).energy_uj.sum()) == 9_600_000_000


STATES = st.sampled_from([(None, None), ("ready", 0), ("ready", 4), ("starting", None), ("draining", 1)])
STEPS = st.lists(
    st.tuples(st.integers(1, 30_000_000), st.integers(0, 50_000_000_000), STATES, st.booleans()),
    min_size=1,
    max_size=40,
)
Steps = list[tuple[int, int, tuple[str | None, int | None], bool]]


def walk(at_us: int, energy_uj: int, steps: Steps, resets: bool) -> MeterTrace:
    rows = [(at_us, energy_uj, 0, 0, -1)]
    for length_us, delta_uj, (state, running), reset in steps:
        at_us += length_us
        energy_uj = delta_uj if reset and resets else energy_uj + delta_uj
        rows.append((at_us, energy_uj, 7 if state else 0, state_code(state), -1 if running is None else running))
    return MeterTrace(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


@given(st.integers(0, 2 * 10**15), st.integers(0, 10**17), STEPS)
def test_not_a_microjoule_is_lost_when_split(at_us: int, energy_uj: int, steps: Steps) -> None:
    meter = walk(at_us, energy_uj, steps, resets=True)
    found = split(meter)
    energies = meter.energy_uj.tolist()
    assert int(found.energy_uj.sum()) == sum(b if b < a else b - a for a, b in pairwise(energies))
    assert int(found.gpu_us.sum()) == int(meter.at_us[-1] - meter.at_us[0])
    assert (found.energy_uj >= 0).all()
    assert (found.end_us > found.start_us).all()
    assert (found.start_us // 10**7 == found.interval).all()
    assert ((found.end_us - 1) // 10**7 == found.interval).all()
    keys = list(zip(found.interval.tolist(), found.kind.tolist(), found.instance.tolist(), strict=True))
    assert len(set(keys)) == len(keys)


@given(st.integers(0, 10**17), STEPS)
def test_each_interval_is_the_counters_difference_at_its_borders_when_there_is_no_reset(
    energy_uj: int, steps: Steps
) -> None:
    meter = walk(1_700_000_000_000_000, energy_uj, steps, resets=False)
    found = split(meter)
    for interval in np.unique(found.interval).tolist():
        borders = [max(int(meter.at_us[0]), interval * 10**7), min(int(meter.at_us[-1]), (interval + 1) * 10**7)]
        counters = []
        for border_us in borders:
            after = min(max(1, int(np.searchsorted(meter.at_us, border_us))), len(meter) - 1)
            counters.append(counter_at(meter.at(after - 1), meter.at(after), border_us))
        assert int(found.energy_uj[found.interval == interval].sum()) == counters[1] - counters[0]


@given(
    st.lists(st.tuples(st.integers(200_000, 3_000_000), st.floats(0.0, 700.0)), min_size=4, max_size=60),
    st.integers(0, 59),
    st.integers(-40_000_000, 40_000_000),
)
def test_clock_steps_neither_make_nor_lose_energy_when_readings_are_sorted(
    steps: list[tuple[int, float]], at: int, jump_us: int
) -> None:
    """From some sample on the node's clock is off: sorted by it, readings may interleave or leave a gap."""
    rows, at_us, energy_uj = [], 1_700_000_000_000_000, 10**13
    for number, (length_us, watts) in enumerate(steps):
        at_us += length_us
        energy_uj += round(watts * length_us)
        rows.append((at_us + (jump_us if number >= at else 0), energy_uj))
    rows = sorted(dict(reversed(rows)).items())
    seen = MeterTrace(*(np.array(c) for c in zip(*rows, strict=True)), *(np.zeros((3, len(rows)), dtype=np.int64)))
    kept = seen.pick(plausible(seen, 800.0))
    counters = kept.energy_uj.tolist()
    assert counters == sorted(counters)
    assert int(split(kept).energy_uj.sum()) == counters[-1] - counters[0]
