"""The FOCUS export as Parquet: the CSV's own values, typed, so that the two can never say different things."""

from __future__ import annotations

from pathlib import Path

import polars

from core.cells import FORMULA

from .focus import COLUMNS

_PRECISION, _PLACES = 38, 14
ROW_GROUP = 32_768  # rows; bounds the memory of writing
_MONEY_PLACES = 17
_SCHEMA = {
    name: polars.Decimal(_PRECISION, _MONEY_PLACES if name.endswith("Cost") else _PLACES)
    if kind == "Decimal"
    else polars.String()
    for name, kind in COLUMNS.items()
}
_MOMENTS = [name for name, kind in COLUMNS.items() if kind == "Date/Time"]
_TEXTS = [name for name, kind in COLUMNS.items() if kind == "String"]


def write_parquet(focus_csv: Path, target: Path) -> None:
    """Streams: what is in memory does not grow with the rows. Decimals stay decimals, moments are UTC.

    Texts are the originals, without the apostrophes that keep spreadsheets from running them.
    """
    rows = polars.scan_csv(focus_csv, schema=_SCHEMA)
    moments = [polars.col(name).str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC") for name in _MOMENTS]
    rows = rows.with_columns(*moments, polars.col(_TEXTS).str.replace(f"^'({FORMULA})", "${1}"))
    rows.sink_parquet(target, compression="zstd", row_group_size=ROW_GROUP, maintain_order=True)
