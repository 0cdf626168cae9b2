"""Heads of HTTP messages that were seen before: who sends many messages over one connection repeats their heads.

The parser (llhttp) has taken a head apart once, and what it means was kept. Another message whose head is the same byte
for byte, but for the digits that give its body's length, means the same. Only whole messages are recognised, exactly as
long as they say, where the parser stands between two messages; anything else goes to the parser.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_BYTES = 2048  # of a head worth keeping: there is one for each connection
_MAX_DIGITS = 12
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class KnownHead(Generic[T]):
    """A head and its `meaning`."""

    __slots__ = ("_after", "_before", "_before_bytes", "meaning")

    def __init__(self, before: bytes, after: bytes, meaning: T) -> None:
        """Keeps a head in two parts: `before` the digits of its body's length, and `after` them to its end."""
        self._before, self._after = before, after
        self._before_bytes = len(before)
        self.meaning = meaning

    @classmethod
    def of(cls, data: bytes, body_bytes: int, meaning: T) -> KnownHead[T] | None:
        """Returns the head of a message that the parser found at the end of these bytes, with a body so long.

        None: it cannot be recognised, as where the bytes are more than one message, or the body came in chunks.
        """
        end = data.find(b"\r\n\r\n", 0, MAX_BYTES) + 4
        length = _LENGTH.search(data, 0, end) if end >= 4 else None
        if length is None or not int(length[1]) == body_bytes == len(data) - end:
            return None
        return cls(data[: length.start(1)], data[length.end(1) : end], meaning)

    def body_of(self, data: bytes) -> bytes | None:
        """Returns the body, if these bytes are a whole message with this head."""
        if not data.startswith(self._before):
            return None
        begins = self._before_bytes
        ends = data.find(b"\r", begins, begins + _MAX_DIGITS)
        after = self._after
        if ends < 0 or not data.startswith(after, ends):
            return None
        digits, body = data[begins:ends], data[ends + len(after) :]
        return body if digits.isdigit() and int(digits) == len(body) else None
