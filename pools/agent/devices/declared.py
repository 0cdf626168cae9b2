"""Meters of a machine without GPUs, to try GreenServe on: its power is declared by its operator, not measured.

Devices stand for GPUs, so that engines can be placed on them. The machine's power is a straight line over how busy its
processors are (Linux's own count), from what it draws idle to what it draws when all are busy; that a server's power
is close to such a line is a finding of Fan, Weber and Barroso, "Power provisioning for a warehouse-sized computer"
(ISCA 2007).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.engine.engine_model import GPUS
from core.ports import GpuReading, RetryableError

from .driver_meter import Inventory
from .nvml_device import GpuDescription

_STAT, _MEMORY = Path("/proc/stat"), Path("/proc/meminfo")
_CATALOGUE_FREE_MHZ = 1000.0  # a type that the catalogue does not know has a clock that nobody counts on


@dataclass(frozen=True, slots=True)
class Declaration:
    """`count` devices called `gpu_type`; `idle_w` and `full_w` of the whole machine."""

    gpu_type: str = "CPU"
    count: int = 1
    idle_w: float = 20.0
    full_w: float = 65.0

    @classmethod
    def read(cls, devices: str, power: str) -> Declaration:
        """Reads `TYPE:COUNT` and `IDLE:FULL`. Raises ValueError."""
        gpu_type, _, count = devices.rpartition(":")
        idle, _, full = power.partition(":")
        try:
            found = cls(gpu_type, int(count), float(idle), float(full))
        except ValueError:
            raise ValueError(f"'{devices}' and '{power}' are not TYPE:COUNT and IDLE:FULL (watts)") from None
        if not gpu_type or found.count < 1 or not 0.0 <= found.idle_w <= found.full_w:
            raise ValueError("there is at least 1 device, and idle power is from 0 to full power")
        return found

    def uuids(self, node: str) -> tuple[str, ...]:
        return tuple(f"CPU-{node}-{index}" for index in range(self.count))

    @property
    def clocks_mhz(self) -> tuple[float, float]:
        known = GPUS.get(self.gpu_type)
        return (known.f_min, known.f_max) if known else (_CATALOGUE_FREE_MHZ, _CATALOGUE_FREE_MHZ)


def inventory(node: str, declared: Declaration) -> Inventory:
    """Returns the inventory that such a machine joins the fleet with."""
    return Inventory(
        "none, devices are declared",
        tuple(
            GpuDescription(
                index=index,
                uuid=uuid,
                name="a share of the machine's processors",
                gpu_type=declared.gpu_type,
                catalogued=declared.gpu_type in GPUS,
                memory_bytes=_memory_bytes("MemTotal") // declared.count,
                clocks_mhz=declared.clocks_mhz,
                tdp_w=declared.full_w / declared.count,
                nvlinks=None,
                mig_slices=None,
            )
            for index, uuid in enumerate(declared.uuids(node))
        ),
    )


class DeclaredMeter:
    """`ports.GpuMeter`. The machine's energy, divided evenly among its devices; counted from the agent's start."""

    def __init__(self, node: str, declared: Declaration, clock: Callable[[], float] = time.monotonic) -> None:
        self._uuids = declared.uuids(node)
        self._declared = declared
        self._clock = clock
        self._energy_j = 0.0
        self._power_w = declared.idle_w
        self._before: tuple[float, float, float] | None = None  # moment, busy and all ticks

    def read(self) -> tuple[GpuReading, ...]:
        now_s = self._clock()
        busy, whole = _ticks()
        share = None
        if self._before is not None:
            at_s, busy_before, whole_before = self._before
            share = min(1.0, max(0.0, (busy - busy_before) / max(1.0, whole - whole_before)))
            self._power_w = self._declared.idle_w + share * (self._declared.full_w - self._declared.idle_w)
            self._energy_j += self._power_w * max(0.0, now_s - at_s)
        self._before = now_s, busy, whole
        used_bytes, (min_mhz, max_mhz) = _memory_used_bytes(), self._declared.clocks_mhz
        count = len(self._uuids)
        return tuple(
            GpuReading(
                uuid=uuid,
                index=index,
                gpu_type=self._declared.gpu_type,
                at_s=time.time(),
                energy_j=self._energy_j / count,
                power_w=self._power_w / count,
                sm_clock_mhz=None,
                utilisation=share,
                memory_used_bytes=None if used_bytes is None else used_bytes // count,
                temperature_c=None,
                min_mhz=min_mhz,
                max_mhz=max_mhz,
            )
            for index, uuid in enumerate(self._uuids)
        )

    def notices(self) -> tuple[str, ...]:
        declared = self._declared
        devices = f"{declared.count} device{'' if declared.count == 1 else 's'} called {declared.gpu_type}"
        return (
            f"power and energy are declared, not measured: {declared.idle_w:g} W idle to {declared.full_w:g} W with "
            f"all processors busy, for {devices}",
        )

    def close(self) -> None:
        """Nothing is open."""


class NoClocks:
    """`ports.FrequencyActuator` of a machine whose clocks nobody sets; never asked, since the node is measure only."""

    def refusal(self) -> str:
        return "this machine has no GPU whose clock could be set"

    def lock(self, gpu_uuids: object, mhz: float, lease_s: float) -> None:
        """Does nothing: there is no clock to set."""

    def reset(self, gpu_uuids: object) -> None:
        """Does nothing: there is no clock to set."""

    def close(self) -> None:
        """Nothing is open."""


def _ticks() -> tuple[float, float]:
    """Returns the ticks of all processors since the boot, busy ones and all (proc_stat(5): user, nice, system, ...)."""
    try:
        fields = [float(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError) as error:
        raise RetryableError(f"cannot read {_STAT}: {error}") from error
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _memory_used_bytes() -> int | None:
    total_bytes, available_bytes = memory_bytes("MemTotal"), memory_bytes("MemAvailable")
    return None if total_bytes is None or available_bytes is None else total_bytes - available_bytes


def memory_bytes(what: str) -> int | None:
    """Returns what /proc/meminfo says of the machine's memory; None: nothing."""
    try:
        return _memory_bytes(what)
    except RetryableError:
        return None


def _memory_bytes(what: str) -> int:
    try:
        rows = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines() if ":" in line)
        return int(rows[what].split()[0]) << 10
    except (OSError, KeyError, ValueError) as error:
        raise RetryableError(f"cannot read {what} in {_MEMORY}: {error}") from error
