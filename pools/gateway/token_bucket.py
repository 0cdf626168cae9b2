"""A token bucket."""

from __future__ import annotations


class TokenBucket:
    """Allows so many a second, and some at once after a pause."""

    __slots__ = ("_at_s", "_left", "_most", "_per_s")

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s, self._most, self._left = per_s, most, most
        self._at_s: float | None = None

    def give(self, amount: float) -> None:
        """Adds to what time brings."""
        self._left = min(self._most, self._left + amount)

    def take(self, now_s: float) -> bool:
        """Takes one if there is one, and returns whether there was."""
        left = self._left
        if self._at_s is not None:
            left = min(self._most, left + self._per_s * (now_s - self._at_s))
        self._at_s = now_s
        if left < 1.0:
            self._left = left
            return False
        self._left = left - 1.0
        return True
