"""AMD's GPUs as meters, against answers of amdsmi that are made by hand (tests/fakes/amd_smi.py)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from core.engine import gpu_types
from core.engine.engine_params import FITTED
from core.engine.gpu_types import SHIPPED
from core.ports import PermanentError, RetryableError
from pools.agent.devices.amd import AmdGpuMeter, NoAmdClocks
from pools.agent.join_fleet import offer
from tests.fakes.amd_smi import FakeAmdGpu, FakeAmdSmi

NOT_SUPPORTED, TIMED_OUT, NO_PERMISSION, NO_DRIVER = 2, 8, 10, 34


def meter(smi: FakeAmdSmi) -> AmdGpuMeter:
    return AmdGpuMeter(5.0, lambda: smi)


def test_reading_has_the_drivers_figures_in_our_units() -> None:
    gpus = meter(FakeAmdSmi(FakeAmdGpu("a"), FakeAmdGpu("b")))
    first, second = gpus.read()
    assert (first.uuid, second.uuid, first.index, second.index) == ("a", "b", 0, 1)
    assert first.energy_j == pytest.approx(15.3)  # a million steps of 15.3 uJ
    assert (first.power_w, first.utilisation, first.temperature_c) == (550.0, 0.87, 61.0)
    assert (first.sm_clock_mhz, first.min_mhz, first.max_mhz, first.memory_clock_mhz) == (1800.0, 132.0, 2100.0, 1300.0)
    assert (first.memory_used_bytes, first.ecc_errors) == (1 << 30, 1)
    gpus.close()


def test_energy_is_read_when_the_library_is_older_than_its_new_name() -> None:
    old = FakeAmdGpu("a", energy={"power": 2_000_000, "counter_resolution": 15.3, "timestamp": 1})
    assert meter(FakeAmdSmi(old)).read()[0].energy_j == pytest.approx(30.6)


def test_figures_are_missing_and_named_when_a_gpu_does_not_tell_them() -> None:
    shy = FakeAmdGpu("a", fails={"energy": NOT_SUPPORTED, "ecc": NOT_SUPPORTED})
    die = FakeAmdGpu("b", energy={"energy_accumulator": "N/A", "counter_resolution": 15.3, "timestamp": 1})
    die.power = {"current_socket_power": "N/A", "average_socket_power": 300, "power_limit": "N/A"}
    gpus = meter(FakeAmdSmi(shy, die))
    first, second = gpus.read()
    assert (first.energy_j, first.ecc_errors, second.energy_j, second.power_w) == (None, None, None, 300.0)
    assert "a does not tell: energy counter, ECC errors" in gpus.notices()
    assert "b does not tell: energy counter" in gpus.notices()


def test_gpu_is_left_out_and_named_when_it_fails() -> None:
    bad = FakeAmdGpu("a")
    gpus = meter(FakeAmdSmi(bad, FakeAmdGpu("b")))
    gpus.read()
    bad.fails["energy"] = TIMED_OUT
    assert [reading.uuid for reading in gpus.read()] == ["b"]
    assert any("cannot read a" in notice for notice in gpus.notices())
    bad.fails.clear()
    assert [reading.uuid for reading in gpus.read()] == ["a", "b"]


@pytest.mark.parametrize(("code", "kind"), [(TIMED_OUT, RetryableError), (NO_PERMISSION, PermanentError)])
def test_fault_says_whether_another_try_may_help_when_no_gpu_answers(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="cannot read a"):
        meter(FakeAmdSmi(FakeAmdGpu("a", fails={"energy": code}))).read()


def test_library_is_not_asked_each_second_when_it_cannot_be_opened() -> None:
    smi = FakeAmdSmi(FakeAmdGpu("a"))
    smi.init_fails = NO_DRIVER
    gpus = meter(smi)
    with pytest.raises(PermanentError, match="cannot open AMD SMI: no driver"):
        gpus.read()
    with pytest.raises(RetryableError, match="within a minute"):
        gpus.read()


def test_inventory_describes_the_gpus_when_the_node_joins() -> None:
    smi = FakeAmdSmi(FakeAmdGpu("a"))
    gpus = meter(smi)
    found = gpus.inventory()
    (gpu,) = found.gpus
    assert found.driver == "amdgpu 6.12.12"
    assert (gpu.name, gpu.memory_bytes, gpu.clocks_mhz, gpu.tdp_w) == (
        "AMD Instinct MI300X",
        196_592 << 20,
        (132.0, 2100.0),
        750.0,
    )
    gpus.close()
    assert smi.opened == 0


def test_extra_is_named_when_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(PermanentError, match=r"pip install 'greenserve\[amd\]'"):
        AmdGpuMeter(5.0).read()


def test_clocks_are_not_set_when_gpus_are_amds() -> None:
    assert "metered only" in NoAmdClocks().refusal()


def test_joining_machine_offers_a_sheet_of_what_it_does_not_know() -> None:
    """Of an MI300X under another name: near the shipped type's figures."""
    smi = FakeAmdSmi(FakeAmdGpu("a", name="AMD Instinct MI399X"), FakeAmdGpu("b"))
    gpus, known = meter(smi), SHIPPED["MI300X-192GB"]
    first, second = offer("token", "box-1", gpus.inventory()).gpus
    assert second.sheet is None
    found = first.sheet
    assert found is not None
    assert (found.name, found.source, found.like) == (
        "AMD-Instinct-MI399X",
        "as the driver says, node box-1",
        known.like,
    )
    for field in ("peak_flops", "fp8_flops", "hbm_bw", "mem_gb", "tdp_w", "f_max", "f_min", "link_bw"):
        assert getattr(found, field) == pytest.approx(getattr(known, field), rel=0.01), field
    assert found.fp4_flops == 0.0
    assert set(found.assumed) == {"peak_flops", "fp8_flops", "hbm_bw", "link_bw", "idle_w"}
    found.check(FITTED)
    gpus.read()
    assert "MI399X is no GPU type of the catalogue" in "\n".join(gpus.notices())
    gpu_types.declare([found])  # as its desired state says then
    try:
        gpus.read()
        assert gpus.notices() == ()
    finally:
        gpu_types.declare(())


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"asic": {"num_compute_units": 304, "target_graphics_version": "gfx1500"}}, ["FLOP/s"]),
        ({"vram": {"vram_type": 0, "vram_bit_width": 8192}}, ["memory bandwidth"]),
        ({"vram": {"vram_type": "VRAM_TYPE_DDR4", "vram_bit_width": 8192}}, ["memory bandwidth"]),
        ({"fails": {"vram info": NOT_SUPPORTED}}, ["memory bandwidth"]),
        ({"power": {"power_limit": "N/A"}}, ["TDP"]),
    ],
)
def test_what_the_driver_does_not_tell_is_named(changes: dict[str, Any], lacks: list[str]) -> None:
    gpus = meter(FakeAmdSmi(FakeAmdGpu("a", name="AMD Instinct MI399X", **changes)))
    (gpu,) = offer("token", "box-1", gpus.inventory()).gpus
    assert (gpu.sheet, gpu.lacking) == (None, lacks)
    gpus.read()
    assert f"does not tell its {lacks[0]}: enter a GPU type AMD-Instinct-MI399X" in "\n".join(gpus.notices())


def test_links_are_pcie_where_there_are_no_others() -> None:
    (gpu,) = meter(FakeAmdSmi(FakeAmdGpu("a", name="AMD Radeon X", links=[]))).inventory().gpus
    assert gpu.sheet is not None
    assert gpu.sheet.link_bw == pytest.approx(128e9, rel=0.01)  # generation 5, 16 lanes, both directions
