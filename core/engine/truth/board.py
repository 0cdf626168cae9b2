"""Scores of predictions against measurements: errors by quantity, over all rows and by group."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Takes the name that a table has for a model; returns its shape's key, or raises ValueError saying why there is none.
ShapeOf = Callable[[str], str]


class BadTable(ValueError):
    """A table that cannot be scored; says which row and column."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One measured row with what the model says of it. `refused`: why it says nothing; empty: it does.

    `groups` name what the row is one of (GPU, model ...); `values` are (measured, predicted) by quantity, in its unit.
    `counts` False: shown, and in no score.
    """

    line: int
    groups: Mapping[str, str]
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refused: str = ""
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one quantity over some rows, as shares of what was measured."""

    rows: int
    mape: float
    median: float
    bias: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A clock that the model would choose, against the best that was measured, by the energy of the same work."""

    series: str
    chosen_mhz: float
    best_mhz: float
    regret: float  # energy at the chosen clock over that at the best, less 1


@dataclass(frozen=True, slots=True)
class Board:
    """All rows of a table, and the clocks chosen in it where it has clocks."""

    rows: tuple[Scored, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def refusals(self) -> dict[str, int]:
        """Reasons, with the number of rows of each."""
        found: dict[str, int] = {}
        for row in self.rows:
            if row.refused:
                found[row.refused] = found.get(row.refused, 0) + 1
        return found

    def scores(self, group: str | None = None) -> dict[str, dict[str, Score]]:
        """Returns scores by the group's value ("all" without a group), then by quantity."""
        by: dict[str, list[Scored]] = {}
        for row in self.rows:
            if not row.refused and row.counts:
                by.setdefault("all" if group is None else row.groups.get(group, ""), []).append(row)
        return {name: _scores(rows) for name, rows in sorted(by.items())}

    def document(self) -> dict[str, Any]:
        """Returns it as a JSON object: scores by group, refusals, choices and all rows. Errors are shares."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.groups))
        return {
            "rows": len(self.rows),
            "scored": sum(not row.refused and row.counts for row in self.rows),
            "scores": _plain(self.scores().get("all", {})),
            "by": {name: {key: _plain(found) for key, found in self.scores(name).items()} for name in names},
            "refused": self.refusals,
            "choices": [
                {
                    "series": one.series,
                    "chosen_mhz": one.chosen_mhz,
                    "best_mhz": one.best_mhz,
                    "regret": round(one.regret, 5),
                }
                for one in self.choices
            ],
            "details": [_detail(row) for row in self.rows],
        }


def _scores(rows: Sequence[Scored]) -> dict[str, Score]:
    names = dict.fromkeys(name for row in rows for name in row.values)
    return {name: _score([row.values[name] for row in rows if name in row.values]) for name in names}


def _score(pairs: Iterable[tuple[float, float]]) -> Score:
    errors = [predicted / measured - 1.0 for measured, predicted in pairs]
    sizes = [abs(error) for error in errors]
    return Score(len(errors), statistics.fmean(sizes), statistics.median(sizes), statistics.fmean(errors))


def _plain(scores: Mapping[str, Score]) -> dict[str, Any]:
    return {
        name: {"rows": one.rows, "mape": round(one.mape, 5), "median": round(one.median, 5), "bias": round(one.bias, 5)}
        for name, one in scores.items()
    }


def _detail(row: Scored) -> dict[str, Any]:
    found: dict[str, Any] = {"line": row.line, **row.groups}
    if row.refused:
        return {**found, "refused": row.refused}
    found["values"] = {name: {"measured": pair[0], "predicted": pair[1]} for name, pair in row.values.items()}
    return found if row.counts else {**found, "counts": False}


def number(row: Mapping[str, str], line: int, name: str) -> float:
    """Reads a number above 0 of a table's row. Raises BadTable."""
    text = row.get(name)
    if text is None:
        raise BadTable(f"line {line}: {name}: the table has no such column")
    try:
        value = float(text)
    except ValueError:
        raise BadTable(f"line {line}: {name}: '{text}' is not a number") from None
    if not 0.0 < value < float("inf"):
        raise BadTable(f"line {line}: {name}: {text} is not above 0")
    return value
