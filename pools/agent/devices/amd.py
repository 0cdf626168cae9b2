"""The GPUs of a real node through AMD's SMI library (amdsmi): meters and inventory. Clocks are not set.

`amdsmi` is an extra (`pip install 'greenserve[amd]'`) and needs ROCm's libamd_smi; it is imported when a meter opens.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from core.engine import gpu_types
from core.ports import AdapterError, GpuReading, PermanentError, RetryableError
from core.units import UJ_PER_J

from .amd_sheet import AmdFigures, lacking, sheet
from .declared import NoClocks
from .driver_meter import DriverGpuMeter, Inventory, unknown_type
from .gpu_types import gpu_type
from .nvml_device import GpuDescription

T = TypeVar("T")

TIMEOUT_S = 1.0
REOPEN_S = 60.0  # a library that failed is opened again at this pace
_BYTES_PER_GBIT = 1e9 / 8.0
_PASSING = frozenset({8, 15, 30, 40})  # time-out, out of resources, busy, no data: another try may do


class AmdGpuMeter(DriverGpuMeter):
    """`ports.GpuMeter`. Not thread-safe; the library runs in a thread of its own, which a hung driver may hang.

    A GPU that fails is left out of the readings, and `notices` says so. `energy_j` is the driver's accumulator x its
    resolution. Of a board with two dies (MI250) one alone tells the energy, that of both; the other has none.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, load: Callable[[], Any] | None = None) -> None:
        """`load` gives the library; None: the package amdsmi."""
        super().__init__("AMD's driver", timeout_s)
        self._load = load or _amdsmi
        # The rest belongs to the caller's thread.
        self._smi: Any = None
        self._reopen_s = -math.inf  # monotonic
        self._devices: list[_Device] = []
        self._types: tuple[gpu_types.GpuType, ...] = ()  # that were known when the GPUs were opened

    # -- in the caller's thread --------------------------------------------------------------------

    def _measure(self) -> tuple[GpuReading, ...]:
        self._ensure_open()
        readings, faults = [], []
        for device in self._devices:
            try:
                readings.append(device.measure())
            except self._smi.AmdSmiException as error:
                faults.append(_translated(error, f"read {device.description.uuid}"))
        self._notices = tuple(dict.fromkeys([*map(str, faults), *self._remarks()]))
        if not readings:
            self._shut_down()
            raise faults[0] if faults else PermanentError("AMD's driver sees no GPU")
        return tuple(readings)

    def _take_inventory(self) -> Inventory:
        self._ensure_open()
        driver = "unknown"
        if self._devices:
            answer = self._smi.amdsmi_get_gpu_driver_info(self._devices[0].handle)
            driver = f"{answer.get('driver_name', 'amdgpu')} {answer.get('driver_version', '')}".strip()
        return Inventory(driver, tuple(device.description for device in self._devices))

    def _ensure_open(self) -> None:
        if self._smi is not None:
            if self._types != gpu_types.declared():  # what a GPU's type is may have changed
                self._open_devices(self._smi)
            return
        if time.monotonic() < self._reopen_s:
            raise RetryableError("AMD's driver is opened again within a minute")
        self._reopen_s = time.monotonic() + REOPEN_S
        smi = self._load()
        try:
            smi.amdsmi_init()
            self._open_devices(smi)
        except smi.AmdSmiException as error:
            raise _translated(error, "open AMD SMI") from error
        self._smi = smi

    def _open_devices(self, smi: Any) -> None:
        self._types = gpu_types.declared()
        handles = smi.amdsmi_get_processor_handles()
        self._devices = [_Device(smi, index, handle) for index, handle in enumerate(handles)]

    def _shut_down(self) -> None:
        smi, self._smi, self._devices = self._smi, None, []
        if smi is not None:
            with suppress(smi.AmdSmiException):
                smi.amdsmi_shut_down()

    def _remarks(self) -> Iterator[str]:
        for device in self._devices:
            if device.lacks:
                yield f"{device.description.uuid} does not tell: {', '.join(device.lacks)}"
            if not device.description.catalogued:
                yield unknown_type(device.description)


class NoAmdClocks(NoClocks):
    """`ports.FrequencyActuator` of a node with AMD GPUs: it is measured only."""

    def refusal(self) -> str:
        return "clocks of AMD GPUs are not set: they are metered only"


