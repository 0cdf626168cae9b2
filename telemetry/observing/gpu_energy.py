"""Energy of GPUs from the DCGM exporter's pages: exact by the energy counter, else from readings of power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.accounting.counters import STATES, MeterTrace, Slices, plausible, split
from core.units import US_PER_S
from pools.agent.devices.gpu_types import gpu_type
from pools.metric_names import DCGM_BUSY, DCGM_ENERGY, DCGM_MEMORY, DCGM_POWER

from .observation import FigureSource
from .scrapes import SampleKey, Scrape, Target

EMPTY_MIB = 1024.0  # an engine's weights are more
_MOST_W = 20_000.0  # of one GPU, as core/bounds.py has it
_READY = STATES.index("ready")
_UJ_PER_MJ = 1_000
UNKNOWN_GPU = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class GpuEnergy:
    """The energy of one GPU. `engine`: an engine's memory is on it; None: nobody says, and it counts as one.

    `unmetered_s`: the time within which nothing could be metered. `resets`: how often its counter began anew.
    """

    uuid: str
    host: str
    gpu_type: str
    known_type: bool
    engine: bool | None
    source: FigureSource
    slices: Slices
    gpus: int = 1
    unmetered_s: float = 0.0
    resets: int = 0

    @property
    def energy_uj(self) -> int:
        return int(self.slices.energy_uj.sum())


@dataclass(frozen=True, slots=True)
class _Board:
    """Readings of one GPU by metric name, each (Unix seconds, value)."""

    labels: SampleKey
    host: str
    readings: dict[str, list[tuple[float, float]]]


def gpu_energies(targets: Sequence[Target], max_gap_s: float) -> list[GpuEnergy]:
    """Returns the energy of each GPU that has two readings of energy or power.

    Args:
        max_gap_s: The longest time between two readings within which a GPU counts as seen.
    """
    boards: dict[str, _Board] = {}
    for target in targets:
        for scrape in target.read:
            _add(boards, target.name, scrape)
    found = (_energy(uuid, board, max_gap_s) for uuid, board in boards.items())
    return [one for one in found if one is not None]


def _add(boards: dict[str, _Board], host: str, scrape: Scrape) -> None:
    """Adds a page's readings. A MIG instance repeats its board's figures: of one moment the first one counts."""
    for key, value in (scrape.samples or {}).items():
        uuid = key.label("UUID")
        if uuid is None:
            continue
        board = boards.setdefault(uuid, _Board(key, key.label("Hostname") or host, {}))
        readings = board.readings.setdefault(key.name, [])
        if not readings or readings[-1][0] < scrape.at_s:
            readings.append((scrape.at_s, value))


def _energy(uuid: str, board: _Board, max_gap_s: float) -> GpuEnergy | None:
    counted, powers = (board.readings.get(name, []) for name in (DCGM_ENERGY, DCGM_POWER))
    source, unmetered_s = FigureSource.METER, 0.0
    points = [(at_s, round(value * _UJ_PER_MJ)) for at_s, value in counted]
    if len(points) < 2:
        source = FigureSource.POWER
        points, unmetered_s = _summed(powers, max_gap_s)
    if len(points) < 2:
        return None
    used = _memory_used(board)
    trace = _trace(points, board.readings.get(DCGM_BUSY, []), held=used is not False)
    kept = trace.pick(plausible(trace, _MOST_W))
    name, known = gpu_type(board.labels.label("modelName") or UNKNOWN_GPU)
    return GpuEnergy(
        uuid=uuid,
        host=board.host,
        gpu_type=name,
        known_type=known,
        engine=used,
        source=source,
        slices=split(kept, max_gap_s=max_gap_s),
        unmetered_s=unmetered_s,
        resets=int(np.sum(np.diff(kept.energy_uj) < 0)),
    )


def _memory_used(board: _Board) -> bool | None:
    """Says whether something the size of an engine was in the GPU's memory at any time; None: nobody knows."""
    used = board.readings.get(DCGM_MEMORY)
    return max(value for _, value in used) >= EMPTY_MIB if used else None


def _summed(powers: Sequence[tuple[float, float]], max_gap_s: float) -> tuple[list[tuple[float, int]], float]:
    """Returns power summed over time as a counter in microjoules, and the seconds of gaps, in which it stands still."""
    points, total_uj, unmetered_s = [], 0.0, 0.0
    for k, (at_s, watts) in enumerate(powers):
        if k:
            before_s, before_w = powers[k - 1]
            length_s = at_s - before_s
            if length_s <= max_gap_s:
                total_uj += 0.5 * (watts + before_w) * length_s * 1e6
            else:
                unmetered_s += length_s
        points.append((at_s, round(total_uj)))
    return points, unmetered_s


def _trace(points: Sequence[tuple[float, int]], busy: Sequence[tuple[float, float]], held: bool) -> MeterTrace:
    """Returns the readings as the ledger's: a GPU that is at work serves, one that is not is idle."""
    at_work = {at_s: int(share > 0.0) for at_s, share in busy}
    rows = [(round(at_s * US_PER_S), uj, int(held), _READY, at_work.get(at_s, -1)) for at_s, uj in points]
    return MeterTrace(*np.array(rows, np.int64).T)


def declared_energy(
    watts: float, gpus: int, gpu: str, running: Sequence[tuple[float, float | None]], max_gap_s: float
) -> GpuEnergy:
    """Returns the energy of GPUs without a meter, at the watts that were declared for each.

    Args:
        running: When engines were asked, in Unix seconds, and how many requests ran; None: nobody knows.
    """
    begin_s = running[0][0]
    points = [(at_s, round(watts * gpus * (at_s - begin_s) * 1e6)) for at_s, _ in running]
    busy = [(at_s, count) for at_s, count in running if count is not None]
    slices = split(_trace(points, busy, held=True), max_gap_s=max_gap_s)
    return GpuEnergy("declared", "declared", gpu, gpu != UNKNOWN_GPU, True, FigureSource.DECLARED, slices, gpus)
