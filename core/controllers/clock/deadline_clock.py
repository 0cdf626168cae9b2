"""GreenServe's clock by deadlines: the lowest at which the requests that are there keep their limits.

The search is `core.algorithms.clock.deadline_clock`'s. An engine with nothing to do is at the lowest clock that the
policy allows, and one where no clock keeps every limit at its top.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.deadline_clock import (
    NO_SLACK_S,
    answers_in_time,
    hurried_mhz,
    in_time,
    lowest_after_switch,
    next_iteration_mhz,
)
from core.controllers.basis import basis_json
from core.engine.compiled_model import F_MAX
from core.engine.measured import Basis
from core.ports import EngineLimits
from core.types import Alternative, Effects, Rationale, Reason, SetSmClock

Floats = NDArray[np.float64]
FIRST_TOKEN, BETWEEN_TOKENS = "a first token's deadline", "mean time between tokens"
ROOM = "room in cache and batch"


@dataclass(frozen=True, slots=True, eq=False)
class DeadlineConfig:
    """An engine: its costs of shape (costs,), of `core.engine.compiled_model`, its limits, and the clocks looked at,
    which are the floor and those `step_mhz` apart below the top.

    `switch_s`: from asking for a clock until it is there. `ahead`: the limits of all that waits are kept; else those of
    the next iteration (VoltanaLLM).
    """

    costs: Floats
    limits: EngineLimits
    floor_mhz: float
    step_mhz: float
    basis: Basis | None = None
    switch_s: float = 0.0
    ahead: bool = True

    def __post_init__(self) -> None:
        if self.step_mhz <= 0.0:
            raise ValueError(f"clocks are no {self.step_mhz:g} MHz apart")

    @property
    def top_mhz(self) -> float:
        return float(self.costs[F_MAX])

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Tokens of an iteration, those of one prompt, and requests at a time, at most."""
        budget = self.limits.max_num_batched_tokens
        return budget, self.limits.chunk_tokens or budget, self.limits.max_num_seqs


@dataclass(frozen=True, slots=True)
class DeadlineState:
    """The clock last asked for; None: none yet."""

    target_mhz: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeadlineObservation:
    """What an engine has to do.

    Attributes:
        prompts: Of `core.algorithms.clock.deadline_clock.PROMPT`, (prompts,), in the order in which they are taken in.
        decodes, context_tokens: Answers under way, and the sum of their tokens in the cache.
        slack_s: The least time by which one of them is ahead of its limit; NO_SLACK_S: none is looked at.
        tpot_s: The strictest limit on the time between tokens of all requests; infinite: there are none.
        share: Of their limits that answers may use (`left_of_limits`).
    """

    now_s: float
    instance: str
    prompts: NDArray[np.void]
    decodes: int = 0
    context_tokens: int = 0
    slack_s: float = NO_SLACK_S
    tpot_s: float = inf
    share: float = 1.0

    @property
    def answers(self) -> tuple[int, int, float, float, float]:
        """The answers under way, as searches take them: count, tokens, slack, limit, and the time of now."""
        return self.decodes, self.context_tokens, self.slack_s, self.tpot_s, self.now_s

    @property
    def idle(self) -> bool:
        return self.decodes == 0 and len(self.prompts) == 0


def step(
    state: DeadlineState | None, obs: DeadlineObservation, config: DeadlineConfig
) -> tuple[DeadlineState, Effects]:
    """Makes one search; a SetSmClock when the clock changes. There is no next tick: the next look is one."""
    asked = None if state is None else state.target_mhz
    needed_mhz = _needed_mhz(config.floor_mhz if asked is None else asked, obs, config)
    mhz = needed_mhz
    if config.ahead:
        c, floor_mhz, step_mhz = config.costs, config.floor_mhz, config.step_mhz
        mhz = hurried_mhz(c, mhz, floor_mhz, step_mhz, obs.prompts, *obs.answers, *config.bounds, obs.share)
    if mhz == asked:
        return state or DeadlineState(mhz), Effects((), None, _held(mhz))
    return DeadlineState(mhz), Effects(
        (SetSmClock(obs.instance, mhz),), None, _why(asked, needed_mhz, mhz, obs, config)
    )


