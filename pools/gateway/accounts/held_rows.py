"""Request rows in memory while the disk takes none, within a bound."""

from __future__ import annotations

from collections import deque
from itertools import islice

MOST_ROWS = 100_000
MOST_BYTES = 64 << 20


class HeldRows:
    """Lines of the journal, the oldest first. What is held does not outlive the process."""

    def __init__(self, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> None:
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: bytes) -> bool:
        """Takes a line; False: there is no room."""
        if len(self._lines) >= self._most_rows or self._bytes + len(line) > self._most_bytes:
            return False
        self._lines.append(line)
        self._bytes += len(line)
        return True

    def first(self, most: int) -> list[bytes]:
        return list(islice(self._lines, most))

    def drop_first(self, lines: int) -> None:
        """Forgets the oldest: they are safe elsewhere."""
        for _ in range(lines):
            self._bytes -= len(self._lines.popleft())
