"""DynamoLLM's eq. 1 in full: how many instances of each TP degree, at which clock, under which load, for least power.

    min   sum over TP degrees i of  N_i Energy_{i, f_i}(L_i)
    s.t.  sum of  i N_i <= N,  sum of  N_i L_i >= L,  Performance_{i, f_i}(L_i) <= SLO

All instances of a degree run at one clock f_i and carry the same load L_i. A clock only matters through the power at a
load, so a degree has one curve: at each load the cheapest clock among those that keep the SLO there, cut into straight
pieces. Curves are not convex, since an instance that does anything draws much more than an idle one.

Beside the paper's constraints the mix has capacity for a peak, at the highest loads that the SLO allows.

Two exact solvers: `solve` counts through the N_i of up to three modes (`mix_search`), a thousandth of a second for 128
GPUs; that of `dynamo_milp`, which states the program, is for more modes or more GPUs. A test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet import dynamo_milp, mix_search
from core.algorithms.fleet.highs import SolverStatus
from core.algorithms.fleet.power_curve import OperatingMix, Operation, Piece
from core.types import Mode

MOST_MODES = 3
MOST_VECTORS = 2_000_000  # counts of instances to go through; beyond, the integer program is faster


def solve(
    gpus: Mapping[str, int],
    curves: Mapping[Mode, Sequence[Piece]],
    load_rps: float,
    need_rps: float,
    time_limit_s: float = 5.0,
    gap: float = 1e-4,
) -> OperatingMix | None:
    """Returns the mix of least power on `gpus` that carries `load_rps` and has capacity for `need_rps`; None: none was
    found.

    Args:
        gpus: GPUs of each type (N).
        curves: For each mode the pieces of one instance's curve, as `power_curve.pieces` makes them.
        load_rps: L, the load that the power is computed at.
        need_rps: Capacity to keep, alpha x the peak load.
        time_limit_s: For the integer program, as is `gap`; counting needs neither.
    """
    fitting = {m: tuple(curves[m]) for m in sorted(curves) if curves[m] and gpus.get(m.gpu, 0) >= m.tp}
    if not fitting:
        return None
    vectors = float(np.prod([gpus[mode.gpu] // mode.tp + 1 for mode in fitting]))
    if len(fitting) > MOST_MODES or vectors > MOST_VECTORS:
        return dynamo_milp.solve(gpus, fitting, load_rps, need_rps, time_limit_s, gap)
    return _search(gpus, fitting, load_rps, need_rps)


def _search(
    gpus: Mapping[str, int], curves: Mapping[Mode, Sequence[Piece]], load_rps: float, need_rps: float
) -> OperatingMix | None:
    modes = list(curves)
    types = sorted({mode.gpu for mode in modes})
    lengths, table = _arrays(list(curves.values()))
    power_w, counts, loads, clocks = mix_search.search(
        np.array([mode.tp for mode in modes]),
        np.array([types.index(mode.gpu) for mode in modes]),
        np.array([gpus[gpu] for gpu in types]),
        lengths,
        table,
        load_rps,
        max(load_rps, need_rps),
    )
    if not np.isfinite(power_w):
        return None
    operations = {
        mode: Operation(int(counts[m]), float(clocks[m]), float(loads[m])) for m, mode in enumerate(modes) if counts[m]
    }
    return OperatingMix(operations, float(power_w), SolverStatus.OPTIMAL)


def power_w(workers: Mapping[Mode, int], curves: Mapping[Mode, Sequence[Piece]], load_rps: float) -> float | None:
    """Returns the power, in W, of a mix under a load, shared as is best among its modes; None: it cannot carry it, or
    has no curve."""
    present = [mode for mode in sorted(workers) if workers[mode]]
    if not all(curves.get(mode) for mode in present):
        return None
    if not present:
        return 0.0 if load_rps <= 0.0 else None
    lengths, table = _arrays([curves[mode] for mode in present])
    counts = np.array([workers[mode] for mode in present])
    found = mix_search.fixed(counts, lengths, table, load_rps)
    return float(found) if np.isfinite(found) else None


def _arrays(curves: Sequence[Sequence[Piece]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns how many pieces each mode has, (modes,), and the table of them that `mix_search` works on."""
    lengths = np.array([len(own) for own in curves])
    table = np.zeros((len(curves), int(lengths.max()), 5))
    for m, own in enumerate(curves):
        for k, piece in enumerate(own):
            table[m, k] = piece.low_rps, piece.high_rps, piece.low_w, piece.high_w, piece.mhz
    return lengths, table
