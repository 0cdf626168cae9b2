"""JSON to typed values and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from .calls import Answer, aware
from .errors import UnexpectedAnswerError

T = TypeVar("T")


def encode(body: object) -> bytes:
    """Returns JSON. Decimals are texts, which keep all their digits. Raises ValueError for a time without a zone."""
    _check_times(body)
    return msgspec.json.encode(body)


def decode(kind: type[T], answer: Answer, where: str) -> T:
    """Returns the typed value of an answer.

    Raises:
        UnexpectedAnswerError: it is not as this version of the client knows it.
    """
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        words = f"The answer of {where} is not what this version of the client knows: {error}"
        raise UnexpectedAnswerError(words, status=answer.status) from None


def _check_times(value: Any) -> None:
    if isinstance(value, datetime):
        aware(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            _check_times(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_times(inner)
