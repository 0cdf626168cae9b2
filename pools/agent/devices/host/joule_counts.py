"""Counts a domain's joules from the agent's start, whatever its device gives: a counter that wraps, or power."""

from __future__ import annotations

# No processor package or memory domain draws more: within the time that it would take to wrap, a lower counter wrapped
# once; after a longer silence it may have wrapped more often, and nobody knows.
MOST_DOMAIN_W = 2_000.0


class CounterTally:
    """Follows a device's cumulative counter. `wraps_j`: where it starts again at 0; None: it does so by a reset only.

    What is not known is never guessed: after a reset, or a silence in which the counter may have wrapped more than
    once, the tally starts again from 0, which the ledger takes for a counter that was reset.
    """

    def __init__(self, wraps_j: float | None = None) -> None:
        self._wraps_j = wraps_j
        self._before: tuple[float, float] | None = None  # when, and the device's counter
        self.energy_j = 0.0

    def add(self, at_s: float, counter_j: float) -> float:
        """Returns the joules so far. `at_s`: monotonic seconds."""
        if self._before is not None:
            before_s, before_j = self._before
            used_j = counter_j - before_j
            if self._wraps_j is not None:
                sure = (at_s - before_s) * MOST_DOMAIN_W < self._wraps_j
                used_j = (used_j + self._wraps_j if used_j < 0.0 else used_j) if sure else -1.0
            self.energy_j = 0.0 if used_j < 0.0 else self.energy_j + used_j
        self._before = at_s, counter_j
        return self.energy_j


class PowerTally:
    """Integrates power between readings, by trapezoids. Over a gap longer than `longest_gap_s` it is not known."""

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._before: tuple[float, float] | None = None
        self.energy_j = 0.0

    def add(self, at_s: float, power_w: float) -> float:
        """Returns the joules so far. `at_s`: monotonic seconds."""
        if self._before is not None:
            before_s, before_w = self._before
            length_s = at_s - before_s
            known = 0.0 <= length_s <= self._longest_gap_s
            self.energy_j = self.energy_j + (before_w + power_w) / 2.0 * length_s if known else 0.0
        self._before = at_s, power_w
        return self.energy_j