class _Device:
    """A GPU that is open. `lacks`: what its last measurement had no answer to, in words."""

    def __init__(self, smi: Any, index: int, handle: Any) -> None:
        self._smi = smi
        self.handle = handle
        self.lacks: list[str] = []
        asic = smi.amdsmi_get_gpu_asic_info(handle)
        name = str(asic["market_name"])
        kind, catalogued = gpu_type(name)
        memory_mib = smi.amdsmi_get_gpu_vram_usage(handle)["vram_total"]
        clocks = self._ask("", lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)) or {}
        lowest, highest = _number(clocks.get("min_clk")), _number(clocks.get("max_clk"))
        cap = self._ask("", lambda: smi.amdsmi_get_power_info(handle)) or {}
        figures = AmdFigures(
            name=name,
            memory_bytes=int(memory_mib) << 20,
            clocks_mhz=() if lowest is None or highest is None else (lowest, highest),
            tdp_w=_number(cap.get("power_limit")),
        )
        if not catalogued:
            figures = self._figures(figures, asic)
        self.lacks = []
        self.description = GpuDescription(
            index=index,
            uuid=str(smi.amdsmi_get_gpu_device_uuid(handle)),
            name=name,
            gpu_type=kind,
            catalogued=catalogued,
            memory_bytes=figures.memory_bytes,
            clocks_mhz=figures.clocks_mhz,
            tdp_w=figures.tdp_w,
            nvlinks=None,
            mig_slices=None,
            sheet=None if catalogued else sheet(kind, figures),
            lacking=() if catalogued else lacking(figures),
        )

    def _figures(self, figures: AmdFigures, asic: Mapping[str, Any]) -> AmdFigures:
        """Adds what a data sheet is made of."""
        smi, handle = self._smi, self.handle
        memory = self._ask("", lambda: smi.amdsmi_get_gpu_vram_info(handle)) or {}
        clock = self._ask("", lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.MEM)) or {}
        links = self._ask("", lambda: smi.amdsmi_get_link_metrics(handle)) or {}
        static = (self._ask("", lambda: smi.amdsmi_get_pcie_info(handle)) or {}).get("pcie_static", {})
        generation = _number(static.get("max_pcie_interface_version", static.get("pcie_interface_version")))
        lanes = _number(static.get("max_pcie_width"))
        gbit_per_s = sum(_number(link.get("max_bandwidth")) or 0.0 for link in links.get("links", ()))
        return replace(
            figures,
            architecture=str(asic.get("target_graphics_version", "")),
            compute_units=_number(asic.get("num_compute_units")),
            memory=self._memory_kind(memory.get("vram_type")),
            memory_mhz=_number(clock.get("max_clk")),
            bus_bits=_number(memory.get("vram_bit_width")),
            link_bytes_per_s=2.0 * gbit_per_s * _BYTES_PER_GBIT or None,  # each is of one direction
            pcie=(int(generation), int(lanes)) if generation and lanes else None,
        )

    def _memory_kind(self, value: Any) -> str | None:
        """Returns HBM3 and the like; the library tells a number of its `AmdSmiVramType`, or its name."""
        if isinstance(value, str):
            return value.removeprefix("VRAM_TYPE_")
        try:
            return str(self._smi.AmdSmiVramType(value).name)
        except ValueError:
            return None

    def measure(self) -> GpuReading:
        self.lacks = []
        smi, handle, what = self._smi, self.handle, self.description
        energy_j = self._energy_j()
        at_s = time.time()
        power = self._ask("power", lambda: smi.amdsmi_get_power_info(handle)) or {}
        activity = self._ask("utilisation", lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
        memory = self._ask("memory in use", lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        busy, used_mib = _number(activity.get("gfx_activity")), _number(memory.get("vram_used"))
        power_w = _number(power.get("current_socket_power"))
        clocks = what.clocks_mhz or (0.0,)
        return GpuReading(
            uuid=what.uuid,
            index=what.index,
            gpu_type=what.gpu_type,
            at_s=at_s,
            energy_j=energy_j,
            power_w=_number(power.get("average_socket_power")) if power_w is None else power_w,
            sm_clock_mhz=self._clock_mhz("clock", smi.AmdSmiClkType.GFX),
            utilisation=None if busy is None else min(1.0, busy / 100.0),
            memory_used_bytes=None if used_mib is None else int(used_mib) << 20,
            temperature_c=self._temperature_c(),
            min_mhz=clocks[0],
            max_mhz=clocks[-1],
            memory_clock_mhz=self._clock_mhz("memory clock", smi.AmdSmiClkType.MEM),
            ecc_errors=self._ecc_errors(),
        )

    def _energy_j(self) -> float | None:
        """Returns the accumulator in joules: `energy_accumulator` (`power` before 6.2.1) in units of so many uJ."""
        answer = self._ask("energy counter", lambda: self._smi.amdsmi_get_energy_count(self.handle))
        if answer is None:
            return None
        counted = _number(answer.get("energy_accumulator", answer.get("power")))
        unit_uj = _number(answer.get("counter_resolution"))
        if counted is None or not unit_uj:
            self.lacks.append("energy counter")
            return None
        return counted * unit_uj / UJ_PER_J

    def _clock_mhz(self, words: str, kind: Any) -> float | None:
        answer = self._ask(words, lambda: self._smi.amdsmi_get_clock_info(self.handle, kind))
        return None if answer is None else _number(answer.get("clk", answer.get("cur_clk")))

    def _temperature_c(self) -> float | None:
        kinds, metrics = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric
        return _number(
            self._ask(
                "temperature",
                lambda: self._smi.amdsmi_get_temp_metric(self.handle, kinds.HOTSPOT, metrics.CURRENT),
            )
        )

    def _ecc_errors(self) -> int | None:
        answer = self._ask("ECC errors", lambda: self._smi.amdsmi_get_gpu_total_ecc_count(self.handle))
        count = None if answer is None else _number(answer.get("uncorrectable_count"))
        return None if count is None else int(count)

    def _ask(self, words: str, question: Callable[[], T]) -> T | None:
        """Returns the answer; None, with a note of what is lacking, where this GPU or driver has none."""
        try:
            return question()
        except self._smi.AmdSmiLibraryException as error:
            if error.get_error_code() not in _UNSUPPORTED:
                raise
            self.lacks.append(words)
            return None


_UNSUPPORTED = frozenset({2, 3, 49})  # not supported, not yet implemented, no such message


def _number(value: Any) -> float | None:
    """Returns a number; None of the library's "N/A", and of what is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _translated(error: Exception, what: str) -> AdapterError:
    code = getattr(error, "get_error_code", lambda: None)()
    words = f"AMD's driver cannot {what}: {getattr(error, 'get_error_info', lambda: error)()}"
    return RetryableError(words) if code in _PASSING else PermanentError(words)


def _amdsmi() -> Any:
    try:
        return importlib.import_module("amdsmi")
    except ImportError as error:
        raise PermanentError("the package amdsmi is not installed: pip install 'greenserve[amd]'") from error
    except (OSError, AttributeError, KeyError) as error:  # no libamd_smi, or one of another release than the package
        raise PermanentError(f"amdsmi does not fit this machine's ROCm: {error}") from error
