"""The lines of the settled ledger as of a version, in blocks, with the names that the report has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import polars
from django.db import connection

from telemetry.report_values.basis import Basis
from telemetry.report_values.line_blocks import AMOUNTS, SCHEMA, Block

from .ledger_source import HOURS_SQL, SUMMED, Scope

BLOCK_ROWS = 50_000
MOST_HOURS = 24 * 31  # of one query
HOUR_S = 3_600
ROW_SCHEMA = {
    **dict.fromkeys(("start_s", "end_s", "site_id"), polars.Int64()),
    "kind": polars.String(),
    "tenant_id": polars.Int64(),
    "service": polars.String(),
    "pool_id": polars.Int64(),
    "adapter": polars.String(),
    "currency": polars.String(),
    **dict.fromkeys(AMOUNTS, polars.Int64()),
}

LINES_SQL = f"""
WITH {HOURS_SQL}
SELECT extract(epoch FROM start_at)::bigint, extract(epoch FROM end_at)::bigint, site_id, kind, tenant_id, service,
       pool_id, adapter, currency, {", ".join(SUMMED)}
FROM hours
ORDER BY start_at, site_id, pool_id NULLS LAST, kind, service NULLS LAST, tenant_id NULLS LAST,
         adapter NULLS LAST, currency
"""


def blocks(scope: Scope, basis: Basis) -> Iterator[Block]:
    """Lines by hour, site and pool, in blocks of whole hours: memory does not grow with the rows.

    Each block is a query of its own. They agree with each other, because what is valid as of a version never changes,
    and between two of them the connection is free, so that progress is seen meanwhile.
    """
    at_s, hours = scope.period.start_s, 1
    while at_s < scope.period.end_s:
        end_s = min(scope.period.end_s, (at_s // HOUR_S + hours) * HOUR_S)
        params = {**scope.params, "start": _moment(at_s), "end": _moment(end_s)}
        block = _named(_copied(LINES_SQL, params), basis)
        if block.height:
            yield block
        hours = max(1, min(MOST_HOURS, 2 * hours, hours * BLOCK_ROWS // max(1, block.height)))
        at_s = end_s


def _named(rows: polars.DataFrame, basis: Basis) -> Block:
    """Names in the place of ids, as the report has them."""
    pools = {int(pk): pool for pk, pool in basis.pools.items()}
    sites = {site.pk: name for name, site in basis.sites.items()}
    tenants = {int(pk): tenant[0] for pk, tenant in basis.tenants.items()}
    rented = [site.pk for site in basis.sites.values() if site.rented]
    return rows.with_columns(
        _name("site_id", sites, "site"),
        _name("tenant_id", tenants, "tenant"),
        _name("pool_id", {pk: pool.name for pk, pool in pools.items()}, "pool"),
        _name("pool_id", {pk: pool.model or None for pk, pool in pools.items()}, "model", unknown=False),
        polars.when(polars.col("site_id").is_in(rented))
        .then(polars.col("rental_missing_us"))
        .otherwise(0)
        .alias("rental_missing_us"),
    ).select(*SCHEMA)


def _name(column: str, names: Mapping[int, str | None], dimension: str, unknown: bool = True) -> polars.Expr:
    """What is gone by now is `pool-17`; null stays nobody's."""
    number = polars.concat_str(polars.lit(f"{dimension}-"), polars.col(column)) if unknown else None
    return polars.col(column).replace_strict(names, default=number, return_dtype=polars.String).alias(dimension)


def _copied(sql: str, params: Mapping[str, Any]) -> polars.DataFrame:
    # Past Django's cursor: the one that it logs queries with takes no parameters here.
    with connection.cursor() as cursor, cursor.cursor.copy(f"COPY ({sql}) TO STDOUT (FORMAT csv)", params) as copy:
        text = b"".join(copy)
    return polars.read_csv(text, has_header=False, schema=ROW_SCHEMA) if text else polars.DataFrame(schema=ROW_SCHEMA)


def _moment(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
