"""Simulated GPUs: clocks under a lease, power, and energy counters that outlive the process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from core.engine.engine_model import GpuParams, gpu
from core.ports import GpuReading

_UTILISATION_WINDOW_S = 1.0  # NVML's utilisation is a share of a past window too
_MEMORY_SHARE = 0.9  # vLLM's default gpu_memory_utilization


class CounterFileError(Exception):
    """The file of the energy counters cannot be used; the message says what to do."""


@dataclass(slots=True)
class Held:
    """Holds what an engine has of a GPU: all of it, or one of `slices` equal parts, and what it does there.

    `on_clock` is called when the clock in force changes, so that the engine can say its new idle power.
    """

    slices: int
    on_clock: Callable[[float], None]
    power_w: float
    busy: bool = False
    effective_mhz: float | None = None  # below the lock while it throttles at its part of the TDP
    loaded: bool = False


class SimGpu:
    """One GPU. Times are monotonic seconds; power is constant between two calls of `draw`.

    It draws what each engine on it does, and its idle power for the parts that nobody has.
    """

    def __init__(self, uuid: str, index: int, params: GpuParams, energy_j: float, now_s: float) -> None:
        self.uuid = uuid
        self.index = index
        self.params = params
        self.energy_j = energy_j
        self.held: dict[str, Held] = {}  # by instance
        self.has_power = True  # its machine is not off
        self._at_s = now_s
        self._busy_s = 0.0
        self._window = (now_s, 0.0)
        self._utilisation: float | None = None
        self._locked_mhz: float | None = None
        self._lease_until_s = 0.0

    @property
    def clock_mhz(self) -> float:
        """The clock asked for: the lock, or the top clock."""
        return self.params.f_max if self._locked_mhz is None else self._locked_mhz

    @property
    def power_w(self) -> float:
        if not self.has_power:
            return 0.0
        return math.fsum(own.power_w for own in self.held.values()) + self.params.idle_w * self.free_part

    @property
    def free_part(self) -> float:
        """The part of it that no engine has."""
        return max(0.0, 1.0 - math.fsum(1.0 / own.slices for own in self.held.values()))

    def full_for(self, slices: int) -> bool:
        """Says whether it has no room for an engine that is to have one of so many slices."""
        cut_otherwise = any(own.slices != slices for own in self.held.values())
        return cut_otherwise or len(self.held) >= slices

    def hold(self, uid: str, at_s: float, on_clock: Callable[[float], None], slices: int = 1) -> None:
        """Gives an engine the GPU, or a slice of it, which draws its idle power until the engine says otherwise."""
        self.advance(at_s)
        self.held[uid] = Held(slices, on_clock, self.params.idle_w / slices)

    def let_go(self, uid: str, at_s: float) -> None:
        self.advance(at_s)
        self.held.pop(uid, None)

    def draw(
        self, uid: str, at_s: float, power_w: float, *, busy: bool = False, effective_mhz: float | None = None
    ) -> None:
        """From `at_s` on an engine draws `power_w`; what the GPU drew until then is counted."""
        self.advance(at_s)
        own = self.held[uid]
        own.power_w, own.busy, own.effective_mhz = power_w, busy, effective_mhz

    def advance(self, at_s: float) -> None:
        """Counts energy and busy time up to `at_s`. Time never goes back."""
        passed_s = at_s - self._at_s
        if passed_s <= 0.0:
            return
        self.energy_j += self.power_w * passed_s
        if any(own.busy for own in self.held.values()):
            self._busy_s += passed_s
        self._at_s = at_s
        since_s, busy_s = self._window
        if at_s - since_s >= _UTILISATION_WINDOW_S:
            self._utilisation = min(1.0, (self._busy_s - busy_s) / (at_s - since_s))
            self._window = (at_s, self._busy_s)

    def lock(self, mhz: float, until_s: float, now_s: float) -> None:
        """Locks the clock until `until_s`. The switch itself takes no time here (on a real GPU: some 10 ms)."""
        self._lease_until_s = until_s
        self._set_clock(mhz, now_s)

    def reset(self, now_s: float) -> None:
        self._set_clock(None, now_s)

    def lapse(self, now_s: float) -> None:
        """Gives the clock back when its lease is over."""
        if self._locked_mhz is not None and now_s >= self._lease_until_s:
            self._set_clock(None, now_s)

    def _set_clock(self, mhz: float | None, now_s: float) -> None:
        changed = mhz != self._locked_mhz
        self._locked_mhz = mhz
        if changed:
            for own in list(self.held.values()):
                own.on_clock(now_s)

    def reading(self, at_s: float) -> GpuReading:
        """Returns what NVML would say. Without a thermal model the temperature is unknown. `at_s`: Unix seconds."""
        held = self.held.values()
        loaded_part = math.fsum(1.0 / own.slices for own in held if own.loaded)
        return GpuReading(
            uuid=self.uuid,
            index=self.index,
            gpu_type=self.params.name,
            at_s=at_s,
            energy_j=self.energy_j,
            power_w=self.power_w,
            sm_clock_mhz=min((m for own in held if (m := own.effective_mhz) is not None), default=self.clock_mhz),
            utilisation=self._utilisation,
            memory_used_bytes=int(self.params.mem_gb * 1e9 * _MEMORY_SHARE * loaded_part),
            temperature_c=None,
            min_mhz=self.params.f_min,
            max_mhz=self.params.f_max,
        )


class GpuBank:
    """The GPUs of a node with their counters on disk, so that a reading never goes back, not even after kill -9.

    The counters are written (to a new file, renamed over the old one) before a reading is answered. Energy since the
    last write is lost when the process is killed, and none is counted while it is down: the machine counts as off.
    """

    def __init__(self, node: str, groups: Sequence[tuple[str, int]], path: Path, now_s: float) -> None:
        self._path = path
        self._saved = _load(path)
        self.gpus: dict[str, SimGpu] = {}
        for gpu_type, count in groups:
            for _ in range(count):
                index = len(self.gpus)
                uuid = f"SIM-{node}-{index}"
                self.gpus[uuid] = SimGpu(uuid, index, gpu(gpu_type), self._saved.get(uuid, 0.0), now_s)

    def advance(self, now_s: float) -> None:
        for device in self.gpus.values():
            device.advance(now_s)

    def lapse_leases(self, now_s: float) -> None:
        for device in self.gpus.values():
            device.lapse(now_s)

    def read(self, at_s: float) -> list[GpuReading]:
        """Returns readings, on disk before that. Call `advance` first. Raises OSError when they cannot be written."""
        self.save()
        return [device.reading(at_s) for device in self.gpus.values()]

    def save(self) -> None:
        # Counters of GPUs that the node no longer has are kept: they may come back.
        self._saved.update({uuid: device.energy_j for uuid, device in self.gpus.items()})
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode({"energy_j": self._saved}))
        os.replace(temporary, self._path)


class _Counters(msgspec.Struct):
    energy_j: dict[str, float]


def _load(path: Path) -> dict[str, float]:
    try:
        return dict(msgspec.json.decode(path.read_bytes(), type=_Counters).energy_j)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise CounterFileError(
            f"{path} does not hold energy counters ({error}); move it away to start them from zero"
        ) from None


def parse_gpu_group(text: str) -> tuple[str, int]:
    """Reads `A100-80GB:4` as ("A100-80GB", 4). Raises ValueError saying what is wrong."""
    name, separator, count = text.rpartition(":")
    if not separator or not count.isdigit() or not 1 <= int(count) <= 64:
        raise ValueError(f"'{text}' is not TYPE:COUNT with a count from 1 to 64, for example A100-80GB:4")
    gpu(name)  # raises UnknownConfiguration, a ValueError, naming the known types
    return name, int(count)
