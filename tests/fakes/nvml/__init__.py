"""A stand-in for NVIDIA's driver: libnvidia-ml.so.1 compiled from standin.c, over boards that tests hold and change.

The boards are a file that is mapped by every process, so locked clocks and energy counters outlive processes as they do
in a driver. In this process `use` makes nvidia-ml-py load the stand-in; others get it by `environment`.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("standin.c")
_SONAME = "libnvidia-ml.so.1"

NO_PERMISSION, NOT_SUPPORTED, TIMEOUT, UNKNOWN = 4, 3, 10, 999
CALLS = [
    "handle",
    "energy",
    "power",
    "instant_power",
    "clock",
    "utilisation",
    "memory",
    "temperature",
    "reasons",
    "ecc",
    "mig",
    "nvlink",
    "offered",
    "lock",
    "reset",
    "name",
    "capability",
    "cores",
    "bus",
    "pcie",
]


class Gpu(ctypes.Structure):
    """One board; see standin.c."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("energy_uj", "since_ns")),
        *((name, ctypes.c_uint64) for name in ("memory_total_bytes", "memory_used_bytes", "reasons", "ecc_errors")),
        *((name, ctypes.c_uint32) for name in ("idle_mw", "peak_mw", "load_percent")),
        *((name, ctypes.c_uint32) for name in ("min_mhz", "max_mhz", "step_mhz", "memory_mhz", "locked_mhz")),
        *((name, ctypes.c_uint32) for name in ("temperature_c", "mig", "slices", "links", "lost", "refresh_ms")),
        *((name, ctypes.c_uint32) for name in ("major", "minor", "cores", "bus_bits", "pcie_generation", "pcie_lanes")),
        ("fault", ctypes.c_int32 * len(CALLS)),
        ("delay_ms", ctypes.c_uint32 * len(CALLS)),
        ("calls", ctypes.c_uint32 * len(CALLS)),
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 96),
    ]


class _Board(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("init_fault", ctypes.c_int32),
        ("inits", ctypes.c_uint32),
        ("driver", ctypes.c_char * 80),
        ("gpus", Gpu * 16),
    ]


def library(folder: Path) -> Path:
    """Compiles the stand-in into `folder`. Without a compiler the test is skipped; under CI=true it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("the NVML stand-in needs a C compiler (cc)")
        pytest.skip("the NVML stand-in needs a C compiler (cc)")
    target = folder / _SONAME
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{_SONAME}", "-pthread"]
    done = subprocess.run([compiler, *flags, "-o", target, _SOURCE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


class Boards:
    """The GPUs of a machine: four busy A100-SXM4-80GB until a test says otherwise."""

    def __init__(self, library: Path, path: Path, count: int = 4) -> None:
        self.library = library
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Board)))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._board = _Board.from_buffer(self._map)
        self._board.size, self._board.count = ctypes.sizeof(_Board), count
        self._board.driver = b"570.00.01"
        for index in range(count):
            self._set_up(self._board.gpus[index], index)

    @staticmethod
    def _set_up(gpu: Gpu, index: int) -> None:
        gpu.uuid, gpu.name = f"GPU-{index:08x}-1111-2222-3333-444444444444".encode(), b"NVIDIA A100-SXM4-80GB"
        gpu.since_ns, gpu.energy_uj = time.monotonic_ns(), 10**12 + index * 10**9
        gpu.memory_total_bytes, gpu.memory_used_bytes = 85_899_345_920, 60_000_000_000
        gpu.idle_mw, gpu.peak_mw, gpu.load_percent = 60_000, 400_000, 100
        gpu.min_mhz, gpu.max_mhz, gpu.step_mhz, gpu.memory_mhz = 210, 1410, 15, 1593
        gpu.temperature_c, gpu.links, gpu.refresh_ms = 61, 12, 20
        gpu.major, gpu.minor, gpu.cores, gpu.bus_bits = 8, 0, 6912, 5120
        gpu.pcie_generation, gpu.pcie_lanes = 4, 16

    def __getitem__(self, index: int) -> Gpu:
        return self._board.gpus[index]

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see these boards."""
        return {"NVML_STANDIN": str(self.path), "LD_LIBRARY_PATH": str(self.library.parent)}

    def uuid(self, index: int) -> str:
        return str(self[index].uuid.decode())

    def locked_mhz(self, index: int) -> int:
        return int(self[index].locked_mhz)

    def calls(self, index: int, call: str) -> int:
        return int(self[index].calls[CALLS.index(call)])

    def fail(self, index: int, call: str, code: int) -> None:
        """From now on `call` answers with NVML's `code`; 0 mends it."""
        self[index].fault[CALLS.index(call)] = code

    def slow(self, index: int, call: str, delay_s: float) -> None:
        """From now on `call` takes so long; 0 also lets go those that wait for it."""
        self[index].delay_ms[CALLS.index(call)] = int(delay_s * 1000)

    def lose(self, index: int, lost: bool = True) -> None:
        """The GPU falls off the bus: GPU_IS_LOST."""
        self[index].lost = int(lost)

    def init_fault(self, code: int) -> None:
        self._board.init_fault = code

    @property
    def inits(self) -> int:
        return int(self._board.inits)

    def set_load(self, index: int, percent: int) -> None:
        with self._locked():
            gpu, now_ns = self[index], time.monotonic_ns()
            clock_mhz = gpu.locked_mhz or gpu.max_mhz
            power_mw = gpu.idle_mw + (gpu.peak_mw - gpu.idle_mw) * gpu.load_percent // 100 * clock_mhz // gpu.max_mhz
            gpu.energy_uj += power_mw * (now_ns - gpu.since_ns) // 1_000_000
            gpu.since_ns, gpu.load_percent = now_ns, percent

    def restart_counter(self, index: int) -> None:
        """As when the driver is reloaded."""
        with self._locked():
            self[index].energy_uj, self[index].since_ns = 0, time.monotonic_ns()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Has nvidia-ml-py see these boards in this process: it asks for a name that is loaded then."""
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        before = os.environ.get("NVML_STANDIN")
        os.environ["NVML_STANDIN"] = str(self.path)
        try:
            yield
        finally:
            if before is None:
                del os.environ["NVML_STANDIN"]
            else:
                os.environ["NVML_STANDIN"] = before

    def close(self) -> None:
        del self._board
        self._map.close()
        self._file.close()


@contextmanager
def machine(library: Path, folder: Path, count: int = 4, *, seen: bool = True) -> Iterator[Boards]:
    """Yields the GPUs of a machine, with what they are kept in under `folder`.

    `seen`: this process's driver has them; else only processes with their `environment` see them.
    """
    found = Boards(library, folder / "boards", count)
    try:
        if seen:
            with found.use():
                yield found
        else:
            yield found
    finally:
        found.close()