def _needed_mhz(present_mhz: float, obs: DeadlineObservation, config: DeadlineConfig) -> float:
    c, floor_mhz, step_mhz = config.costs, config.floor_mhz, config.step_mhz
    if not config.ahead:
        answers = obs.decodes, obs.context_tokens, obs.tpot_s, obs.now_s
        return next_iteration_mhz(c, floor_mhz, step_mhz, obs.prompts, *answers, *config.bounds)
    switch_s, prompts = config.switch_s, obs.prompts
    return lowest_after_switch(c, present_mhz, switch_s, floor_mhz, step_mhz, prompts, *obs.answers, *config.bounds)


def kept_at(mhz: float, obs: DeadlineObservation, config: DeadlineConfig) -> str | None:
    """Returns what breaks at a clock; None: every limit is kept."""
    if obs.idle:
        return None
    if obs.prompts.shape[0] == 0:
        kept = answers_in_time(config.costs, mhz, obs.decodes, obs.context_tokens, obs.slack_s, obs.tpot_s)
        return None if kept else BETWEEN_TOKENS
    if _in_time(mhz, obs.prompts, obs, config):
        return None
    whenever = obs.prompts.copy()
    whenever["due_s"] = inf
    return FIRST_TOKEN if _in_time(mhz, whenever, obs, config) else BETWEEN_TOKENS


def _in_time(mhz: float, prompts: NDArray[np.void], obs: DeadlineObservation, config: DeadlineConfig) -> bool:
    return bool(in_time(config.costs, mhz, prompts, *obs.answers, *config.bounds))


def _held(mhz: float) -> Rationale:
    return Rationale(Reason.NO_CHANGE, f"It stays at {mhz:.0f} MHz.", {"to_mhz": mhz})


def _why(
    asked: float | None, needed_mhz: float, mhz: float, obs: DeadlineObservation, config: DeadlineConfig
) -> Rationale:
    """Says what the clock is for, and which limit the next lower one would break."""
    count = obs.prompts.shape[0]
    prompts = "1 prompt that waits" if count == 1 else f"{count} prompts that wait"
    there = f"{prompts} and {obs.decodes} answer{'' if obs.decodes == 1 else 's'}"
    lower_mhz = max(config.floor_mhz, mhz - config.step_mhz)
    breaks = kept_at(mhz, obs, config)
    if obs.idle:
        reason, why, failed = Reason.WITHIN_LIMITS, "Nothing is to be done", None
    elif breaks is not None:
        reason, why, failed = Reason.AT_LIMIT, f"No clock keeps the limits of {there}: {breaks}", breaks
    elif mhz > needed_mhz:
        reason, failed = Reason.WITHIN_LIMITS, ROOM
        why = f"Cache or batch fill up, which leaves {obs.share:.0%} of the limits to {there}"
    else:
        failed = kept_at(lower_mhz, obs, config) if lower_mhz < mhz else None
        reason, why = Reason.WITHIN_LIMITS, f"The lowest clock that keeps the limits of {there}"
    move = f"{mhz:.0f} MHz" if asked is None else f"{asked:.0f} MHz -> {mhz:.0f} MHz"
    tried = [Alternative(f"{mhz:.0f} MHz", chosen=True, feasible=breaks is None, failed=breaks)]
    if lower_mhz < mhz and not obs.idle:
        tried.append(Alternative(f"{lower_mhz:.0f} MHz", feasible=failed is None, failed=failed))
    due_s = obs.prompts["due_s"].min(initial=inf) - obs.now_s
    inputs: dict[str, Any] = {
        "from_mhz": asked,
        "to_mhz": mhz,
        "min_mhz": config.floor_mhz,
        "max_mhz": config.top_mhz,
        "prompts": int(obs.prompts.shape[0]),
        "prompt_tokens": int(obs.prompts["left"].sum()),
        "decodes": obs.decodes,
        "context_tokens": obs.context_tokens,
        "first_due_in_s": float(due_s) if isfinite(due_s) else None,
        "slack_s": None if obs.slack_s >= NO_SLACK_S else obs.slack_s,
        "tpot_limit_s": obs.tpot_s if isfinite(obs.tpot_s) else None,
        "share_of_limits": obs.share,
        "binds": failed,
        **({} if config.basis is None else basis_json(config.basis)),
    }
    return Rationale(reason, f"{why}: {move}.", inputs, tuple(tried))
