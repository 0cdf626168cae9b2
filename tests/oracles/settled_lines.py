"""All settled lines of a span, one by one: what reports are held to, since they read sums by hour.

What is valid as of a version is the sum of all lines of settlements up to it (docs/ledger.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection

from telemetry.ledger.settlement import AMOUNTS, version

KEYS = ("start_at", "site", "kind", "pool_id", "service", "tenant_id", "currency", "adapter")
PAGE = 5_000


def lines(start: datetime, end: datetime, as_of: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields the lines valid in [start, end) as of a version (None: now), by window and line, in one order."""
    amounts = ", ".join(f"sum(l.{name})::bigint AS {name}" for name in AMOUNTS)
    sql = f"""
        SELECT s.start_at, t.name AS site, l.kind, l.pool_id, l.service, l.tenant_id, s.currency,
               l.adapter, {amounts}
        FROM telemetry_settlement s JOIN telemetry_statementline l ON l.settlement_id = s.id
        JOIN pools_site t ON t.id = s.site_id
        WHERE s.start_at >= %s AND s.start_at < %s AND s.id <= %s GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
        HAVING {" OR ".join(f"sum(l.{name}) <> 0" for name in AMOUNTS)}
        ORDER BY 1, 2, 3, 4 NULLS FIRST, 5, 6 NULLS FIRST, 7, 8
    """
    with connection.cursor() as cursor:
        cursor.execute(sql, [start, end, version() if as_of is None else as_of])
        while rows := cursor.fetchmany(PAGE):
            for row in rows:
                yield dict(zip((*KEYS, *AMOUNTS), row, strict=True))


def export(start: datetime, end: datetime, as_of: int) -> Iterator[bytes]:
    """`lines` as JSON, one a line: as of the same version the same bytes, whenever it is made."""
    encoder = msgspec.json.Encoder(order="deterministic")
    for line in lines(start, end, as_of):
        yield encoder.encode(line) + b"\n"


def checksum(start: datetime, end: datetime, as_of: int) -> str:
    """Returns the SHA-256 of the export."""
    found = hashlib.sha256()
    for row in export(start, end, as_of):
        found.update(row)
    return found.hexdigest()


def totals(
    start: datetime, end: datetime, by: Sequence[str] = (), as_of: int | None = None
) -> dict[tuple[Any, ...], dict[str, int]]:
    """Returns sums of whole amounts by some of KEYS. Name `currency` where sites differ in it: they do not add up."""
    found: dict[tuple[Any, ...], dict[str, int]] = {}
    for line in lines(start, end, as_of):
        one = found.setdefault(tuple(line[name] for name in by), dict.fromkeys(AMOUNTS, 0))
        for name in AMOUNTS:
            one[name] += line[name]
    return found
