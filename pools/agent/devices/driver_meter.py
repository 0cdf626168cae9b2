"""The part of a GPU meter that is the same for every vendor's driver: a thread of its own, the check, the notices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass

from core.ports import AdapterError, GpuReading

from .call_timeout import BoundedCaller
from .energy_check import EnergyCheck
from .nvml_device import GpuDescription


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the driver says the node has. GPUs that do not answer are missing."""

    driver: str
    gpus: tuple[GpuDescription, ...]


class DriverGpuMeter(ABC):
    """`ports.GpuMeter` of a driver. Not thread-safe; the driver runs in a thread of its own, which it may hang."""

    def __init__(self, driver: str, timeout_s: float, check: EnergyCheck | None = None) -> None:
        self._caller = BoundedCaller(driver, timeout_s)
        self._check = check or EnergyCheck()
        self._notices: tuple[str, ...] = ()

    def read(self) -> tuple[GpuReading, ...]:
        readings = self._caller.call(self._measure)
        self._check.add(readings)
        return readings

    def inventory(self) -> Inventory:
        """Returns what the node has. Raises AdapterError."""
        return self._caller.call(self._take_inventory)

    def notices(self) -> tuple[str, ...]:
        """Returns what an operator should know of the meters, as of the last reading; nothing of it stops the node."""
        return (*self._notices, *self._check.notices())

    def close(self) -> None:
        """Lets go of the driver."""
        with suppress(AdapterError):
            self._caller.call(self._shut_down)
        self._caller.end()

    # -- in the caller's thread --------------------------------------------------------------------

    @abstractmethod
    def _measure(self) -> tuple[GpuReading, ...]:
        """Reads all GPUs, and sets the notices. Raises AdapterError."""

    @abstractmethod
    def _take_inventory(self) -> Inventory: ...

    @abstractmethod
    def _shut_down(self) -> None: ...


def unknown_type(what: GpuDescription) -> str:
    """Says what becomes of a GPU whose type is not known, and what mends that."""
    words = f"{what.name} is no GPU type of the catalogue: it is metered, but plans leave it out"
    if not what.lacking:
        return words
    return f"{words}; the driver does not tell its {', '.join(what.lacking)}: enter a GPU type {what.gpu_type}"
