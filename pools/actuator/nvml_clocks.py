"""Sets GPU clocks through NVML."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import pynvml

from .nvml_errors import STALE, translated

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ClockSetter(Protocol):
    """Blocks for as long as the driver does; raises AdapterError."""

    def offered(self, gpu: str) -> Sequence[float]:
        """Returns the SM clocks that the GPU offers, in MHz, rising."""
        ...

    def set(self, gpu: str, mhz: float) -> None: ...

    def reset(self, gpu: str) -> None: ...


class NvmlClocks:
    """`ClockSetter` through nvidia-ml-py. NVML is opened at the first use, and anew after a fault of the driver.

    `refusal`: why clocks cannot be set at all, in words; empty as long as nothing says so. `lacks`: what this process
    is known to lack before it has tried.
    """

    def __init__(self, lacks: str = "") -> None:
        self.refusal = lacks
        self._open = False
        self._clocks: dict[str, list[float]] = {}  # offered, by GPU

    def start(self) -> None:
        """Opens NVML, so that a missing driver is known before the first clock."""
        try:
            self._opened()
        except pynvml.NVMLError as error:
            self.refusal = self.refusal or str(translated(error, "open NVML"))

    def offered(self, gpu: str) -> Sequence[float]:
        if gpu not in self._clocks:
            self._clocks[gpu] = self._do(f"ask {gpu} for its clocks", lambda: offered_mhz(self._handle(gpu)))
        return self._clocks[gpu]

    def set(self, gpu: str, mhz: float) -> None:
        whole = round(mhz)
        self._do(f"lock {gpu}", lambda: pynvml.nvmlDeviceSetGpuLockedClocks(self._handle(gpu), whole, whole))
        self.refusal = ""

    def reset(self, gpu: str) -> None:
        self._do(f"reset {gpu}", lambda: pynvml.nvmlDeviceResetGpuLockedClocks(self._handle(gpu)))

    def all(self) -> tuple[str, ...]:
        """Returns the UUID of every GPU of the node."""

        def uuids() -> tuple[str, ...]:
            self._opened()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)

        return self._do("list the GPUs", uuids)

    def _handle(self, gpu: str) -> object:
        self._opened()
        return pynvml.nvmlDeviceGetHandleByUUID(gpu)

    def _opened(self) -> None:
        if not self._open:
            pynvml.nvmlInit()
            self._open = True

    def _do(self, what: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                self.refusal = str(translated(error, what))
            if error.value in STALE:
                self._close()
            raise translated(error, what) from error

    def _close(self) -> None:
        self._open = False
        self._clocks.clear()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            logger.debug("closing NVML: %s", error)


def offered_mhz(handle: object) -> list[float]:
    """Returns the SM clocks (MHz) that a GPU offers at its highest memory clock, rising. Raises NVMLError."""
    memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(handle))
    return sorted(float(mhz) for mhz in pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz))
