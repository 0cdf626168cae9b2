"""Columns to and from PostgreSQL by binary COPY: what rows cost is then the database's work, not Python's.

The format is PostgreSQL's own ("File Formats: Binary Format" of COPY): a header, for each row the number of fields and
for each field its length (-1: null) and its bytes in network order, and a trailer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

import numpy as np
from django.db import DataError, connection
from numpy.typing import NDArray

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_DAY_US = 86_400_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in Unix time
TIMESTAMPTZ = BIGINT = ">i8"
SMALLINT, INTEGER, DOUBLE = ">i2", ">i4", ">f8"
_LIMITS = {BIGINT: 2**63, INTEGER: 2**31}
MOMENT = "moment"  # read as microseconds of Unix time


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one column. With `texts` the values are places in it, for columns of few different words.

    `kind` is the NumPy type in network order that PostgreSQL's type has: see the constants of this module.
    """

    name: str
    kind: str
    values: NDArray[Any]
    null: NDArray[np.bool_] | None = None
    texts: tuple[bytes, ...] = ()

    def pick(self, which: NDArray[Any] | slice) -> Column:
        null = None if self.null is None else self.null[which]
        return Column(self.name, self.kind, self.values[which], null, self.texts)


def floats(name: str, values: Sequence[float | None] | NDArray[np.float64], kind: str = DOUBLE) -> Column:
    """Makes a column of numbers; None, and what is not finite, is null. Integers are exact up to 2**53.

    Raises:
        DataError: One does not fit its column.
    """
    found = np.asarray(values, dtype=np.float64)
    null = ~np.isfinite(found)
    if kind != DOUBLE:
        found = np.where(null, 0.0, found)
        if len(found) and np.abs(found).max() >= _LIMITS[kind]:
            raise DataError(f"{name}: {found[np.abs(found).argmax()]:g} is out of range")
    return Column(name, kind, found, null if null.any() else None)


def moments(name: str, at_us: NDArray[np.int64]) -> Column:
    return Column(name, TIMESTAMPTZ, at_us - POSTGRES_EPOCH_US)


def words(name: str, values: Sequence[str | None]) -> Column:
    places: dict[str | None, int] = {}
    found = np.array([places.setdefault(value, len(places)) for value in values], dtype=np.int64)
    null = found == places[None] if None in places else None
    return Column(name, "", found, null, tuple((text or "").encode() for text in places))


def text(name: str, values: Sequence[str]) -> Column:
    """Makes a column of words that all differ; none has a NUL."""
    return Column(name, "text", np.array([value.encode() for value in values], dtype=np.bytes_))


def write(table: str, columns: Sequence[Column]) -> None:
    """Appends the rows, in the caller's transaction. Their order is not kept."""
    if not len(columns[0].values):
        return
    names, data = ", ".join(column.name for column in columns), encode(columns)
    # A COPY ends when its context does, which Django's cursor does not see.
    with (
        connection.cursor() as cursor,
        connection.wrap_database_errors,
        cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(data)


def write_by_day(table: str, at_us: NDArray[np.int64], columns: Sequence[Column]) -> None:
    """`write` straight into the days' partitions: the database need not look for each row's."""
    days = at_us // _DAY_US
    found = distinct(days)
    for day in found:
        which = days == day
        write(
            f"{table}_{date.fromordinal(_EPOCH_DAY + day):%Y%m%d}",
            columns if len(found) == 1 else [column.pick(which) for column in columns],
        )


def distinct(values: NDArray[np.int64]) -> list[int]:
    """Returns the different values, in order. Of thousands most are equal here, and sorting them would be a waste."""
    found = []
    while len(values):
        least = int(values.min())
        found.append(least)
        values = values[values > least]
    return found


def encode(columns: Sequence[Column]) -> bytes:
    """Rows of one shape (the same fields null, the same words) are laid out at once."""
    shape = np.zeros(len(columns[0].values), dtype=np.int64)
    for column in columns:
        code: Any = 0
        if column.texts:
            code = column.values
        elif column.kind == "text":
            code = np.char.str_len(column.values)
        elif column.null is None:
            continue
        span = int(np.max(code)) + 2
        shape = shape * span + (code if column.null is None else np.where(column.null, span - 1, code))
    parts: list[bytes | bytearray] = [_HEADER]
    found = distinct(shape)
    for one in found:
        which = slice(None) if len(found) == 1 else np.flatnonzero(shape == one)
        parts.append(_laid_out([column.pick(which) for column in columns]))
    return b"".join([*parts, _TRAILER])


def _laid_out(columns: Sequence[Column]) -> bytearray:
    """Lays out rows that all have the first one's shape: a row without values for each, then the values."""
    kinds = []
    for column in columns:
        if column.null is not None and column.null[0]:
            kinds.append("")
        elif column.kind == "text":
            kinds.append(f"S{len(column.values[0])}")
        else:
            kinds.append(f"S{len(column.texts[int(column.values[0])])}" if column.texts else column.kind)
    layout = _layout(tuple(kinds))
    one = np.zeros(1, dtype=layout)
    one["fields"] = len(columns)
    for i, kind in enumerate(kinds):
        one[f"length{i}"] = np.dtype(kind).itemsize if kind else -1
    data = bytearray(one.tobytes() * len(columns[0].values))
    rows = np.frombuffer(data, dtype=layout)
    for i, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        if kind and kind != "S0":
            rows[f"value{i}"] = column.texts[int(column.values[0])] if column.texts else column.values
    return data


@lru_cache(maxsize=256)
def _layout(kinds: tuple[str, ...]) -> np.dtype[Any]:
    fields: list[tuple[str, str]] = [("fields", ">i2")]
    for i, kind in enumerate(kinds):
        fields.append((f"length{i}", ">i4"))
        if kind and kind != "S0":
            fields.append((f"value{i}", kind))
    return np.dtype(fields)


def read(sql: str, params: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The columns of a query, each of eight bytes and never null, by name: no object is made for a row.

    Args:
        kinds: For each column of the query, in its order, BIGINT, DOUBLE or MOMENT.

    Raises:
        ValueError: A column is null or not of eight bytes.
    """
    with connection.cursor() as cursor, cursor.copy(f"COPY ({sql}) TO STDOUT (FORMAT BINARY)", params) as copy:
        data = b"".join(bytes(part) for part in copy)
    layout = _layout(tuple(TIMESTAMPTZ if kind == MOMENT else kind for kind in kinds.values()))
    body = memoryview(data)[len(_HEADER) : -len(_TRAILER)]
    if len(body) % layout.itemsize:
        raise ValueError("a column of the query is null or not of eight bytes")
    rows = np.frombuffer(body, dtype=layout)
    found = {}
    for i, (name, kind) in enumerate(kinds.items()):
        if np.any(rows[f"length{i}"] != 8):
            raise ValueError(f"column {name} is null or not of eight bytes")
        values = rows[f"value{i}"].astype(np.float64 if kind == DOUBLE else np.int64)
        found[name] = values + POSTGRES_EPOCH_US if kind == MOMENT else values
    return found
