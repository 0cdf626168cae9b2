"""When each sender was last heard, by this host's own clock: wall clocks of two hosts may differ by any amount."""

from __future__ import annotations

from collections.abc import Collection


class Receipts:
    """A message is a new one when its stamp differs from that of the last one, also backwards."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}  # by sender: stamp, and when it was received

    def note(self, sender: str, stamp: float, now_s: float) -> float:
        """Takes note of what a sender says now. Returns when it first said so; both moments are monotonic."""
        last = self._last.get(sender)
        if last is None or last[0] != stamp:
            last = self._last[sender] = stamp, now_s
        return last[1]

    def times(self) -> dict[str, float]:
        """Returns by sender when it was last heard."""
        return {sender: heard_at_s for sender, (_, heard_at_s) in self._last.items()}

    def keep(self, senders: Collection[str]) -> None:
        """Forgets all others."""
        self._last = {sender: last for sender, last in self._last.items() if sender in senders}
