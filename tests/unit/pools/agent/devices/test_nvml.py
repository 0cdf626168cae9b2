"""NVML's meters over the compiled stand-in, with nvidia-ml-py itself in between, and its faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.ports import GpuReading, PermanentError, RetryableError
from pools.agent.devices.energy_check import EnergyCheck
from pools.agent.devices.gpu_types import gpu_type
from pools.agent.devices.nvml import NvmlGpuMeter
from tests.fakes.node import gpu_reading
from tests.fakes.nvml import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, Boards
from tests.fakes.simnode import eventually

DRIVER_NOT_LOADED = 9


@pytest.fixture
def meter(boards: Boards) -> Iterator[NvmlGpuMeter]:
    opened = NvmlGpuMeter(timeout_s=5.0)
    yield opened
    opened.close()


def words(meter: NvmlGpuMeter) -> str:
    return "\n".join(meter.notices())


def test_everything_is_reported_when_the_gpu_is_whole(meter: NvmlGpuMeter, boards: Boards) -> None:
    boards[1].reasons = 0x1 | 0x4 | 0x40  # idle is no throttle
    boards[1].ecc_errors = 3
    reading = meter.read()[1]
    assert (reading.uuid, reading.index, reading.gpu_type) == (boards.uuid(1), 1, "A100-80GB")
    assert reading.power_w == 400.0
    assert reading.energy_j is not None
    assert reading.energy_j > 1e6
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1410.0, 1593.0)
    assert (reading.min_mhz, reading.max_mhz) == (210.0, 1410.0)
    assert (reading.utilisation, reading.temperature_c, reading.ecc_errors) == (1.0, 61.0, 3)
    assert reading.memory_used_bytes == 60_000_000_000
    assert reading.throttle_reasons == ("power cap", "hardware thermal slowdown")
    assert meter.notices() == ()


def test_inventory_says_what_the_node_has(meter: NvmlGpuMeter, boards: Boards) -> None:
    boards[1].name = b"NVIDIA T4"
    found = meter.inventory()
    assert found.driver == "570.00.01"
    first, second = found.gpus
    assert (first.gpu_type, first.catalogued, first.tdp_w, first.nvlinks) == ("A100-80GB", True, 400.0, 12)
    assert first.clocks_mhz[:2] == (210.0, 225.0)
    assert first.clocks_mhz[-1] == 1410.0
    assert first.mig_slices is None
    assert (second.gpu_type, second.catalogued) == ("T4", False)
    meter.read()
    assert "T4 is no GPU type of the catalogue" in words(meter)


@pytest.mark.parametrize(("code", "why"), [(NOT_SUPPORTED, ""), (NO_PERMISSION, " (cannot read it: no permission")])
def test_counter_is_unknown_when_the_gpu_has_none(meter: NvmlGpuMeter, boards: Boards, code: int, why: str) -> None:
    boards.fail(0, "energy", code)
    first, second = meter.read()
    assert first.energy_j is None
    assert first.power_w == 400.0
    assert second.energy_j is not None
    assert f"{boards.uuid(0)} does not tell: energy counter{why}" in words(meter)
    boards.fail(0, "energy", 0)
    assert meter.read()[0].energy_j is not None
    assert meter.notices() == ()


def test_mean_power_is_reported_when_the_driver_has_no_instant_power(meter: NvmlGpuMeter, boards: Boards) -> None:
    boards.fail(0, "instant_power", NOT_SUPPORTED)
    assert meter.read()[0].power_w == 400.0
    boards.fail(0, "power", NOT_SUPPORTED)
    assert meter.read()[0].power_w is None
    assert "does not tell: power" in words(meter)


def test_board_is_counted_once_when_mig_divides_it(meter: NvmlGpuMeter, boards: Boards) -> None:
    boards[0].mig, boards[0].slices = 1, 3
    readings = meter.read()
    assert len(readings) == 2
    assert sum(reading.power_w or 0.0 for reading in readings) == 800.0
    assert readings[0].utilisation is None
    assert "divided by MIG into 3 instances" in words(meter)


def test_others_are_metered_when_a_gpu_is_lost(meter: NvmlGpuMeter, boards: Boards) -> None:
    meter.read()
    boards.lose(0)
    (left,) = meter.read()
    assert left.uuid == boards.uuid(1)
    assert "fallen off the bus" in words(meter)
    boards.lose(1)
    with pytest.raises(PermanentError, match="fallen off the bus"):
        meter.read()


def test_gpu_is_left_out_when_it_was_lost_before_the_start(meter: NvmlGpuMeter, boards: Boards) -> None:
    boards.lose(0)
    assert [reading.uuid for reading in meter.read()] == [boards.uuid(1)]
    assert "cannot open GPU 0" in words(meter)


def test_node_is_metered_when_the_driver_comes_later(meter: NvmlGpuMeter, boards: Boards) -> None:
    boards.init_fault(DRIVER_NOT_LOADED)
    with pytest.raises(PermanentError, match="driver is not loaded"):
        meter.read()
    boards.init_fault(UNKNOWN)
    with pytest.raises(RetryableError):
        meter.read()
    boards.init_fault(0)
    assert len(meter.read()) == 2


def test_reading_is_bounded_when_the_driver_hangs(boards: Boards) -> None:
    meter = NvmlGpuMeter(timeout_s=0.1)
    eventually(lambda: _read_or_none(meter), 10.0, "first reading")
    boards.slow(1, "energy", 10.0)
    with pytest.raises(RetryableError, match="did not answer within"):
        meter.read()
    calls = boards.calls(1, "energy")
    with pytest.raises(RetryableError, match="has not answered for"):
        meter.read()  # at once: nothing is piled up behind it
    assert boards.calls(1, "energy") == calls
    boards.slow(1, "energy", 0.0)
    assert len(eventually(lambda: _read_or_none(meter), 10.0, "reading after the driver came back")) == 2
    meter.close()


def _read_or_none(meter: NvmlGpuMeter) -> tuple[GpuReading, ...] | None:
    try:
        return meter.read()
    except RetryableError:
        return None


def test_counter_is_passed_on_as_it_stands_when_the_driver_was_reloaded(meter: NvmlGpuMeter, boards: Boards) -> None:
    meter.read()
    boards.restart_counter(0)
    energy_j = meter.read()[0].energy_j
    assert energy_j is not None
    assert energy_j < 1e5
    assert "the energy counter went back" in words(meter)


def _checked(power_w: float, counted_w: float, seconds: int = 61, gap_s: float = 1.0) -> EnergyCheck:
    check = EnergyCheck(window_s=60.0, tolerated_share=0.15)
    for second in range(seconds):
        at_s = second * gap_s
        check.add([gpu_reading("G", at_s=at_s, energy_j=counted_w * at_s, power_w=power_w)])
    return check


def test_meter_and_check_are_distinguished_when_they_disagree() -> None:
    assert _checked(300.0, 270.0).notices() == ()
    (notice,) = _checked(300.0, 240.0).notices()
    assert "the energy counter says 14400 J and integrated power 18000 J, 20% apart" in notice


def test_nothing_is_compared_when_power_is_not_known_all_along() -> None:
    assert _checked(300.0, 30.0, seconds=60).notices() == ()  # the window is not over
    assert _checked(300.0, 30.0, gap_s=6.0).notices() == ()  # nobody knows the power between


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", ("H100-SXM-80GB", True)),
        ("A100-40GB", ("A100-40GB", True)),
        ("NVIDIA A100 80GB PCIe", ("A100-PCIe-80GB", True)),
        ("NVIDIA T4 16GB", ("T4-16GB", False)),
    ],
)
def test_type_is_the_catalogues_only_when_it_is_the_same_board(name: str, expected: tuple[str, bool]) -> None:
    assert gpu_type(name) == expected
