"""A stand-in for the package amdsmi, made by hand after its documentation (7.0): no such card was at hand.

What it answers is not recorded from a GPU. It has the functions that the meter uses, and GPUs that tests set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code: int, words: str = "as the test wants it") -> None:
        super().__init__(words)
        self._code, self._words = code, words

    def get_error_code(self) -> int:
        return self._code

    def get_error_info(self) -> str:
        return self._words


class AmdSmiClkType(Enum):
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(Enum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(Enum):
    CURRENT = 0


class AmdSmiVramType(Enum):
    UNKNOWN = 0
    HBM2E = 3
    HBM3 = 4
    GDDR6 = 17


@dataclass
class FakeAmdGpu:
    uuid: str
    name: str = "AMD Instinct MI300X"
    asic: dict[str, Any] = field(
        default_factory=lambda: {"num_compute_units": 304, "target_graphics_version": "gfx942"}
    )
    vram: dict[str, Any] = field(default_factory=lambda: {"vram_type": 4, "vram_bit_width": 8192})
    links: list[dict[str, Any]] = field(
        default_factory=lambda: [{"max_bandwidth": 512, "bit_rate": 32}] * 7 + [{"max_bandwidth": "N/A"}]
    )
    energy: dict[str, Any] = field(
        default_factory=lambda: {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1}
    )
    power: dict[str, Any] = field(
        default_factory=lambda: {"current_socket_power": 550, "average_socket_power": "N/A", "power_limit": 750}
    )
    fails: dict[str, int] = field(default_factory=dict)  # function -> error code


class FakeAmdSmi:
    """The module. `gpus` are its handles."""

    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiVramType = AmdSmiVramType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric

    def __init__(self, *gpus: FakeAmdGpu) -> None:
        self.gpus = list(gpus)
        self.opened = 0
        self.init_fails: int | None = None

    def amdsmi_init(self) -> None:
        if self.init_fails is not None:
            raise AmdSmiLibraryException(self.init_fails, "no driver")
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[FakeAmdGpu]:
        return self.gpus

    def amdsmi_get_gpu_driver_info(self, gpu: FakeAmdGpu) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}

    def amdsmi_get_gpu_device_uuid(self, gpu: FakeAmdGpu) -> str:
        return gpu.uuid

    def amdsmi_get_gpu_asic_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {"market_name": gpu.name, **gpu.asic}

    def amdsmi_get_gpu_vram_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        self._fail(gpu, "vram info")
        return gpu.vram

    def amdsmi_get_link_metrics(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        self._fail(gpu, "links")
        return {"num_links": len(gpu.links), "links": gpu.links}

    def amdsmi_get_pcie_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {"pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5}}

    def amdsmi_get_gpu_vram_usage(self, gpu: FakeAmdGpu) -> dict[str, int]:
        self._fail(gpu, "vram")
        return {"vram_total": 196_592, "vram_used": 1_024}

    def amdsmi_get_clock_info(self, gpu: FakeAmdGpu, kind: AmdSmiClkType) -> dict[str, Any]:
        self._fail(gpu, "clock")
        clk, low, high = (1_800, 132, 2_100) if kind is AmdSmiClkType.GFX else (1_300, 900, 1_300)
        return {"clk": clk, "min_clk": low, "max_clk": high, "clk_locked": "N/A"}

    def amdsmi_get_energy_count(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        self._fail(gpu, "energy")
        return gpu.energy

    def amdsmi_get_power_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        self._fail(gpu, "power")
        return gpu.power

    def amdsmi_get_gpu_activity(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        self._fail(gpu, "activity")
        return {"gfx_activity": 87, "umc_activity": 40, "mm_activity": "N/A"}

    def amdsmi_get_temp_metric(self, gpu: FakeAmdGpu, kind: object, metric: object) -> int:
        self._fail(gpu, "temperature")
        return 61

    def amdsmi_get_gpu_total_ecc_count(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        self._fail(gpu, "ecc")
        return {"correctable_count": 3, "uncorrectable_count": 1, "deferred_count": 0}

    def _fail(self, gpu: FakeAmdGpu, what: str) -> None:
        if what in gpu.fails:
            raise AmdSmiLibraryException(gpu.fails[what])
