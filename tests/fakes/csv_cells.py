"""Finds cells of a CSV that are JSON, which no spreadsheet can use."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection


def json_cells(text: str, allowed: Collection[str] = ()) -> list[tuple[str, str]]:
    """Returns column and cell of each that is an object or a list of JSON. `allowed`: columns that must have it."""
    header, *rows = csv.reader(io.StringIO(text))
    found = []
    for row in rows:
        assert len(row) == len(header), row
        found += [pair for pair in zip(header, row, strict=True) if pair[0] not in allowed and _is_json(pair[1])]
    return found + [("header", name) for name in header if _is_json(name)]


def _is_json(cell: str) -> bool:
    try:
        return isinstance(json.loads(cell.removeprefix("'")), dict | list)
    except ValueError:
        return False
