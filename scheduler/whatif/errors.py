"""Errors of what was asked for, by field."""

from __future__ import annotations


class BadStudy(ValueError):
    """`field` is a path of the scenario (`workload.rate_rps`) or of what was asked (`runs`, `traffic.from`)."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message

    @classmethod
    def of(cls, error: Exception, field: str = "scenario") -> BadStudy:
        """Makes one of the simulator's words, which begin with the field where one is to blame."""
        head, colon, rest = str(error).partition(": ")
        if colon and head and " " not in head:
            return cls(head, rest)
        return cls(field, str(error))
