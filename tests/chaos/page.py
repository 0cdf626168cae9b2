"""docs/faults.md and the figures of its table, docs/faults.json: written by `make chaos`, part by part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.fault import Fault
from tests.chaos.trial import Found
from tests.e2e.product import ROOT

PAGE, FIGURES = ROOT / "docs" / "faults.md", ROOT / "docs" / "faults.json"
BEGIN, END = "<!-- make chaos: begin -->", "<!-- make chaos: end -->"
WITHOUT = "no fault"  # the row of the replay alone, one for each part

COLUMNS = (
    *("Component", "Fault", "Promise", "Part", "Holds", "Requests: sent, answered, retried, lost"),
    *("Records: missing, twice", "Longest wait, s", "Back, s"),
)
Rows = dict[str, dict[str, Any]]  # by the fault's name


def read(path: Path = FIGURES) -> Rows:
    """Returns what earlier runs found; nothing where there is no file."""
    if not path.exists():
        return {}
    found: Rows = json.loads(path.read_text(encoding="utf-8"))
    return found


def keep(fault: Fault | None, part: int, found: Found, when: str, release: str, path: Path = FIGURES) -> None:
    """Puts one finding in place of an earlier one of the same fault."""
    row: dict[str, Any] = {"part": part, "date": when, "release": release} | found.as_json()
    if fault is not None:
        row = {"component": fault.component, "kind": fault.kind, "promise": fault.promise} | row
        row |= {"because": fault.because}
    rows = read(path)
    rows[fault.name if fault else f"{WITHOUT}, part {part}"] = row
    path.write_text(json.dumps(dict(sorted(rows.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(rows: Rows, order: Mapping[str, int]) -> str:
    """Returns the table in Markdown: the replay alone first, then the faults in their order."""
    alone = [(name, row) for name, row in rows.items() if "component" not in row]
    known = sorted(((n, r) for n, r in rows.items() if n in order), key=lambda item: order[item[0]])
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [_line("-", name, "The replay by itself.", row) for name, row in alone]
    lines += [_line(row["component"], name, row["promise"], row) for name, row in known]
    dates = sorted({str(row["date"]) for row in rows.values()})
    releases = sorted({str(row["release"]) for row in rows.values()})
    runs = (
        f"Runs of {' and '.join(dict.fromkeys((dates[0], dates[-1])))}, version {', '.join(releases)}." if rows else ""
    )
    return "\n".join([*lines, "", runs]) if rows else ""


def _line(component: str, name: str, promise: str, row: Mapping[str, Any]) -> str:
    requests = row["requests"]
    sent = ", ".join(str(requests[key]) for key in ("sent", "answered", "retried", "lost"))
    if row.get("because"):
        sent += f" ({row['because']})"
    clocks = f"; clocks {row['clocks_s']:.1f}" if row["clocks_s"] is not None else ""
    back = "not back" if row["back_s"] is None else f"{row['back_s']:g}{clocks}"
    holds = "yes" if not row["broken"] else "no: " + "; ".join(row["broken"])
    records = f"{requests['missing']}, {requests['twice']}"
    cells = (component, name, promise, str(row["part"]), holds, sent, records, f"{requests['longest_wait_s']:g}", back)
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def put_into(text: str, lines: str) -> str:
    """Returns the page with another table. Raises ValueError where it has no place for one."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def write() -> None:
    """Writes the page's table from the kept figures."""
    from tests.chaos.faults import EVERY

    order = {fault.name: number for number, fault in enumerate(EVERY)}
    PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), table(read(), order)), encoding="utf-8")
