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
        if self.left(now_s) < 1.0:
            return False
        self._left -= 1.0
        return True

    def left(self, now_s: float) -> float:
        """Returns what is left at a moment (monotonic); negative: as much was spent beyond what there was."""
        if self._at_s is None or now_s > self._at_s:
            if self._at_s is not None:
                self._left = min(self._most, self._left + self._per_s * (now_s - self._at_s))
            self._at_s = now_s
        return self._left

    def spend(self, amount: float, now_s: float) -> None:
        """Takes an amount whether or not it is there; a negative one is given back."""
        self._left = min(self._most, self.left(now_s) - amount)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until so much is there, at most what the bucket holds; 0: it is."""
        return max(0.0, (min(amount, self._most) - self.left(now_s)) / self._per_s)
