"""The cells of every table that leaves the product: numbers, texts that no spreadsheet takes for formulas, unknowns.

A spreadsheet runs what begins with a sign of a formula, also after blanks and in full-width letters (OWASP, CSV
injection). Such a text gets an apostrophe before it; so does one with apostrophes before such a sign, so that
`original` gives every text back. Numbers are never altered.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import IO

_BLANKS = "\\s\\x00-\\x20\\x7f-\\xa0\\u00ad\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2064\\ufeff"
_SIGNS = "=+\\-@\\uff1d\\uff0b\\uff0d\\uff20\\ufe66\\ufe62\\ufe63\\ufe6b"  # the usual, full-width and small ones
FORMULA = f"'*(?:[\\t\\r\\n]|[{_BLANKS}]*[{_SIGNS}])"  # at a text's beginning
_FORMULA = re.compile(FORMULA)
_END = "\r\n"  # the writer quotes what has a part of it


def is_formula(text: str) -> bool:
    """Says whether a spreadsheet might take the text for a formula."""
    return _FORMULA.match(text) is not None


def harmless(text: str) -> str:
    """Returns the text as a spreadsheet shows and does not run it."""
    return f"'{text}" if is_formula(text) else text


def original(cell: str) -> str:
    """Returns the text of which `harmless` made the cell."""
    return cell[1:] if cell.startswith("'") and is_formula(cell[1:]) else cell


def cell_text(value: object) -> str:
    """Writes one value; None, which is not known, is empty. Raises TypeError for what is no number, text or moment."""
    if value is None:
        return ""
    if isinstance(value, str):
        return harmless(str(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a cell cannot hold a {type(value).__name__}")


def flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields a nested value as columns with dots in their names: `windows.0.from`. What is empty has none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from flat(f"{name}.{place}", inner)
    else:
        yield name, value


def write_csv(out: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Writes a table as CSV (RFC 4180, lines end with LF). Returns the number of rows below the header."""
    out.write(csv_line(header) + "\n")
    count = 0
    for row in rows:
        out.write(csv_line(row) + "\n")
        count += 1
    return count


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a whole table as CSV."""
    out = io.StringIO()
    write_csv(out, header, rows)
    return out.getvalue()


def csv_line(values: Iterable[object]) -> str:
    """Returns one line of CSV without its end, for what is written as a stream."""
    out = io.StringIO()
    csv.writer(out, lineterminator=_END).writerow([cell_text(value) for value in values])
    return out.getvalue().removesuffix(_END)
