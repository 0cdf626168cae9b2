"""What a report cannot be made of, said in the words of the field."""

from __future__ import annotations


class BadReport(ValueError):
    """A report that cannot be made as it was asked for. `field` is what to change; the text says to what."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message
