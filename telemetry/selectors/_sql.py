"""Running aggregations in the database: what comes back is counted in buckets, never in samples."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django.db import connection

from telemetry.frames import Window


def rows(sql: str, params: Mapping[str, Any]) -> list[Any]:
    """Runs one query with named parameters; rows are named tuples of its columns."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        row = _row(tuple(column.name for column in cursor.description or ()))
        return [row(*values) for values in cursor.fetchall()]


@lru_cache(maxsize=64)
def _row(columns: tuple[str, ...]) -> Any:
    """Making the type takes longer than a small query: once for each shape."""
    return namedtuple("row", columns)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def span(window: Window) -> dict[str, Any]:
    """The parameters that bucketing queries share."""
    return {"start": at(window.start_s), "end": at(window.end_s), "bucket_s": window.bucket_s, "last": window.count - 1}


def bucket(column: str) -> str:
    """SQL for the index of the bucket that `column` falls in."""
    return f"floor(extract(epoch FROM {column} - %(start)s) / %(bucket_s)s)::int"
