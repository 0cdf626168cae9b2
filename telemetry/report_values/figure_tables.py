"""A report that is a few tables of figures, such as a trial's: what CSV, workbook and document are written from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from .signature import signature_of

Figure = str | float | int | None  # None: not known


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """`name` heads it in CSV, `words` for people, who see `places` of its numbers; texts have None."""

    name: str
    words: str
    places: int | None = None


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Rows have a cell for each column."""

    name: str
    title: str
    columns: tuple[FigureColumn, ...]
    rows: tuple[tuple[Figure, ...], ...]
    source: str


@dataclass(frozen=True, slots=True)
class FigureReport:
    """`facts`: names with their words. `warnings` stand across each page of the document."""

    title: str
    organisation: str
    made: datetime
    facts: tuple[tuple[str, str], ...]
    tables: tuple[FigureTable, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def signature(self) -> str:
        """Returns SHA-256 over facts and figures: the same for the same figures, whenever it is made."""
        return signature_of({"title": self.title, "facts": self.facts, "tables": list(map(asdict, self.tables))})
