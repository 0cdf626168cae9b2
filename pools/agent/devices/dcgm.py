"""The GPUs of a node through NVIDIA's DCGM exporter: for nodes that already run one, or whose agent may not load NVML.

Names and units are the exporter's: energy in mJ since the driver was loaded, power in W, clocks in MHz, memory in MiB.
A MIG instance repeats its board's figures, so a board is read once, by its UUID.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from core.engine.engine_model import GPUS
from core.ports import GpuReading, RetryableError
from pools.metric_names import (
    DCGM_BUSY,
    DCGM_CLOCK,
    DCGM_ENERGY,
    DCGM_MEMORY,
    DCGM_MEMORY_CLOCK,
    DCGM_POWER,
    DCGM_TEMPERATURE,
)

from ..http_client import HttpClient
from .energy_check import EnergyCheck
from .gpu_types import gpu_type

TIMEOUT_S = 1.0
DEFAULT_URL = "http://127.0.0.1:9400"

_READ = (DCGM_ENERGY, DCGM_POWER, DCGM_CLOCK, DCGM_MEMORY_CLOCK, DCGM_BUSY, DCGM_TEMPERATURE, DCGM_MEMORY)
# Those without which an operator should know.
_EXPORTED = {DCGM_ENERGY: "energy counter", DCGM_POWER: "power", DCGM_CLOCK: "SM clock"}

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _Board:
    def __init__(self, labels: Mapping[str, str]) -> None:
        self.index = int(labels.get("gpu", "0"))
        self.gpu_type, self.catalogued = gpu_type(labels.get("modelName", "unknown"))
        self.values: dict[str, float] = {}
        self.slices: set[str] = set()


class DcgmGpuMeter:
    """`ports.GpuMeter`. One scrape a reading; blocks for at most its time-out.

    The exporter samples by itself, each 30 s unless `--collect-interval` (in ms) says otherwise: the energy
    counter stays exact, power and clocks are as old as that.
    """

    def __init__(self, url: str = DEFAULT_URL, timeout_s: float = TIMEOUT_S) -> None:
        """Raises ValueError: that is no address."""
        self._client = HttpClient(url, timeout_s)
        self._check = EnergyCheck()
        self._highest_mhz: dict[str, float] = {}
        self._notices: tuple[str, ...] = ()

    def read(self) -> tuple[GpuReading, ...]:
        page = self._client.call("GET", "/metrics").decode(errors="replace")
        boards = _boards(page)
        if not boards:
            raise RetryableError("the DCGM exporter tells of no GPU: is DCGM_FI_DEV_POWER_USAGE among its counters?")
        at_s = time.time()
        readings = tuple(self._reading(uuid, board, at_s) for uuid, board in boards.items())
        self._notices = tuple(note for uuid, board in boards.items() for note in _remarks(uuid, board))
        self._check.add(readings)
        return tuple(sorted(readings, key=lambda reading: reading.index))

    def notices(self) -> tuple[str, ...]:
        return ("GPUs are metered through the DCGM exporter", *self._notices, *self._check.notices())

    def close(self) -> None:
        self._client.close()

    def _reading(self, uuid: str, board: _Board, at_s: float) -> GpuReading:
        found = board.values.get
        energy_mj, busy = found(DCGM_ENERGY), found(DCGM_BUSY)
        memory_mib, clock_mhz = found(DCGM_MEMORY), found(DCGM_CLOCK)
        known = GPUS.get(board.gpu_type)
        # The exporter does not tell what clocks there are; of a type that is not in the catalogue: the highest seen.
        self._highest_mhz[uuid] = max(self._highest_mhz.get(uuid, 0.0), clock_mhz or 0.0)
        return GpuReading(
            uuid=uuid,
            index=board.index,
            gpu_type=board.gpu_type,
            at_s=at_s,
            energy_j=None if energy_mj is None else energy_mj / 1000.0,
            power_w=found(DCGM_POWER),
            sm_clock_mhz=clock_mhz,
            utilisation=None if busy is None or board.slices else busy / 100.0,
            memory_used_bytes=None if memory_mib is None else int(memory_mib * 2**20),
            temperature_c=found(DCGM_TEMPERATURE),
            min_mhz=known.f_min if known else self._highest_mhz[uuid],
            max_mhz=known.f_max if known else self._highest_mhz[uuid],
            memory_clock_mhz=found(DCGM_MEMORY_CLOCK),
        )


def _boards(page: str) -> dict[str, _Board]:
    """Reads the boards by UUID.

    Of several rows of one board and counter (MIG's instances) the first counts: all agree.
    """
    boards: dict[str, _Board] = {}
    for line in page.splitlines():
        name, _, rest = line.partition("{")
        if name not in _READ:
            continue
        text, _, number = rest.rpartition("}")
        labels = dict(_LABEL.findall(text))
        try:
            value = float(number.split()[0])
            board = boards.setdefault(labels["UUID"], _Board(labels))
        except (IndexError, KeyError, ValueError):
            continue  # a broken line counts as a missing figure, which the notices name
        if "GPU_I_ID" in labels:
            board.slices.add(labels["GPU_I_ID"])
        board.values.setdefault(name, value)
    return boards


def _remarks(uuid: str, board: _Board) -> list[str]:
    found = []
    if lacks := [words for name, words in _EXPORTED.items() if name not in board.values]:
        found.append(f"the DCGM exporter does not tell of {uuid}: {', '.join(lacks)}")
    if board.slices:
        found.append(
            f"{uuid} is divided by MIG into {len(board.slices)} instances; energy, power and clock are the board's, "
            "counted once"
        )
    if not board.catalogued:
        found.append(f"{board.gpu_type} is no GPU type of the catalogue: it is metered, but plans leave it out")
    return found
