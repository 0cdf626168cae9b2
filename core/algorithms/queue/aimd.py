"""AIMD: additive increase, multiplicative decrease of how many requests may be under way, as TCP does it.

Work that yields tries a little more while nobody waits, and makes room at once when somebody does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AimdConfig:
    """`increase` is added each period while there is room, `decrease` is what remains when there is none."""

    least: float = 1.0
    most: float = 64.0
    increase: float = 1.0
    decrease: float = 0.5

    def __post_init__(self) -> None:
        if not (0.0 < self.least <= self.most and self.increase > 0.0 and 0.0 < self.decrease < 1.0):
            raise ValueError("AIMD needs 0 < least <= most, increase > 0 and 0 < decrease < 1")


def next_window(window: float, congested: bool | None, full: bool, config: AimdConfig) -> float:
    """Returns the window of the next period. A window that was not `full` says nothing of there being room for more.

    `congested` None: not known, so it stays.
    """
    if congested:
        return max(config.least, window * config.decrease)
    if congested is None or not full:
        return window
    return min(config.most, window + config.increase)
