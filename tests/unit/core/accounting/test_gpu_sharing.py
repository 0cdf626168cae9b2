"""Engines on slices of one GPU: who has how much of its energy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.accounting.counters import IDLE, SERVING, TRANSITION, Slices
from core.accounting.gpu_sharing import Sharer, divided

INTERVAL_US = 10_000_000
A, B = 11, 12


def rows(*found: tuple[int, int, int]) -> Slices:
    """Rows of interval 0: kind, instance and energy; each for all of it."""
    each = [(0, kind, instance, 0, INTERVAL_US, energy_uj, INTERVAL_US) for kind, instance, energy_uj in found]
    return Slices(*np.array(each, dtype=np.int64).T)


def sharer(instance: int, work: float = 0.0, since_us: int = -1) -> Sharer:
    return Sharer(instance, since_us, 1 << 62, {0: work} if work else {})


def read(found: Slices) -> dict[tuple[int, int], tuple[int, int]]:
    names = ("kind", "instance", "energy_uj", "gpu_us")
    columns = (getattr(found, name).tolist() for name in names)
    return {(kind, one): (energy, us) for kind, one, energy, us in zip(*columns, strict=True)}


def test_idle_power_goes_by_slices_and_what_is_above_it_by_work() -> None:
    # 3,000 J in 10 s, of which 50 W x 10 s = 500 J are idle power
    found = divided(rows((SERVING, A, 3_000_000_000)), [sharer(A, 3.0), sharer(B, 1.0)], 2, 50.0)
    assert read(found) == {
        (SERVING, A): (250_000_000 + 1_875_000_000, 5_000_000),
        (SERVING, B): (250_000_000 + 625_000_000, 5_000_000),
    }


def test_engine_without_work_and_slice_without_engine_are_idle() -> None:
    found = divided(rows((SERVING, A, 3_000_000_000)), [sharer(A, 3.0), sharer(B)], 4, 40.0)
    assert read(found) == {
        (IDLE, 0): (200_000_000, 5_000_000),
        (IDLE, B): (100_000_000, 2_500_000),
        (SERVING, A): (2_700_000_000, 2_500_000),
    }


def test_others_than_served_energy_is_equal_parts() -> None:
    found = divided(rows((IDLE, A, 1_001), (TRANSITION, B, 10)), [sharer(A), sharer(B)], 2, 50.0)
    assert sum(energy for energy, _ in read(found).values()) == 1_011
    assert read(found)[TRANSITION, A] == (5, 5_000_000)


def test_row_is_left_alone_where_nobody_had_a_slice() -> None:
    alone = rows((IDLE, 0, 500), (SERVING, A, 700))
    assert read(divided(alone, [sharer(A, 1.0, since_us=INTERVAL_US)], 2, 50.0)) == read(alone)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, A, B]), st.integers(0, 10**10)), max_size=6),
    st.lists(st.floats(0.0, 1e6), min_size=1, max_size=4),
    st.floats(0.0, 500.0),
)
def test_parts_add_up_to_the_meter(given_rows: list[tuple[int, int, int]], work: list[float], idle_w: float) -> None:
    if not given_rows:
        return
    whole = rows(*given_rows)
    found = divided(whole, [sharer(A + n, own) for n, own in enumerate(work)], 4, idle_w)
    assert found.energy_uj.sum() == whole.energy_uj.sum()
    assert found.gpu_us.sum() == whole.gpu_us.sum()
    assert (found.energy_uj >= 0).all()
