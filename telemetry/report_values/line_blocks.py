"""Lines in blocks: frames with a column for each field of a line, so that a million of them are worked out in seconds.

A block has whole origin charges: lines of one hour, site and pool are never in two.
"""

from __future__ import annotations

from dataclasses import fields

import polars

from .lines import ReportLine

SCHEMA = {field.name: polars.Int64() if field.type == "int" else polars.String() for field in fields(ReportLine)}
AMOUNTS = tuple(name for name, kind in SCHEMA.items() if kind == polars.Int64() and name not in ("start_s", "end_s"))
MARKET, MARKET_MISSING = "market_ug", "market_missing_uj"  # what totals add to a line: see `ReportTotals.add`
Block = polars.DataFrame


def fixed(value: polars.Expr, places: int) -> polars.Expr:
    """Whole numbers of 10**-places as decimals with all of their places: 1500 with 3 is `1.500`."""
    size, one = value.abs(), 10**places
    return polars.concat_str(
        polars.when(value < 0).then(polars.lit("-")).otherwise(polars.lit("")),
        (size // one).cast(polars.String),
        polars.lit("."),
        (size % one).cast(polars.String).str.zfill(places),
    )


def wide(name: str) -> polars.Expr:
    """Returns a column with room for sums and products of it."""
    return polars.col(name).cast(polars.Int128)
