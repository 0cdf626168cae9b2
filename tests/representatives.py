"""Parametrizations of which a few rows stand for all: these run each time, the others among the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, rows: Iterable[Any], why: str) -> list[Any]:
    """Returns the rows, of which those after the first `count` are slow, and `why` they may be."""
    slow = pytest.mark.slow(why)
    return [row if n < count else _marked(row, slow) for n, row in enumerate(rows)]


def _marked(row: Any, mark: pytest.MarkDecorator) -> Any:
    return pytest.param(*row, marks=mark) if isinstance(row, tuple) else pytest.param(row, marks=mark)
