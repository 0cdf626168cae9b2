"""throttLL'eM's clock (IV-E): after every admission, the lowest one at which all that run keep their limits.

The same projection and the same checks as for admission, by binary search over the clocks that the GPU offers. While a
lost request is in the batch nothing is searched and the top clock is taken; so it is when no clock keeps every limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.algorithms.clock.projection import E2E, KEPT, TBT, Scoreboard, Search, lowest_clock, project
from core.algorithms.clock.speed_table import SpeedTable
from core.controllers.basis import basis_json
from core.types import Alternative, Effects, Rationale, Reason, SetSmClock

_BROKE = {KEPT: None, TBT: "mean time between tokens", E2E: "a deadline"}


@dataclass(frozen=True, slots=True)
class ThrottleConfig:
    """`tbt_s` limits the mean projected time between tokens; None: no limit. The paper's: 200 ms (V-A)."""

    tbt_s: float | None = 0.2

    def __post_init__(self) -> None:
        if self.tbt_s is not None and self.tbt_s <= 0.0:
            raise ValueError(f"no engine keeps {self.tbt_s:g} s between tokens")


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """The clock last asked for; None: none yet."""

    target_mhz: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThrottleObservation:
    """An engine and all that it runs, the requests admitted just now included.

    `core.controllers.request.admission.board_after` makes the board.
    """

    now_s: float
    instance: str
    board: Scoreboard
    speed: SpeedTable


def step(
    state: ThrottleState | None, obs: ThrottleObservation, config: ThrottleConfig
) -> tuple[ThrottleState, Effects]:
    """Makes one search; a SetSmClock when the clock changes. There is no next tick: the next admission is one."""
    top_mhz = float(obs.speed.clocks_mhz[-1])
    if obs.board.lost.any():
        lost = int(obs.board.lost.sum())
        return _answer(state, obs, top_mhz, Reason.LOST, f"{lost} lost in the batch", Search(None, ()))
    projection = project(obs.board, obs.speed.shape.block_tokens, obs.speed.shape.chunk_tokens)
    found = lowest_clock(obs.board, projection, obs.speed, obs.now_s, config.tbt_s)
    if found.clock is None:
        return _answer(state, obs, top_mhz, Reason.AT_LIMIT, "No clock keeps every limit", found)
    mhz = float(obs.speed.clocks_mhz[found.clock])
    why = f"The lowest clock that keeps the limits of {obs.board.size}" if obs.board.size else "Nothing runs"
    return _answer(state, obs, mhz, Reason.WITHIN_LIMITS, why, found)


def _answer(
    state: ThrottleState | None, obs: ThrottleObservation, mhz: float, reason: Reason, why: str, found: Search
) -> tuple[ThrottleState, Effects]:
    asked = None if state is None else state.target_mhz
    move = f"{mhz:.0f} MHz" if asked in (None, mhz) else f"{asked:.0f} MHz -> {mhz:.0f} MHz"
    clocks = obs.speed.clocks_mhz
    tried = tuple(
        Alternative(
            f"{clocks[clock]:.0f} MHz", chosen=clock == found.clock, feasible=broke == KEPT, failed=_BROKE[broke]
        )
        for clock, broke in found.probes
    )
    inputs: dict[str, Any] = {
        "from_mhz": asked,
        "to_mhz": mhz,
        "min_mhz": float(clocks[0]),
        "max_mhz": float(clocks[-1]),
        "running": obs.board.size,
        "lost": int(obs.board.lost.sum()),
        **({} if obs.speed.basis is None else basis_json(obs.speed.basis)),
    }
    commands = () if mhz == asked else (SetSmClock(obs.instance, mhz),)
    return ThrottleState(mhz), Effects(commands, None, Rationale(reason, f"{why}: {move}.", inputs, tried))
