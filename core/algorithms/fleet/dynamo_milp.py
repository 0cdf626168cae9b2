"""DynamoLLM's eq. 1 as an integer program (see `dynamo_mix`), in HiGHS.

N_i L_i and Energy(L_i) make eq. 1 nonlinear. What makes it a MILP again, without loss: with n_k instances on the
straight piece k of their curve, from (a_k, A_k) to (b_k, B_k), and l_k their load together, their power is linear in
both, n_k A_k + s_k (l_k - a_k n_k) with slope s_k, for a_k n_k <= l_k <= b_k n_k. A binary z_k chooses one piece, and
with it the clock and the load of each, for all instances of a degree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulp

from core.algorithms.fleet import highs
from core.algorithms.fleet.power_curve import OperatingMix, Operation, Piece
from core.types import Mode


def solve(
    gpus: Mapping[str, int],
    curves: Mapping[Mode, Sequence[Piece]],
    load_rps: float,
    need_rps: float,
    time_limit_s: float = 5.0,
    gap: float = 1e-4,
) -> OperatingMix | None:
    """Returns the mix of least power on `gpus` that carries `load_rps` with capacity for `need_rps`; None: none was
    found.

    Args:
        gpus: GPUs of each type (N).
        curves: For each mode the pieces of one instance's curve, as `pieces` makes them.
        load_rps: L, the load that the power is computed at.
        need_rps: Capacity to keep, alpha x the peak load.
    """
    fitting = {m: list(curves[m]) for m in sorted(curves) if curves[m] and gpus.get(m.gpu, 0) >= m.tp}
    if not fitting:
        return None
    program = pulp.LpProblem("eq1", pulp.LpMinimize)
    count: dict[tuple[Mode, int], pulp.LpVariable] = {}
    load: dict[tuple[Mode, int], pulp.LpVariable] = {}
    chosen: dict[tuple[Mode, int], pulp.LpVariable] = {}
    for m, mode in enumerate(fitting):
        for k in range(len(fitting[mode])):
            count[mode, k] = program.add_variable(f"n{m}_{k}", 0, gpus[mode.gpu] // mode.tp, pulp.LpInteger)
            load[mode, k] = program.add_variable(f"l{m}_{k}", 0)
            chosen[mode, k] = program.add_variable(f"z{m}_{k}", cat=pulp.LpBinary)
    flat = [(mode, k, piece) for mode, own in fitting.items() for k, piece in enumerate(own)]
    program += pulp.LpAffineExpression(
        [(count[m, k], piece.base_w) for m, k, piece in flat] + [(load[m, k], piece.slope) for m, k, piece in flat]
    )
    for mode, k, piece in flat:
        n, rps = count[mode, k], load[mode, k]
        program += rps - piece.high_rps * n <= 0
        if piece.low_rps > 0.0:
            program += rps - piece.low_rps * n >= 0
        program += n - (gpus[mode.gpu] // mode.tp) * chosen[mode, k] <= 0
    for mode, own in fitting.items():
        program += pulp.lpSum(chosen[mode, k] for k in range(len(own))) <= 1
    for gpu, available in gpus.items():
        taken = [(count[mode, k], mode.tp) for mode, k, _ in flat if mode.gpu == gpu]
        if taken:
            program += pulp.LpAffineExpression(taken) <= available
    program += pulp.lpSum(load.values()) == load_rps
    most = {mode: max(piece.high_rps for piece in own) for mode, own in fitting.items()}
    program += pulp.LpAffineExpression([(count[mode, k], most[mode]) for mode, k, _ in flat]) >= need_rps
    outcome = highs.run(program, time_limit_s, gap)
    if not outcome.found:
        return None
    values = {key: (round(count[key].varValue), float(load[key].varValue)) for key in count}
    return _answer(fitting, values, outcome)


def _answer(
    curves: Mapping[Mode, Sequence[Piece]],
    values: Mapping[tuple[Mode, int], tuple[int, float]],
    outcome: highs.SolverResult,
) -> OperatingMix:
    operations = {}
    total_w = 0.0
    for (mode, k), (count, load_rps) in values.items():
        if count:
            piece = curves[mode][k]
            each_rps = min(max(load_rps / count, piece.low_rps), piece.high_rps)
            operations[mode] = Operation(count, piece.mhz, each_rps)
            total_w += count * (piece.base_w + piece.slope * each_rps)
    return OperatingMix(operations, total_w, outcome.status)
