"""Datapoints of ESRS E1 as a table: one list of rows for CSV, REST, the page, the workbook and the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

from core.cells import write_csv

from ..statement import Statement
from ..table import number
from .datapoints import MWH, TONNES, Datapoint
from .emissions import emission_rows
from .energy import energy_rows
from .sources import Sources, shortened

REGULATION = "Delegated Regulation (EU) 2023/2772, ESRS E1"
EXACT_UNITS = {MWH: "J", TONNES: "g"}
COLUMNS = (
    *("disclosure", "datapoint", "paragraph", "name", "label", "value", "unit", "status"),
    *("not_covered", "not_covered_unit", "exact", "exact_unit", "note", "source_keys", "sources"),
)
TITLES = {"E1-5": "E1-5, energy consumption and mix", "E1-6": "E1-6, gross Scopes 1, 2, 3 and total GHG emissions"}
SCOPE = (
    "Of the fleet that this report is of, for its period: a part of the organisation's statement, never all of it. "
    "Known means known of the fleet. Printed lines add up; exact whole numbers are in esrs-csv and REST."
)


@dataclass(frozen=True, slots=True)
class Esrs:
    """`warnings`: why figures may still change, or are of no machine."""

    rows: tuple[Datapoint, ...]
    sources: Sources
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, statement: Statement) -> Esrs:
        sources = Sources.of(statement)
        rows = (*energy_rows(statement, sources), *emission_rows(statement, sources))
        return cls(rows, sources, tuple(statement.warnings))

    def of_disclosure(self, disclosure: str) -> list[Datapoint]:
        return [row for row in self.rows if row.disclosure == disclosure]


def write_esrs_csv(esrs: Esrs, fixed: Mapping[str, str], out: IO[str]) -> int:
    """Writes a row for each datapoint, with its sources in full; an empty value is not known. Returns the rows."""
    warnings = ", ".join(esrs.warnings)
    rows = (
        [
            *fixed.values(),
            warnings,
            *(row.disclosure, row.ids, row.paragraph, row.name, row.label, number(row.value), row.unit, row.status),
            *(number(row.not_covered), row.not_covered_unit, row.exact, _exact_unit(row), row.note),
            *(" ".join(row.sources), esrs.sources.words(row.sources)),
        ]
        for row in esrs.rows
    )
    return write_csv(out, [*fixed, "warnings", *COLUMNS], rows)


def as_json(esrs: Esrs) -> dict[str, Any]:
    """Returns what REST and the page show: rows with exact decimals, and sources by key."""
    rows = [{**asdict(row), "exact_unit": _exact_unit(row), "sources": list(row.sources)} for row in esrs.rows]
    return {
        "regulation": REGULATION,
        "warnings": list(esrs.warnings),
        "rows": rows,
        "sources": [asdict(source) for source in esrs.sources.rows],
    }


def shown(stored: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns what `as_json` gave, by disclosure, for the page; None: the report is of before there were datapoints."""
    if stored is None:
        return None
    rows = [{**row, "keys": shortened(tuple(row["sources"]))} for row in stored["rows"]]
    tables = [(title, [row for row in rows if row["disclosure"] == name]) for name, title in TITLES.items()]
    return {**stored, "tables": tables, "scope": SCOPE}


def _exact_unit(row: Datapoint) -> str:
    return EXACT_UNITS.get(row.unit, "") if row.exact is not None else ""
