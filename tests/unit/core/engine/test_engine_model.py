import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.engine_model import GPUS, EngineModel, UnknownConfiguration, engine_model, gpu
from core.engine.iteration import Totals
from core.types import Limits, Source
from tests.unit.laws import SPLITS

A100_TP4 = engine_model("Llama3-70B", "A100-80GB", 4)


def test_iteration_equals_the_reference_when_given_the_golden_batches(test_data: Path) -> None:
    rows = [json.loads(line) for line in (test_data / "engine_golden.jsonl").read_text().splitlines()]
    assert len(rows) == 29
    for row in rows:
        instance = EngineModel(row["model"], row["gpu"], row["tp"], row["engine"])
        prefills = [(new, context) for new, context in row["prefill"]]
        result = instance.iteration(row["mhz"], prefills, len(row["decode"]), sum(row["decode"]))
        expect = row["expect"]
        # The reference is rounded: times to a nanosecond, power to 0.1 mW, tokens to a tenth.
        assert result.t_s == pytest.approx(expect["t_s"], rel=1e-6)
        assert result.watts == pytest.approx(expect["watts"], rel=1e-6)
        assert result.gpu_watts == pytest.approx(expect["gpu_watts"], rel=1e-6)
        assert result.f_eff_mhz == pytest.approx(expect["f_eff_mhz"], rel=1e-6)
        assert instance.kv_capacity_tokens == pytest.approx(expect["kv_capacity_tokens"], rel=1e-6, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "field", "known"),
    [
        (("Llama9-1B", "A100-80GB", 4), "model", "Llama3-70B"),
        (("Llama3-70B", "T4", 4), "gpu", "H100-SXM-80GB"),
        (("Llama3-70B", "A100-80GB", 4, "ollama"), "engine", "vllm-v1"),
        (("Llama3-70B", "A100-80GB", 0), "tp", "whole numbers"),
    ],
)
def test_configuration_is_refused_when_a_part_is_unknown(
    arguments: tuple[str, str, int], field: str, known: str
) -> None:
    with pytest.raises(UnknownConfiguration, match=f"unknown {field} .*{known}"):
        EngineModel(*arguments)


def test_iteration_is_refused_when_there_is_nothing_to_do() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        A100_TP4.iteration(1410)


def test_power_is_the_idle_power_when_a_model_is_loaded_and_nothing_runs() -> None:
    a100 = gpu("A100-80GB")
    assert A100_TP4.idle_gpu_watts(1410) == pytest.approx(a100.idle_w + 0.5 * a100.c_clk)
    assert A100_TP4.idle_gpu_watts(210) < A100_TP4.idle_gpu_watts(1410)


def test_clock_is_brought_into_range_when_it_lies_outside() -> None:
    assert A100_TP4.iteration(9_999, (), 1, 100).f_eff_mhz == 1410
    assert A100_TP4.iteration(1, (), 1, 100).f_eff_mhz == 210


def test_gpu_keeps_its_tdp_when_a_batch_would_exceed_it() -> None:
    hot = engine_model("Llama2-13B", "A100-80GB", 1).iteration(1410, [(8192, 0)])
    assert hot.f_eff_mhz < 1410
    assert hot.gpu_watts <= 400.0
    assert hot.watts == pytest.approx(400.0, rel=1e-4)


def test_model_does_not_fit_when_its_weights_exceed_the_memory() -> None:
    assert not engine_model("Llama3-70B", "A100-80GB", 1).fits
    assert engine_model("Llama3-70B", "A100-80GB", 1).kv_capacity_tokens == 0.0
    assert A100_TP4.fits


def test_time_and_energy_are_linear_in_context_when_the_batch_is_constant() -> None:
    points = [A100_TP4.iteration(1005, (), 32, context) for context in (32_000, 33_000, 34_000)]
    assert points[1].t_s - points[0].t_s == pytest.approx(points[2].t_s - points[1].t_s)
    assert points[1].energy_j - points[0].energy_j == pytest.approx(points[2].energy_j - points[1].energy_j)


@given(
    st.sampled_from(SPLITS),
    st.sampled_from(sorted(GPUS)),
    st.floats(min_value=0.0, max_value=1.0),
    st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 4096)), max_size=3),
    st.integers(0, 256),
)
def test_iteration_is_physical_when_the_batch_is_anything(
    split: tuple[str, int], gpu_name: str, share: float, prefills: list[tuple[int, int]], decodes: int
) -> None:
    model, tp = split
    if not prefills and not decodes:
        decodes = 1
    params = gpu(gpu_name)
    mhz = params.f_min + share * (params.f_max - params.f_min)
    result = engine_model(model, gpu_name, tp).iteration(mhz, prefills, decodes, decodes * 500.0)
    assert result.t_s > 0.0
    assert params.idle_w < result.gpu_watts <= params.tdp_w
    assert params.f_min <= result.f_eff_mhz <= mhz * (1 + 1e-12)
    assert result.energy_j == pytest.approx(result.watts * result.t_s)
    assert result.source in (Source.MODELLED, Source.DATA_SHEET)


