"""Slack-driven MIAD of a device's clock, weighted by sensitivity (mu-Serve, section 3.4, Algorithm 3).

For each model partition on the device, with target latency T, actual latency A and weight w (its sensitivity):
slack = (T - A) / T. A slack under 0.05 asks for the double clock; one that stays above 0.05 after a step down, by
w A STEP / f / T, allows that step.

As printed the last partition to allow a step decides for all. What is meant: one that needs more raises the clock, and
it is lowered only if every partition allows it. A busy partition of which no latency is known allows nothing; an idle
one allows everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    UP = "up"
    DOWN = "down"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """STEP is not in the paper: 100 MHz is the step of its measurements. `reserve` is the slack that is kept."""

    step_mhz: float = 100.0
    increase: float = 2.0
    reserve: float = 0.05

    def __post_init__(self) -> None:
        if self.step_mhz <= 0.0 or self.increase <= 1.0 or not 0.0 <= self.reserve < 1.0:
            raise ValueError("slack-driven MIAD needs step_mhz > 0, increase > 1 and reserve in [0, 1)")


def slack(target_s: float, latency_s: float) -> float:
    """Returns the share of the target that is left; below 0 when it is missed."""
    return (target_s - latency_s) / target_s


def wanted(target_s: float, latency_s: float, weight: float, mhz: float, config: SlackConfig) -> Action:
    """Returns what one partition asks of the clock, from the share of its latency target that is left."""
    left = slack(target_s, latency_s)
    if left < config.reserve:
        return Action.UP
    degradation_s = weight * latency_s * config.step_mhz / mhz
    return Action.DOWN if degradation_s / target_s < left - config.reserve else Action.SAME


def agreed(actions: list[Action]) -> Action:
    """Returns what a device does when its partitions ask for these; with none on it, the clock goes down."""
    if Action.UP in actions:
        return Action.UP
    return Action.SAME if Action.SAME in actions else Action.DOWN


def next_clock_mhz(mhz: float, action: Action, min_mhz: float, max_mhz: float, config: SlackConfig) -> float:
    """Returns the clock in MHz after an action: times `increase`, less `step_mhz`, or the same, within its range."""
    if action is Action.UP:
        return min(max_mhz, mhz * config.increase)
    return max(min_mhz, mhz - config.step_mhz) if action is Action.DOWN else mhz
