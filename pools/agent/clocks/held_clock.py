"""The clock at which an engine was held between two ticks, for rules that change it several times a tick."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HeldClock:
    """The locks of one engine since the last tick.

    What a tick reads is what was locked last: of a rule with half its period, that of every second decision.
    """

    _mhz: float | None = None  # locked now; None: not known
    _since_s: float = 0.0
    _held_s: float = 0.0
    _area: float = 0.0  # MHz times seconds

    def lock(self, now_s: float, mhz: float | None) -> None:
        """Sets what is locked from now on; None: a lease may lapse, so that nothing is known."""
        self._pass(now_s)
        self._mhz = mhz

    def mean_share(self, now_s: float) -> float:
        """Returns the mean since the last call over what is locked now; 1 where that is not known."""
        self._pass(now_s)
        held_s, area, self._held_s, self._area = self._held_s, self._area, 0.0, 0.0
        return area / held_s / self._mhz if self._mhz and held_s > 0.0 else 1.0

    def _pass(self, now_s: float) -> None:
        if self._mhz is None:
            self._held_s = self._area = 0.0
        elif (passed_s := now_s - self._since_s) > 0.0:
            self._held_s += passed_s
            self._area += self._mhz * passed_s
        self._since_s = now_s
