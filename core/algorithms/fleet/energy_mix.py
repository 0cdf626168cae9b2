"""DynamoLLM's eq. 1, simplified: the mix of TP degrees of least power that carries a load on a pool's GPUs.

    min   sum over modes i of  N_i P_i(L_i / N_i)
    s.t.  sum of  TP_i N_i <= GPUs, for each GPU type
          sum of  Q_i N_i  >= alpha x peak load
          sum of  L_i = load,  L_i <= Q_i N_i

N_i instances of mode i share the load L_i; Q_i is what one carries within the SLO at the top clock. The simplification:
clocks are not chosen here (the clock loop's knob), and an instance's power is taken linear in its load, from its idle
power to its power at Q_i. With that the program is linear in N (whole) and L, and HiGHS solves it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulp

from core.algorithms.fleet import highs
from core.algorithms.fleet.highs import SolverStatus
from core.engine.engine_model import GPUS
from core.types import Mode, ModeProfile


@dataclass(frozen=True, slots=True)
class MixMode:
    """One instance of a mode: its largest rate within the SLO, and its power with nothing to do and at that rate."""

    max_rps: float
    idle_w: float
    busy_w: float

    @property
    def j_per_request(self) -> float:
        return (self.busy_w - self.idle_w) / self.max_rps


def mix_mode(mode: Mode, profile: ModeProfile) -> MixMode:
    """Takes the idle power from the engine model at the top clock; for a GPU it does not know, no less than at full
    load."""
    known = GPUS.get(mode.gpu)
    idle_w = profile.power_w if known is None else min(profile.power_w, mode.tp * known.loaded_idle_w(known.f_max))
    return MixMode(profile.max_rps, idle_w, profile.power_w)


@dataclass(frozen=True, slots=True)
class Mix:
    """Instances by mode, and their power under the load."""

    workers: Mapping[Mode, int]
    power_w: float
    status: SolverStatus


def power_w(workers: Mapping[Mode, int], modes: Mapping[Mode, MixMode], load_rps: float) -> float | None:
    """Returns the power, in W, of a mix when the load goes to the modes of least energy per request first; None: it
    cannot carry it."""
    total_w, left_rps = 0.0, load_rps
    for mode in sorted(workers, key=lambda mode: (modes[mode].j_per_request, mode)):
        figures, count = modes[mode], workers[mode]
        share_rps = min(left_rps, count * figures.max_rps)
        total_w += count * figures.idle_w + share_rps * figures.j_per_request
        left_rps -= share_rps
    return total_w if left_rps <= 1e-6 else None


def solve(
    gpus: Mapping[str, int],
    modes: Mapping[Mode, MixMode],
    load_rps: float,
    need_rps: float,
    time_limit_s: float = 5.0,
    gap: float = 1e-4,
) -> Mix | None:
    """Returns the mix of least power on `gpus` that carries `load_rps` and has capacity for `need_rps`; None: there is
    none.

    Args:
        gpus: GPUs of each type that the pool may use.
        modes: What may run, with figures at the top clock; all with max_rps above 0.
        load_rps: Load that the power is computed at.
        need_rps: Capacity to keep, alpha x the peak load.
    """
    fitting = [mode for mode in sorted(modes) if gpus.get(mode.gpu, 0) >= mode.tp]
    if not fitting:
        return None
    program = pulp.LpProblem("mix", pulp.LpMinimize)
    count = {mode: program.add_variable(f"n{i}", 0, cat=pulp.LpInteger) for i, mode in enumerate(fitting)}
    load = {mode: program.add_variable(f"l{i}", 0) for i, mode in enumerate(fitting)}
    program += pulp.lpSum(modes[m].idle_w * count[m] + modes[m].j_per_request * load[m] for m in fitting)
    for gpu, available in gpus.items():
        taken = [mode.tp * count[mode] for mode in fitting if mode.gpu == gpu]
        if taken:
            program += pulp.lpSum(taken) <= available
    program += pulp.lpSum(modes[mode].max_rps * count[mode] for mode in fitting) >= max(need_rps, load_rps)
    program += pulp.lpSum(load.values()) == load_rps
    for mode in fitting:
        program += load[mode] <= modes[mode].max_rps * count[mode]
    outcome = highs.run(program, time_limit_s, gap)
    if not outcome.found:
        return None
    workers = {mode: n for mode in fitting if (n := round(count[mode].varValue))}
    drawn_w = power_w(workers, modes, load_rps)
    return None if drawn_w is None else Mix(workers, drawn_w, outcome.status)
