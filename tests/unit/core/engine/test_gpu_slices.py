"""Slices of GPUs: what each has, and what no instance can do on them."""

from __future__ import annotations

import pytest

from core.engine import gpu_slices
from core.engine.engine_model import UnknownConfiguration, UnsplittableModel, engine_model
from core.engine.engine_params import GPUS, fitted_engines, gpu, modelled_source, split_fault
from core.types import Mode


def test_a_slice_is_named_by_its_gpu_and_its_part() -> None:
    assert gpu_slices.sliced("A100-80GB", 2) == "A100-80GB/2"
    assert gpu_slices.sliced("A100-80GB", 1) == "A100-80GB"
    assert gpu_slices.whole("A100-80GB/2") == ("A100-80GB", 2)
    assert Mode.parse("A100-80GB/2/TP1") == Mode("A100-80GB/2", 1)


@pytest.mark.parametrize("name", ["A100-80GB", "A100-80GB/1", "A100-80GB/9", "A100-80GB/x", "A100-80GB/"])
def test_what_is_no_slice_is_a_type_of_its_own(name: str) -> None:
    assert gpu_slices.whole(name) == (name, 1)
    assert not gpu_slices.is_slice(name)


@pytest.mark.parametrize("slices", [0, -1, gpu_slices.MOST + 1])
def test_a_gpu_is_cut_into_so_many_slices_at_most(slices: int) -> None:
    with pytest.raises(ValueError, match="cut into 1 to 8 slices"):
        gpu_slices.sliced("A100-80GB", slices)


@pytest.mark.parametrize("name", ["A100-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "V100-PCIe-32GB"])
@pytest.mark.parametrize("slices", [2, 3, 7])
def test_slices_add_up_to_their_gpu(name: str, slices: int) -> None:
    own, one = gpu(name), gpu(gpu_slices.sliced(name, slices))
    for field in ("peak_flops", "hbm_bw", "mem_gb", "tdp_w", "idle_w"):
        assert slices * getattr(one, field) == pytest.approx(getattr(own, field))
    for mhz in (own.f_min, own.f_v, own.f_max):
        assert slices * one.loaded_idle_w(mhz) == pytest.approx(own.loaded_idle_w(mhz))
    assert (one.f_min, one.f_max) == (own.f_min, own.f_max)


def test_a_slice_is_known_as_well_as_its_gpu() -> None:
    for engine in ("vllm-v1", "vllm-2024"):
        assert modelled_source(engine, "A100-80GB/2") is modelled_source(engine, "A100-80GB")
    assert fitted_engines("A100-80GB/2") == fitted_engines("A100-80GB")


def test_slices_are_found_and_not_listed() -> None:
    assert "A100-80GB/2" in GPUS
    assert not any(map(gpu_slices.is_slice, GPUS))
    with pytest.raises(UnknownConfiguration, match="unknown gpu 'Nothing/2'"):
        gpu("Nothing/2")


def test_an_instance_has_one_slice() -> None:
    with pytest.raises(UnsplittableModel, match="TP is 1"):
        engine_model("Llama3-8B", "A100-80GB/2", 2)
    assert "TP is 1" in split_fault("Llama3-8B", "A100-80GB/2", 2)
    assert not split_fault("Llama3-8B", "A100-80GB/2", 1)
    assert not split_fault("Llama3-8B", "A100-80GB", 2)


def test_an_engine_on_half_a_gpu_serves_less_than_half() -> None:
    """Its kernels are as slow to launch, and weights take the same memory of half of it."""
    whole, half = engine_model("Llama3-8B", "A100-80GB", 1), engine_model("Llama3-8B", "A100-80GB/2", 1)
    assert 0.0 < half.kv_capacity_tokens < whole.kv_capacity_tokens / 2
    assert not engine_model("Llama3-8B", "A100-80GB/8", 1).fits
