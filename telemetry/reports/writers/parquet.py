"""The FOCUS export as Parquet: the CSV's own values, typed, so that the two can never say different things."""

from __future__ import annotations

from pathlib import Path

import polars

from core.cells import FORMULA

from .focus_columns import DECIMAL, MOMENT, TEXT, Column, columns

_PRECISION, _PLACES = 38, 14
ROW_GROUP = 32_768  # rows; bounds the memory of writing
_MONEY_PLACES = 17


def write_parquet(focus_csv: Path, target: Path, version: str) -> None:
    """Streams: what is in memory does not grow with the rows. Decimals stay decimals, moments are UTC.

    Texts are the originals, without the apostrophes that keep spreadsheets from running them.
    """
    names = {kind: [column.name for column in columns(version) if column.kind == kind] for kind in (MOMENT, TEXT)}
    rows = polars.scan_csv(focus_csv, schema={column.name: _type(column) for column in columns(version)})
    moments = [polars.col(name).str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC") for name in names[MOMENT]]
    rows = rows.with_columns(*moments, polars.col(names[TEXT]).str.replace(f"^'({FORMULA})", "${1}"))
    rows.sink_parquet(target, compression="zstd", row_group_size=ROW_GROUP, maintain_order=True)


def _type(column: Column) -> polars.DataType:
    if column.kind != DECIMAL:
        return polars.String()
    return polars.Decimal(_PRECISION, _MONEY_PLACES if column.name.endswith("Cost") else _PLACES)
