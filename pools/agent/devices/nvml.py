"""The GPUs of a real node through NVIDIA's driver (nvidia-ml-py): meters and inventory.

Nothing here needs a privilege; setting clocks does, and is the actuator's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence

import pynvml

from core.engine import gpu_types
from core.ports import AdapterError, GpuReading, PermanentError
from pools.actuator.nvml_errors import STALE, translated

from .driver_meter import DriverGpuMeter, Inventory, unknown_type
from .energy_check import EnergyCheck
from .nvml_device import NvmlDevice

logger = logging.getLogger(__name__)

TIMEOUT_S = 1.0  # opening NVML may take longer: it goes on, and a later reading finds it open
REOPEN_S = 60.0  # a lost GPU, or a driver that was loaded again, is looked for at this pace


class NvmlGpuMeter(DriverGpuMeter):
    """`ports.GpuMeter`. Not thread-safe; NVML itself runs in a thread of its own, which a hung driver may hang.

    A GPU that fails is left out of the readings, and `notices` says so: the others go on being metered. `energy_j` is
    the driver's counter as it stands; it restarts when the driver is loaded again, which the ledger knows of.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, check: EnergyCheck | None = None) -> None:
        super().__init__("NVIDIA's driver", timeout_s, check)
        # The rest belongs to the caller's thread.
        self._open = False
        self._types: tuple[gpu_types.GpuType, ...] = ()  # that were known when the GPUs were opened
        self._reopen_s = math.inf  # monotonic
        self._driver = ""
        self._devices: list[NvmlDevice] = []
        self._lost: list[AdapterError] = []  # of GPUs that could not be opened

    # -- in the caller's thread --------------------------------------------------------------------

    def _measure(self) -> tuple[GpuReading, ...]:
        self._ensure_open()
        readings, faults = [], list(self._lost)
        for device in self._devices:
            try:
                readings.append(device.measure())
            except pynvml.NVMLError as error:
                faults.append(translated(error, f"read {device.description.uuid}"))
                self._reopen_soon(error)
        self._notices = tuple(dict.fromkeys([*map(str, faults), *_remarks(self._devices)]))
        if not readings:
            raise faults[0] if faults else PermanentError("the driver sees no GPU")
        return tuple(readings)

    def _take_inventory(self) -> Inventory:
        self._ensure_open()
        return Inventory(self._driver, tuple(device.description for device in self._devices))

    def _ensure_open(self) -> None:
        if self._open and time.monotonic() < self._reopen_s and self._types == gpu_types.declared():
            return
        self._shut_down()
        self._types = gpu_types.declared()
        try:
            pynvml.nvmlInit()
            self._open, self._reopen_s = True, math.inf
            self._driver = str(pynvml.nvmlSystemGetDriverVersion())
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._shut_down()
            raise translated(error, "open NVML") from error
        for index in range(count):
            try:
                self._devices.append(NvmlDevice(index))
            except pynvml.NVMLError as error:
                self._lost.append(translated(error, f"open GPU {index}"))
                self._reopen_s = time.monotonic() + REOPEN_S

    def _reopen_soon(self, error: pynvml.NVMLError) -> None:
        if error.value in STALE:
            wait_s = 0.0 if error.value == pynvml.NVML_ERROR_UNINITIALIZED else REOPEN_S
            self._reopen_s = min(self._reopen_s, time.monotonic() + wait_s)

    def _shut_down(self) -> None:
        self._devices, self._lost = [], []
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                logger.debug("closing NVML: %s", error)


def _remarks(devices: Sequence[NvmlDevice]) -> Iterator[str]:
    for device in devices:
        what = device.description
        if device.lacks:
            yield f"{what.uuid} does not tell: {', '.join(device.lacks)}"
        if device.slices is not None:
            yield (
                f"{what.uuid} is divided by MIG into {device.slices} instances; energy, power and clock are the "
                "board's, counted once"
            )
        if not what.catalogued:
            yield unknown_type(what)