@given(st.floats(min_value=0.01, max_value=4.0), st.integers(16, 2048), st.integers(8, 800))
def test_batch_obeys_littles_law_when_the_rate_is_stable(rps: float, prompt: int, output: int) -> None:
    steady = A100_TP4.steady_state(rps, prompt, output, 1410)
    if steady.stable:
        assert steady.batch == pytest.approx(rps * steady.e2e_s, rel=1e-6)
        assert steady.e2e_s == pytest.approx(steady.ttft_s + output * steady.tpot_s)
        assert 4 * A100_TP4.idle_gpu_watts(1410) <= steady.power_w <= 4 * 400.0
    else:
        assert math.isinf(steady.e2e_s)
        assert steady.power_w <= 4 * 400.001


def test_instance_idles_when_there_are_no_requests() -> None:
    steady = A100_TP4.steady_state(0.0, 1000, 200, 1410)
    assert steady.batch == 0.0
    assert steady.power_w == pytest.approx(4 * A100_TP4.idle_gpu_watts(1410))


@pytest.mark.parametrize("limits", [Limits(), Limits(tpot_s=0.05), Limits(ttft_s=1.0, tpot_s=0.1, e2e_s=20.0)])
def test_largest_rate_is_the_edge_of_the_limits_when_it_is_exceeded(limits: Limits) -> None:
    most = A100_TP4.max_rps(1000, 200, 1410, limits)
    assert most > 0.0

    def keeps(rps: float) -> bool:
        steady = A100_TP4.steady_state(rps, 1000, 200, 1410)
        return steady.stable and all(
            limit is None or value <= limit
            for value, limit in (
                (steady.ttft_s, limits.ttft_s),
                (steady.tpot_s, limits.tpot_s),
                (steady.e2e_s, limits.e2e_s),
            )
        )

    assert keeps(most * 0.999)
    assert not keeps(most * 1.001)


def test_largest_rate_is_zero_when_even_a_lone_request_breaks_the_limits() -> None:
    assert A100_TP4.max_rps(1000, 200, 1410, Limits(tpot_s=0.001)) == 0.0


def test_rate_leaves_room_in_the_cache_when_bursts_are_to_find_it() -> None:
    tight = EngineModel("Llama3-70B", "A100-80GB", 2)
    full = tight.max_rps(1155, 211, 1410, Limits())
    spare = tight.max_rps(1155, 211, 1410, Limits(), spare_deviations=2.33)
    batch = tight.steady_state(spare, 1155, 211, 1410).batch
    assert 0.0 < spare < full
    assert (batch + 2.33 * batch**0.5) * (1155 + 211 / 2) == pytest.approx(tight.kv_capacity_tokens, rel=1e-3)


def test_largest_rate_is_zero_when_the_model_does_not_fit() -> None:
    lone = engine_model("Llama3-70B", "A100-80GB", 1)
    assert lone.max_rps(100, 100, 1410, Limits()) == 0.0
    assert not lone.steady_state(0.1, 100, 100, 1410).stable


def test_steady_state_agrees_with_freesh_when_at_its_published_load() -> None:
    """FREESH (arXiv 2511.00807), constants of its code: SL, A100 TP4, 2.52 requests/s; 37.7 ms TBT, batch 63.9."""
    steady = engine_model("Llama3-70B", "A100-80GB", 4, "vllm-freesh").steady_state(2.52, 100, 671.7, 1410)
    assert steady.tpot_s == pytest.approx(0.0377, rel=0.1)
    assert steady.batch == pytest.approx(63.9, rel=0.1)
    assert steady.power_w == pytest.approx(1231.5, rel=0.15)


def test_totals_cost_the_same_when_they_are_of_a_batch() -> None:
    instance = engine_model("Mixtral-8x7B", "H100-SXM-80GB", 2)
    prefills = [(512, 100), (64, 0)]
    totals = Totals(576.0, 100.0, 512 * 356.0 + 64 * 32.0, 2.0, 32.0, 30000.0)
    assert instance.iteration_of(1600.0, totals) == instance.iteration(1600.0, prefills, 32, 30000.0)
    assert Totals.plain(512, 32, 30000) == Totals(512.0, 0.0, 512.0**2 / 2, 1.0, 32.0, 30000.0)
    with pytest.raises(ValueError, match="at least one"):
        instance.iteration_of(1600.0, Totals())


def test_power_over_a_time_spreads_the_same_work_when_the_time_differs() -> None:
    instance = engine_model("Llama3-8B", "A100-80GB", 2)
    totals = Totals(decodes=16.0, context_tokens=16000.0)
    own = instance.iteration_of(1410.0, totals)
    assert instance.watts_over(1410.0, totals, own.t_s) == pytest.approx(own.watts)
    slow = instance.watts_over(1410.0, totals, 2 * own.t_s)
    still = 2 * (instance.gpu_params.idle_w + instance.gpu_params.c_clk)
    assert slow - still == pytest.approx((own.watts - still) / 2)
    assert instance.watts_over(1410.0, totals, own.t_s / 100) == 2 * 400.0


def test_constants_are_those_of_the_formulas_when_read() -> None:
    instance = engine_model("Llama3-8B", "A100-80GB", 2)
    assert instance.constants is instance._k
    assert instance.constants.kv_bytes == 2 * 32 * 8 * 128 * 2


def test_configuration_fits_when_it_has_room_for_one_block() -> None:
    assert engine_model("Llama3-70B", "A100-80GB", 4).fits
    assert not engine_model("Llama3-70B", "A100-80GB", 1).fits
