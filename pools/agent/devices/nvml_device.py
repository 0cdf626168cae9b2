"""One GPU through NVML: what it is, and how it is now. Raises pynvml.NVMLError, for `nvml.py` to translate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import pynvml

from core.engine.gpu_types import GpuType
from core.ports import GpuReading
from pools.actuator.nvml_clocks import offered_mhz
from pools.actuator.nvml_errors import STALE, UNSUPPORTED, translated

from .gpu_types import gpu_type
from .nvml_sheet import DriverFigures, lacking, sheet

T = TypeVar("T")

# Bits of the clocks' event reasons that slow a GPU down; idling and locked clocks are none of them.
_THROTTLES = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}


@dataclass(frozen=True, slots=True)
class GpuDescription:
    """The properties of a GPU that do not change while the driver is loaded. None: the driver does not say.

    `clocks_mhz`: SM clocks that it offers, rising. `nvlinks`: links that are up. `catalogued`: `gpu_type` is a type
    that plans can count on. `mig_slices`: instances that it is divided into; None: MIG is off. `sheet`: of a type that
    is not, the data sheet that the driver's figures come to; None: they do not, for the figures in `lacking`.
    """

    index: int
    uuid: str
    name: str
    gpu_type: str
    catalogued: bool
    memory_bytes: int
    clocks_mhz: tuple[float, ...]
    tdp_w: float | None
    nvlinks: int | None
    mig_slices: int | None
    sheet: GpuType | None = None
    lacking: tuple[str, ...] = ()


class NvmlDevice:
    """A GPU that is open. `lacks`: what its last measurement had no answer to, in words.

    Only whole boards are opened, never MIG's devices: each of those repeats its board's power, so that summing them
    would count the same joules several times.
    """

    def __init__(self, index: int) -> None:
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.lacks: list[str] = []
        self.slices: int | None = None  # that MIG divides it into now; None: it is one GPU
        self.description = self._describe(index)
        self._lowest_mhz, self._highest_mhz = self._range()

    def measure(self) -> GpuReading:
        self.lacks = []
        handle, what = self._handle, self.description
        energy_mj = self._ask("energy counter", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        at_s = time.time()
        rates = None
        self.slices = self._mig_slices()
        if self.slices is None:  # a divided board has none
            rates = self._ask("utilisation", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask("memory in use", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        return GpuReading(
            uuid=what.uuid,
            index=what.index,
            gpu_type=what.gpu_type,
            at_s=at_s,
            energy_j=None if energy_mj is None else energy_mj / 1000.0,
            power_w=self._power_w(),
            sm_clock_mhz=self._clock_mhz("SM clock", pynvml.NVML_CLOCK_SM),
            utilisation=None if rates is None else min(1.0, rates.gpu / 100.0),
            memory_used_bytes=None if memory is None else int(memory.used),
            temperature_c=self._temperature_c(),
            min_mhz=self._lowest_mhz,
            max_mhz=self._highest_mhz,
            memory_clock_mhz=self._clock_mhz("memory clock", pynvml.NVML_CLOCK_MEM),
            throttle_reasons=self._throttle_reasons(),
            ecc_errors=self._ask(
                "ECC errors",
                lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                    handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                ),
            ),
        )

    def _mig_slices(self) -> int | None:
        mode = self._quiet(lambda: pynvml.nvmlDeviceGetMigMode(self._handle))
        if mode is None or mode[0] != 1:
            return None
        count = 0
        for index in range(self._quiet(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)) or 0):
            try:
                pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, index)
                count += 1
            except pynvml.NVMLError as error:
                if error.value in STALE:
                    raise
        return count

    # -- what it is --------------------------------------------------------------------------------

    def _describe(self, index: int) -> GpuDescription:
        handle = self._handle
        name = str(pynvml.nvmlDeviceGetName(handle))
        kind, catalogued = gpu_type(name)
        tdp_mw = self._quiet(lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        figures = DriverFigures(
            name=name,
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            clocks_mhz=tuple(self._quiet(lambda: offered_mhz(handle)) or ()),
            tdp_w=None if tdp_mw is None else tdp_mw / 1000.0,
            nvlinks=self._nvlinks(),
        )
        if not catalogued:
            figures = self._figures(figures)
        return GpuDescription(
            index=index,
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            name=name,
            gpu_type=kind,
            catalogued=catalogued,
            memory_bytes=figures.memory_bytes,
            clocks_mhz=figures.clocks_mhz,
            tdp_w=figures.tdp_w,
            nvlinks=figures.nvlinks,
            mig_slices=self._mig_slices(),
            sheet=None if catalogued else sheet(kind, figures),
            lacking=() if catalogued else lacking(figures),
        )

    def _figures(self, figures: DriverFigures) -> DriverFigures:
        """Adds what a data sheet is made of."""
        handle = self._handle
        capability = self._quiet(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        generation = self._quiet(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        lanes = self._quiet(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
        return replace(
            figures,
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            cores=self._quiet(lambda: pynvml.nvmlDeviceGetNumGpuCores(handle)),
            top_mhz=self._quiet(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            memory_mhz=self._quiet(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            bus_bits=self._quiet(lambda: pynvml.nvmlDeviceGetMemoryBusWidth(handle)),
            pcie=(generation, lanes) if generation and lanes else None,
        )

    def _range(self) -> tuple[float, float]:
        """Returns the lowest and the highest clock (MHz); without a list only the highest: nothing to lock."""
        if clocks := self.description.clocks_mhz:
            return clocks[0], clocks[-1]
        top_mhz = float(pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM))
        return top_mhz, top_mhz

    def _nvlinks(self) -> int | None:
        """Returns how many links are up; None: it has none, or does not say."""
        up, known = 0, False
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                up += pynvml.nvmlDeviceGetNvLinkState(self._handle, link) == pynvml.NVML_FEATURE_ENABLED
                known = True
            except pynvml.NVMLError as error:
                if error.value in STALE:
                    raise
                break  # beyond the last one
        return up if known else None

    # -- how it is ---------------------------------------------------------------------------------

    def _power_w(self) -> float | None:
        """Returns the instant's power, or the mean of the last second from drivers that do not report the instant's."""
        values = self._quiet(lambda: pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_POWER_INSTANT]))
        if values and values[0].nvmlReturn == pynvml.NVML_SUCCESS:
            return float(values[0].value.uiVal) / 1000.0
        power_mw = self._ask("power", lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle))
        return None if power_mw is None else power_mw / 1000.0

    def _clock_mhz(self, words: str, clock: int) -> float | None:
        mhz = self._ask(words, lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, clock))
        return None if mhz is None else float(mhz)

    def _temperature_c(self) -> float | None:
        celsius = self._ask(
            "temperature", lambda: pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        )
        return None if celsius is None else float(celsius)

    def _throttle_reasons(self) -> tuple[str, ...] | None:
        bits = self._quiet(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        if bits is None:  # its name before driver 535
            bits = self._ask("throttle reasons", lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        return None if bits is None else tuple(words for bit, words in _THROTTLES.items() if bits & bit)

    def _ask(self, words: str, question: Callable[[], T]) -> T | None:
        """Returns the answer, or None with a note of what is lacking. Raises what is wrong with the whole GPU."""
        try:
            return question()
        except pynvml.NVMLError as error:
            if error.value in STALE and error.value != pynvml.NVML_ERROR_UNKNOWN:
                raise
            why = "" if error.value in UNSUPPORTED else f" ({translated(error, 'read it')})"
            self.lacks.append(words + why)
            return None

    def _quiet(self, question: Callable[[], T]) -> T | None:
        """Asks as `_ask` does, without a note, for what a GPU may well not have."""
        before = len(self.lacks)
        answer = self._ask("", question)
        del self.lacks[before:]
        return answer
