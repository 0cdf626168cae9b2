"""The kernel's port of the engine model, and its arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine import compiled_model
from core.engine.engine_model import ENGINES, GPUS, engine_model
from core.simulator.kernel import kernel
from core.simulator.kernel.simulated import FixedCosts, InstanceSpec
from core.simulator.kernel.worlds import cost_row
from tests.oracles.token_by_token import iteration
from tests.unit.laws import SPLITS, examples

QUICK = settings(max_examples=examples(80), deadline=None)


@QUICK
@given(
    st.sampled_from(SPLITS),
    st.sampled_from(sorted(GPUS)),
    st.sampled_from(sorted(ENGINES)),
    st.floats(0.0, 1.2),
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 8000)), max_size=3),
    st.integers(0, 256),
    st.floats(0, 500_000),
)
def test_iteration_equals_the_engine_model_when_batches_are_random(
    split: tuple[str, int],
    gpu: str,
    engine: str,
    share: float,
    prefills: list[tuple[int, int]],
    decodes: int,
    k: float,
) -> None:
    model, tp = split
    if not prefills and not decodes:
        decodes = 1
    scalar = engine_model(model, gpu, tp, engine)
    mhz = share * GPUS[gpu].f_max
    expect = scalar.iteration(mhz, prefills, decodes, k)
    costs = cost_row(InstanceSpec("i", model, gpu, tp, GPUS[gpu].f_max, engine, kv_capacity_tokens=1))
    new, cached = sum(n for n, _ in prefills), sum(c for _, c in prefills)
    pairs = sum(n * (c + n / 2.0) for n, c in prefills)
    t_s, energy_j, regime = compiled_model.iteration(
        costs, mhz, float(new), float(cached), pairs, float(len(prefills)), float(decodes), k
    )
    # A throttled clock is found by bisection, where the last bit of one step may move the next.
    close = 1e-12 if regime != 2 else 1e-7
    assert t_s == pytest.approx(expect.t_s, rel=close)
    assert energy_j == pytest.approx(expect.energy_j, rel=close)
    clock = GPUS[gpu].clamp_mhz(mhz)
    assert (regime == 2) == (expect.f_eff_mhz < clock)
    assert compiled_model.idle_watts(costs, mhz) == pytest.approx(tp * scalar.idle_gpu_watts(mhz), rel=1e-12)


@QUICK
@given(st.floats(1e-4, 1.0), st.floats(0.0, 1e-3), st.integers(1, 5000), st.floats(0.0, 1.1))
def test_terms_within_counts_the_terms_that_fit_when_the_series_is_arithmetic(
    first: float, slope: float, m: int, share: float
) -> None:
    total = share * kernel.series(first, slope, m)
    fit = kernel.terms_within(first, slope, m, total)
    assert kernel.series(first, slope, fit) <= total or fit == 0
    assert fit == m or kernel.series(first, slope, fit + 1) > total


@QUICK
@given(st.floats(1e-3, 1.0), st.floats(0.0, 1e-3), st.integers(1, 500))
def test_gaps_are_counted_as_one_by_one_when_a_jump_crosses_bins(first: float, slope: float, m: int) -> None:
    jumped, walked = np.zeros(kernel.OWN_BINS, np.int32), np.zeros(kernel.OWN_BINS, np.int32)
    kernel.count_gaps(jumped, kernel.OWN_MIN_S, kernel.OWN_BINS_PER_E, first, slope, m, 3)
    for j in range(m):
        kernel.count_gaps(walked, kernel.OWN_MIN_S, kernel.OWN_BINS_PER_E, first + slope * j, 0.0, 1, 3)
    assert jumped.sum() == 3 * m
    np.testing.assert_allclose(np.cumsum(jumped), np.cumsum(walked), atol=3)  # one gap may sit on a bin's edge


def test_fixed_costs_are_the_same_in_both_forms_when_asked_for_one_iteration() -> None:
    fixed = FixedCosts(0.5, 0.25, 0.125, busy_w=100.0, idle_w=10.0)
    spec = InstanceSpec("i", "fixed", "fixed", 1, 1.0, costs=fixed)
    expect = iteration(fixed, 1.0, [(3, 0)], 2, 10.0)
    t_s, energy_j, _ = compiled_model.iteration(cost_row(spec), 1.0, 3.0, 0.0, 4.5, 1.0, 2.0, 10.0)
    assert (t_s, energy_j) == (expect.t_s, expect.energy_j) == (1.5, 150.0)
