"""Lines and blocks for bills, as `ReportTotals.add` hands them on: with market-based Scope 2 and the local day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields

import polars

from telemetry.report_values.line_blocks import MARKET, MARKET_MISSING, SCHEMA, Block
from telemetry.report_values.lines import ReportLine

DAY_S = 86_400


def line(**given: object) -> ReportLine:
    """A line of which everything that is not given is nothing, in US dollars, for one hour."""
    usual: dict[str, object] = {field.name: 0 for field in fields(ReportLine)}
    usual |= dict.fromkeys(("tenant", "service", "pool", "model"))
    usual |= {"site": "ashburn", "kind": "idle", "currency": "USD", "end_s": int(given.get("start_s", 0)) + 3_600}
    return ReportLine(**{**usual, **given})


def block(lines: Sequence[ReportLine], market_ug: Sequence[int | None] | None = None) -> Block:
    """Makes a block of lines; `market_ug` None: no contract covers that line."""
    found = polars.DataFrame([astuple(each) for each in lines], schema=SCHEMA, orient="row")
    market = polars.Series(MARKET, market_ug or [0] * len(lines), dtype=polars.Int64)
    found = found.with_columns(market)
    return found.with_columns(
        polars.col(MARKET).fill_null(0),
        polars.when(polars.col(MARKET).is_null()).then(polars.col("facility_uj")).otherwise(0).alias(MARKET_MISSING),
        (polars.col("start_s") // DAY_S).cast(polars.String).alias("day"),
    )
