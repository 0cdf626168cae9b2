"""Lines and blocks for bills, as `ReportTotals.add` hands them on: with market-based Scope 2 and the local day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields

import polars

from telemetry.report_values.line_blocks import MARKET, SCHEMA, Block
from telemetry.report_values.lines import ReportLine

DAY_S = 86_400


def line(**given: object) -> ReportLine:
    """A line of which everything that is not given is nothing, in US dollars, for one hour."""
    usual: dict[str, object] = {field.name: 0 for field in fields(ReportLine)}
    usual |= dict.fromkeys(("tenant", "service", "pool", "model"))
    usual |= {"site": "ashburn", "kind": "idle", "currency": "USD", "end_s": int(given.get("start_s", 0)) + 3_600}
    return ReportLine(**{**usual, **given})


def block(lines: Sequence[ReportLine], market_ug: Sequence[int | None] | None = None) -> Block:
    found = polars.DataFrame([astuple(each) for each in lines], schema=SCHEMA, orient="row")
    return found.with_columns(
        polars.Series(MARKET, market_ug or [0] * len(lines), dtype=polars.Int64),
        (polars.col("start_s") // DAY_S).cast(polars.String).alias("day"),
    )
