"""Clock decisions on their way to the record: run-length encoded, since most seconds decide what the one before did.

Gateways ask for other clocks several times a second: of these there is a row each few seconds, with the range that they
were in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pools.wire import ClockDecision

REPORT_EVERY_S = 30.0  # equal decisions are reported as one, at least this often
ASKED_EVERY_S = 10.0  # and so are other clocks than before that gateways ask for

Inputs = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision before run-length encoding. `asked`: the clock is one that a gateway asks for."""

    at_s: float
    reason: str
    summary: str
    from_mhz: float
    to_mhz: float
    inputs: Inputs
    asked: bool = False

    @property
    def kind(self) -> tuple[str, int]:
        if self.asked:
            return "asked", 0
        return self.reason, (self.to_mhz > self.from_mhz) - (self.to_mhz < self.from_mhz)


class DecisionLog:
    """Run-length encoding of one engine's decisions: each change at once, then the equal ones after it as one row.

    A row with `held` 0 is one decision; a row with `held` n stands for n decisions that are equal to the row before, or
    asked for as that was.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._last: Decided | None = None
        self._from_mhz = 0.0  # where the unreported run began
        self._range_mhz = (0.0, 0.0)  # that it was in
        self._held = 0
        self._reported_s = 0.0

    def add(self, decided: Decided) -> list[ClockDecision]:
        if self._last is None or decided.kind != self._last.kind:
            rows = self.flush()
            self._last, self._reported_s = decided, decided.at_s
            return [*rows, self._row(decided, decided.from_mhz, 0)]
        if not self._held:
            self._from_mhz, self._range_mhz = decided.from_mhz, (decided.to_mhz, decided.to_mhz)
        self._held += 1
        self._last = decided
        self._range_mhz = min(self._range_mhz[0], decided.to_mhz), max(self._range_mhz[1], decided.to_mhz)
        moves = decided.asked and self._range_mhz[0] < self._range_mhz[1]
        every_s = ASKED_EVERY_S if moves else REPORT_EVERY_S
        return self.flush() if decided.at_s - self._reported_s >= every_s else []

    def flush(self) -> list[ClockDecision]:
        if self._last is None or not self._held:
            return []
        row = self._row(self._whole(self._last), self._from_mhz, self._held)
        self._held, self._reported_s = 0, self._last.at_s
        return [row]

    def _whole(self, last: Decided) -> Decided:
        """Returns the last decision of a run, with the range of clocks that were asked for."""
        least_mhz, most_mhz = self._range_mhz
        if not last.asked or least_mhz == most_mhz:
            return last
        words = f"{last.summary} It is the last of {self._held}, from {least_mhz:.0f} to {most_mhz:.0f} MHz."
        return replace(last, summary=words, inputs={**last.inputs, "least_mhz": least_mhz, "most_mhz": most_mhz})

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
