"""Refusals, in OpenAI's shape."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """Something that a client asked for and does not get."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def not_found(what: str, public: str) -> Refused:
    return Refused(404, f"No such {what} object: {public[:100]}", param="id")
