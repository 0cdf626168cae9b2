"""How much more a fleet is to have than what came asks for, by what was spent of its error budget.

A replay of what came, and an engine model, say how many instances keep a promise. Both may be wrong, and what was late
is what they missed. The burn rate (Site Reliability Workbook, Google 2018, chapter 5) is how many times too fast the
requests that may be late are used up. What comes again may be late less often where too many were, so that the budget
is whole again in `whole_in_s`. Where the burn rate is above 1 over the last minutes and over the last hour, and
requests were late that came after the fleet could have learned from the others, there is head-room; it is given back
slowly, once the budget of the hour and of three days is whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

WINDOWS_S = (300.0, 3600.0, 3.0 * 86400.0)
FEWEST_LATE = 2.0  # that are no chance


@dataclass(frozen=True, slots=True)
class ErrorBudgetConfig:
    """`late_share`: of requests that may be late. `whole_in_s`: in which a budget that was overspent is to be whole;
    what was late in the last hour is half an hour old in the mean. `step`: how much more head-room at a time, as a
    share; `most`: of it. `helps_in_s`: after which a change of the fleet helps: a look, and the start of an instance.
    `back_s`: in which a step is given back.
    """

    late_share: float = 0.01
    whole_in_s: float = 1800.0
    step: float = 0.1
    most: float = 2.0
    helps_in_s: float = 60.0
    back_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0.0 < self.late_share < 1.0 or self.step < 0.0 or self.most < 1.0:
            raise ValueError("late_share above 0 and below 1, step from 0, most from 1")
        if min(self.whole_in_s, self.helps_in_s, self.back_s) <= 0.0:
            raise ValueError("whole_in_s, helps_in_s and back_s above 0")


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Counts what has ended and what of it was late, weighted by its age for each of WINDOWS_S; holds the head-room.

    `headroom`: capacity over what came asks for. `burns_since_s`: since when too much is late and the fleet could learn
    from it, or has more head-room; None: not too much is. `unhelped`: late requests since that could help.
    """

    ended: tuple[float, ...] = (0.0,) * len(WINDOWS_S)
    late: tuple[float, ...] = (0.0,) * len(WINDOWS_S)
    headroom: float = 1.0
    unhelped: float = 0.0
    looked_s: float | None = None
    burns_since_s: float | None = None

    def burns(self, config: ErrorBudgetConfig) -> tuple[float, ...]:
        """Returns the burn rate over each of WINDOWS_S; 0 where nothing ended."""
        pairs = zip(self.late, self.ended, strict=True)
        return tuple(late / ended / config.late_share if ended else 0.0 for late, ended in pairs)

    def share_left(self, rps: float, config: ErrorBudgetConfig) -> float:
        """Returns the share of requests that may be late from now on, where `rps` come, so that the budget of the hour
        and of three days is whole in `whole_in_s`; at most `late_share`."""
        ahead = rps * config.whole_in_s
        if not ahead:
            return config.late_share
        windows = list(zip(self.ended, self.late, strict=True))[1:]
        left = min(config.late_share * (ended + ahead) - late for ended, late in windows)
        return min(config.late_share, max(0.0, left / ahead))

    def renewed(self, now_s: float, ended: int, late: int, config: ErrorBudgetConfig) -> ErrorBudget:
        """Returns it after another look, since which some requests ended, and some of them late."""
        past_s = 0.0 if self.looked_s is None else now_s - self.looked_s
        fades = [math.exp(-past_s / window_s) for window_s in WINDOWS_S]
        found = replace(
            self,
            ended=tuple(own * fade + ended for own, fade in zip(self.ended, fades, strict=True)),
            late=tuple(own * fade + late for own, fade in zip(self.late, fades, strict=True)),
            looked_s=now_s,
        )
        minutes, hour, days = found.burns(config)
        if min(minutes, hour) > 1.0:
            return found._burning(now_s, late, config)
        found = replace(found, unhelped=0.0, burns_since_s=None)
        if max(hour, days) < 1.0:
            given_back = (1.0 + config.step) ** (past_s / config.back_s)
            return replace(found, headroom=max(1.0, self.headroom / given_back))
        return found

    def _burning(self, now_s: float, late: int, config: ErrorBudgetConfig) -> ErrorBudget:
        if self.burns_since_s is None:
            return replace(self, burns_since_s=now_s)
        if now_s - self.burns_since_s < config.helps_in_s:
            return self
        unhelped = self.unhelped + late
        if unhelped < FEWEST_LATE:
            return replace(self, unhelped=unhelped)
        more = min(config.most, self.headroom * (1.0 + config.step))
        return replace(self, headroom=more, unhelped=0.0, burns_since_s=now_s)
