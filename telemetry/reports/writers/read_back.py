"""Reads what was written back, and checks it against the meters: every export must add up to the GPUs' counters."""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import iterparse

import polars

from telemetry.report_values.basis import Basis
from telemetry.report_values.lines import joules, kwh
from telemetry.report_values.statement import Statement

UJ = Decimal(1_000_000)
_XML = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_DOUBLE = Decimal("1e-12")  # what a workbook's numbers are good for, of the sum


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file of a report. `rows` is None for what is not made of rows."""

    name: str
    format: str
    sha256: str
    size_bytes: int
    rows: int | None


def reconciliation(statement: Statement, files: Sequence[MadeFile], folder: Path) -> str:
    """Returns JSON: each GPU's counter, each site's lines, and each file's own sum, with what is between them."""
    basis = statement.basis
    lines_uj: dict[str, int] = defaultdict(int)
    for day in statement.days:
        lines_uj[day.site] += day.totals.energy_uj
    period_uj: dict[str, int] = defaultdict(int)
    for meter in basis.meters:
        period_uj[meter.site] += meter.period_uj
    meters_uj = sum(period_uj.values())
    sites = {
        name: {
            "meters_j": joules(period_uj[name]),
            "lines_j": joules(lines_uj.get(name, 0)),
            "difference_j": joules(lines_uj.get(name, 0) - period_uj[name]),
        }
        for name in sorted({*period_uj, *lines_uj})
    }
    exports = [_export(file, folder, meters_uj) for file in files]
    bill = _bill(statement)
    balanced = not bill.get("left_over") and all(meter.metered_uj == meter.entered_uj for meter in basis.meters)
    content = {
        "version": basis.version,
        "period": {"asked": statement.request.period, "start": _moment(statement, 0), "end": _moment(statement, 1)},
        "settled_until_s": basis.settled_until_s,
        "meters": [_meter(basis, i) for i in range(len(basis.meters))],
        "sites": sites,
        "exports": exports,
        "total": {"meters_j": joules(meters_uj), "meters_kwh": kwh(meters_uj)},
        **({"bill": bill} if bill else {}),
        "adds_up": balanced
        and all(site["difference_j"] == "0" for site in sites.values())
        and all(export.get("adds_up", True) for export in exports),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _bill(statement: Statement) -> dict[str, Any]:
    """Returns what lies between the bill and the report's totals, in whole units by amount, and the signature."""
    if statement.bill is None:
        return {}
    charges_nano = sum(statement.demand_by_currency.values())
    return {
        "basis": statement.bill.basis,
        "left_over": statement.bill.left_over(statement.total, charges_nano),
        "signature_sha256": statement.signature,
    }


def _moment(statement: Statement, end: int) -> str:
    at = statement.period.end if end else statement.period.start
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _meter(basis: Basis, i: int) -> dict[str, Any]:
    meter = basis.meters[i]
    return {
        "gpu": meter.gpu,
        "site": meter.site,
        "counted_from_s": meter.opened_s,
        "counted_to_s": meter.mark_s,
        "counter_moved_j": joules(meter.metered_uj),
        "entered_j": joules(meter.entered_uj),
        "difference_j": joules(meter.entered_uj - meter.metered_uj),
        "in_period_j": joules(meter.period_uj),
    }


def _export(file: MadeFile, folder: Path, meters_uj: int) -> dict[str, Any]:
    found: dict[str, Any] = {"file": file.name, "sha256": file.sha256, "bytes": file.size_bytes}
    if file.rows is not None:
        found["rows"] = file.rows
    read = _READERS.get(file.format)
    if read is None:
        return found
    sum_j = read(folder / file.name)
    difference_j = sum_j - meters_uj / UJ
    allowed_j = abs(sum_j) * _DOUBLE if file.format == "xlsx" else Decimal(0)
    return {
        **found,
        "energy_j": f"{sum_j.normalize():f}",
        "difference_j": f"{difference_j.normalize():f}",
        "adds_up": abs(difference_j) <= allowed_j,
    }


def _focus_csv(path: Path) -> Decimal:
    exact = {"x_EnergyJ": polars.Decimal(38, 14)}  # the rest as texts: versions have other columns
    return _summed(polars.scan_csv(path, infer_schema=False, schema_overrides=exact), "x_EnergyJ")


def _focus_parquet(path: Path) -> Decimal:
    return _summed(polars.scan_parquet(path), "x_EnergyJ")


def _csv(path: Path) -> Decimal:
    return _summed(polars.scan_csv(path, schema_overrides={"energy_j": polars.Decimal(38, 6)}), "energy_j")


def _summed(rows: polars.LazyFrame, column: str) -> Decimal:
    found = rows.select(polars.col(column).sum()).collect(engine="streaming").item()
    return Decimal(0) if found is None else Decimal(found)


def _xlsx(path: Path) -> Decimal:
    """The sum of the column `energy J` of the sheet of rows, read from the file's own XML."""
    with zipfile.ZipFile(path) as archive, archive.open("xl/worksheets/sheet2.xml") as sheet:
        letter, total = "", Decimal(0)
        for reference, text in _cells(sheet):
            column = re.sub(r"\d", "", reference)
            if text == "energy J":
                letter = column
            elif column == letter and text:
                total += Decimal(text)
    return total


def _cells(sheet: Any) -> Iterator[tuple[str, str]]:
    """Texts are inline in a workbook that was written in one go, numbers are values."""
    for _, element in iterparse(sheet):
        if element.tag == f"{_XML}c":
            value = element.find(f"{_XML}v")
            inline = element.find(f"{_XML}is/{_XML}t")
            found = value if value is not None else inline
            yield element.get("r", ""), (found.text or "") if found is not None else ""
            element.clear()


_READERS: Mapping[str, Callable[[Path], Decimal]] = {
    "focus-csv": _focus_csv,
    "focus-parquet": _focus_parquet,
    "csv": _csv,
    "bill-csv": _csv,
    "scope2-csv": _csv,
    "xlsx": _xlsx,
}
