"""Data sheets from the driver's figures: near those that NVIDIA publishes, and none where a figure is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.engine import gpu_types
from core.engine.engine_model import engine_model
from core.engine.engine_params import FITTED
from core.engine.gpu_types import SHIPPED
from pools.agent.devices.nvml import NvmlGpuMeter
from pools.agent.devices.nvml_sheet import DriverFigures, lacking, sheet
from pools.agent.join_fleet import offer
from tests.fakes.nvml import NOT_SUPPORTED, Boards

# As the driver reports them: capability, cores, top SM clock, memory clock, bus, NVLinks, PCIe; beside them the data
# sheet's TFLOP/s and GB/s.
BOARDS = {
    "Tesla T4": ((7, 5), 2560, 1590.0, 5001.0, 256, 0, (3, 16), 65.0, 320.0),
    "Tesla V100-SXM2-32GB": ((7, 0), 5120, 1530.0, 877.0, 4096, 6, (3, 16), 125.0, 900.0),
    "NVIDIA A100-SXM4-80GB": ((8, 0), 6912, 1410.0, 1593.0, 5120, 12, (4, 16), 312.0, 2039.0),
    "NVIDIA A10": ((8, 6), 9216, 1695.0, 6251.0, 384, 0, (4, 16), 125.0, 600.0),
    "NVIDIA GeForce RTX 3090": ((8, 6), 10496, 1695.0, 9751.0, 384, 0, (4, 16), 71.0, 936.0),
    "NVIDIA L40S": ((8, 9), 18176, 2520.0, 9001.0, 384, 0, (4, 16), 362.0, 864.0),
    "NVIDIA GeForce RTX 4090": ((8, 9), 16384, 2520.0, 10501.0, 384, 0, (4, 16), 165.0, 1008.0),
    "NVIDIA H100 80GB HBM3": ((9, 0), 16896, 1980.0, 2619.0, 5120, 18, (5, 16), 989.0, 3350.0),
    "NVIDIA B200": ((10, 0), 18944, 1965.0, 3996.0, 8192, 18, (5, 16), 2250.0, 8000.0),
    "NVIDIA RTX PRO 6000": ((12, 0), 24064, 2617.0, 14001.0, 512, 0, (5, 16), 504.0, 1792.0),
}


def figures(name: str) -> DriverFigures:
    capability, cores, top_mhz, memory_mhz, bus_bits, nvlinks, pcie, _, _ = BOARDS[name]
    clocks = (210.0, top_mhz)
    more = {"capability": capability, "cores": cores, "memory_mhz": memory_mhz, "bus_bits": bus_bits, "pcie": pcie}
    return DriverFigures(name, 80 << 30, clocks, 300.0, nvlinks or None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_derived_figures_are_within_a_tenth_of_the_data_sheets(name: str) -> None:
    *_, tflops, gb_per_s = BOARDS[name]
    found = sheet("x", figures(name))
    assert found is not None
    assert found.peak_flops / 1e12 == pytest.approx(tflops, rel=0.1)
    assert found.hbm_bw / 1e9 == pytest.approx(gb_per_s, rel=0.03)
    assert {"peak_flops", "hbm_bw", "link_bw"} <= set(found.assumed)
    assert found.nvml == (name,)
    replace(found, source="as the driver says").check(FITTED)


@pytest.mark.parametrize("shipped", ["H100-SXM-80GB", "A100-80GB", "V100-SXM-32GB", "B200-180GB", "L40S-48GB"])
def test_links_and_kinds_are_those_of_the_shipped_types(shipped: str) -> None:
    known = SHIPPED[shipped]
    found = sheet("x", figures(known.nvml[0]))
    assert found is not None
    assert found.link_bw == pytest.approx(known.link_bw)
    for field in ("fp8_flops", "fp4_flops"):
        assert bool(getattr(found, field)) == bool(getattr(known, field)) == (field in found.assumed)
    assert found.fp4_flops == pytest.approx(known.fp4_flops, rel=0.1)


@pytest.mark.parametrize(
    ("name", "like"), [("Tesla T4", "V100-16GB"), ("NVIDIA L40S", "A100-80GB"), ("NVIDIA B200", "H100-SXM-80GB")]
)
def test_efficiencies_are_those_of_its_generation(name: str, like: str) -> None:
    found = sheet("x", figures(name))
    assert found is not None
    assert found.like == like


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ({"cores": None}, ("FLOP/s",)),
        ({"capability": (3, 5)}, ("FLOP/s",)),
        ({"bus_bits": None}, ("memory bandwidth",)),
        ({"memory_mhz": None, "tdp_w": None}, ("memory bandwidth", "TDP")),
    ],
)
def test_there_is_no_sheet_when_a_figure_is_missing(missing: dict[str, object], words: tuple[str, ...]) -> None:
    given = replace(figures("Tesla T4"), **missing)  # type: ignore[arg-type]
    assert sheet("x", given) is None
    assert lacking(given) == words


def test_what_else_is_missing_is_assumed() -> None:
    found = sheet("x", replace(figures("Tesla T4"), clocks_mhz=(), top_mhz=1590.0, pcie=None))
    assert found is not None
    assert (found.f_min, found.f_max, found.link_bw) == (1590.0, 1590.0, 32e9)
    assert "f_min" in found.assumed


def test_joining_machine_offers_a_sheet_of_what_it_does_not_know(boards: Boards) -> None:
    boards[0].name, boards[1].name = b"NVIDIA A900/80GB", b"NVIDIA A901"
    boards.fail(1, "bus", NOT_SUPPORTED)
    meter = NvmlGpuMeter(timeout_s=5.0)
    try:
        first, second = offer("token", "box-1", meter.inventory()).gpus
        assert first.sheet is not None
        assert (first.sheet.name, first.sheet.source) == ("A900-80GB", "as the driver says, node box-1")
        assert first.sheet.peak_flops == pytest.approx(312e12, rel=0.01)
        assert first.sheet.link_bw == 600e9
        assert (second.sheet, second.lacking) == (None, ["memory bandwidth"])
        meter.read()
        notices = "\n".join(meter.notices())
        assert "the driver does not tell its memory bandwidth: enter a GPU type A901" in notices
        gpu_types.declare([first.sheet])  # as its desired state says then
        meter.read()
        assert "A900" not in "\n".join(meter.notices())
        assert engine_model("Llama3-8B", "A900-80GB", 1).fits
    finally:
        meter.close()
