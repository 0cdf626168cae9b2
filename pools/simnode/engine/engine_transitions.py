"""The transitions of a simulated engine before it serves, step by step, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from core.engine.overheads import Overheads, cold_start_s, fall_asleep_s, wake_s


@dataclass(frozen=True, slots=True)
class Transition:
    """Steps of (what, seconds), from `began_s` on (monotonic seconds)."""

    steps: tuple[tuple[str, float], ...]
    began_s: float

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.steps)

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.began_s + self.total_s - now_s)

    def progress(self, now_s: float) -> float:
        """Returns the share of the time that has passed, 0 to 1."""
        return min(1.0, max(0.0, (now_s - self.began_s) / self.total_s)) if self.total_s > 0.0 else 1.0

    def doing(self, now_s: float) -> str:
        """Returns the steps under way, in words for an operator."""
        begins_s = accumulate((seconds for _, seconds in self.steps), initial=self.began_s)
        under_way = [step for (step, _), began_s in zip(self.steps, begins_s, strict=False) if began_s <= now_s]
        what = under_way[-1] if under_way else self.steps[0][0]
        return f"{what}, ready in {self.left_s(now_s):.1f} s ({self.progress(now_s):.0%})"


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of one instance's transitions, `speedup` times faster than published or measured."""

    overheads: Overheads
    speedup: float
    model: str
    tp: int

    def cold_start(self, now_s: float) -> Transition:
        """Returns a start where the machine runs and has the weights on its disk."""
        engine_s = self.overheads.start.engine_s
        whole_s = cold_start_s(self.overheads, model_name=self.model)
        return self._of([("setting up the engine", engine_s), ("loading weights", whole_s - engine_s)], now_s)

    def fall_asleep(self, level: int, now_s: float) -> Transition:
        return self._of([("falling asleep", fall_asleep_s(self.overheads, level, self.model, self.tp))], now_s)

    def wake(self, level: int, now_s: float) -> Transition:
        return self._of([("waking up", wake_s(self.overheads, level, self.model, self.tp))], now_s)

    def reshard(self, what: str, seconds: float, now_s: float) -> Transition:
        return self._of([(what, seconds)], now_s)

    def _of(self, steps: Sequence[tuple[str, float]], now_s: float) -> Transition:
        return Transition(tuple((what, seconds / self.speedup) for what, seconds in steps), now_s)
