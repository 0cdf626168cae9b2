from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.engine_model import ENGINES, GPUS, engine_model
from core.engine.engine_vector import iterations
from core.types import Source
from tests.unit.laws import SPLITS

FIELDS = ("t_s", "watts", "gpu_watts", "f_eff_mhz", "energy_j")


@given(
    st.sampled_from(SPLITS),
    st.sampled_from(sorted(GPUS)),
    st.sampled_from(sorted(ENGINES)),
    st.lists(
        st.tuples(
            st.floats(100.0, 2500.0),  # clocks outside the range included
            st.integers(0, 8192),
            st.integers(0, 4096),
            st.integers(1, 3),
            st.integers(1, 256),
            st.integers(0, 400_000),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_arrays_equal_the_scalar_model_when_given_the_same_batches(
    split: tuple[str, int], gpu: str, engine: str, rows: list[tuple[float, int, int, int, int, int]]
) -> None:
    model, tp = split
    instance = engine_model(model, gpu, tp, engine)
    mhz, new, cached, count, batch, context = (np.array(column) for column in zip(*rows, strict=True))
    found = iterations(
        instance,
        mhz,
        prefill_tokens=new,
        prefill_context=cached,
        prefills=count,
        decodes=batch,
        context_tokens=context,
    )
    for n, (f, tokens, past, many, decodes, total) in enumerate(rows):
        expect = instance.iteration(f, [(tokens, past)] * many if tokens else [], decodes, total)
        for name in FIELDS:
            assert getattr(found, name)[n] == pytest.approx(getattr(expect, name), rel=1e-12), name


def test_throttled_rows_alone_are_slowed_when_others_keep_below_the_tdp() -> None:
    instance = engine_model("Llama2-13B", "A100-80GB", 1)
    found = iterations(instance, 1410, prefill_tokens=[0, 8192], decodes=[1, 0], context_tokens=[500, 0])
    assert found.f_eff_mhz[0] == 1410
    assert found.f_eff_mhz[1] < 1410
    assert found.gpu_watts[1] <= 400.0
    expect = instance.iteration(1410, [(8192, 0)])
    assert found.t_s[1] == pytest.approx(expect.t_s, rel=1e-12)
    assert found.f_eff_mhz[1] == pytest.approx(expect.f_eff_mhz, rel=1e-12)


def test_shapes_broadcast_when_clocks_meet_batches_and_configurations() -> None:
    clocks = np.arange(600, 1411, 90)[:, None]
    batches = np.array([1, 8, 64])[None, :]
    instances = [engine_model("Mixtral-8x7B", "A100-80GB", tp) for tp in (2, 4)]
    found = iterations(instances, clocks, decodes=batches, context_tokens=batches * 700.0)
    assert found.t_s.shape == (2, clocks.size, 3)
    assert found.source is Source.MODELLED
    expect = instances[1].iteration(690, (), 8, 5600.0)
    assert found.energy_j[1, 1, 1] == pytest.approx(expect.energy_j, rel=1e-12)


def test_evaluation_is_refused_when_a_row_has_nothing_to_do() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        iterations(engine_model("Llama3-8B", "A100-80GB", 1), 1410, decodes=[1, 0])
    with pytest.raises(ValueError, match="no configuration"):
        iterations([], 1410, decodes=1)
