"""Clock decisions on their way to the record: run-length encoded, since most seconds decide what the one before did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pools.wire import ClockDecision

REPORT_EVERY_S = 30.0  # equal decisions are reported as one, at least this often

Inputs = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision before run-length encoding."""

    at_s: float
    reason: str
    summary: str
    from_mhz: float
    to_mhz: float
    inputs: Inputs

    @property
    def kind(self) -> tuple[str, int]:
        return self.reason, (self.to_mhz > self.from_mhz) - (self.to_mhz < self.from_mhz)


class DecisionLog:
    """Run-length encoding of one engine's decisions: each change at once, then the equal ones after it as one row.

    A row with `held` 0 is one decision; a row with `held` n stands for n decisions equal to the row before.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._last: Decided | None = None
        self._from_mhz = 0.0  # where the unreported run began
        self._held = 0
        self._reported_s = 0.0

    def add(self, decided: Decided) -> list[ClockDecision]:
        if self._last is None or decided.kind != self._last.kind:
            rows = self.flush()
            self._last, self._reported_s = decided, decided.at_s
            return [*rows, self._row(decided, decided.from_mhz, 0)]
        if not self._held:
            self._from_mhz = decided.from_mhz
        self._held += 1
        self._last = decided
        return self.flush() if decided.at_s - self._reported_s >= REPORT_EVERY_S else []

    def flush(self) -> list[ClockDecision]:
        if self._last is None or not self._held:
            return []
        row = self._row(self._last, self._from_mhz, self._held)
        self._held, self._reported_s = 0, self._last.at_s
        return [row]

    def _row(self, decided: Decided, from_mhz: float, held: int) -> ClockDecision:
        return ClockDecision(
            at_s=decided.at_s,
            instance_uid=self._uid,
            reason=decided.reason,
            summary=decided.summary,
            from_mhz=from_mhz,
            to_mhz=decided.to_mhz,
            held=held,
            inputs=dict(decided.inputs),
        )
