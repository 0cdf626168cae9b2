"""A table of published facts, and what an evaluation of one says."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

_COLUMNS = ("source", "quantity", "condition", "value", "unit", "used")


class FactsError(ValueError):
    """A table of facts that cannot be read; says which line and column."""


class Comparison(StrEnum):
    """The way in which a prediction is compared."""

    VALUE = "value"  # relative error
    BOUND = "bound"  # kept or not; no part of a MAPE
    CHOICE = "choice"  # a configuration; the error is the regret, by the published energies; no part of a MAPE


@dataclass(frozen=True, slots=True)
class Fact:
    """One row. `number` is None where the value is a configuration ("TP4@1.6")."""

    line: int
    source: str
    quantity: str
    condition: str
    value: str
    unit: str
    used: str
    number: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A fact and the model's answer. Either `prediction` or `reason` (why there is none) is given.

    `error` is prediction / value - 1; for a choice the extra energy of the model's choice by the published figures.
    `group` splits a source whose quantities should not be averaged with each other.
    """

    fact: Fact
    group: str = ""
    kind: Comparison = Comparison.VALUE
    prediction: float | str | None = None
    error: float | None = None
    note: str = ""
    reason: str = ""

    @property
    def counts(self) -> bool:
        """True where the error is part of its source's MAPE."""
        return self.kind is Comparison.VALUE and self.error is not None


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of a source's group. `mape` and `bias` (mean signed error) are None where no error counts."""

    source: str
    group: str
    facts: int
    evaluated: int
    mape: float | None
    bias: float | None
    worst: float | None
    choices: int
    choices_exact: int
    mean_regret: float | None


def value_of(fact: Fact, group: str, prediction: float, note: str = "") -> Evaluation:
    """Compares a prediction with the fact's number."""
    if fact.number is None or fact.number == 0.0:
        return skipped(fact, "the value is not a number other than 0", group)
    return Evaluation(fact, group, Comparison.VALUE, prediction, prediction / fact.number - 1.0, note)


def lower_bound_of(fact: Fact, group: str, prediction: float) -> Evaluation:
    """Compares a prediction with a published lower bound: no error where it is kept."""
    if fact.number is None or fact.number == 0.0:
        return skipped(fact, "the value is not a number other than 0", group)
    kept = prediction >= fact.number
    error = 0.0 if kept else prediction / fact.number - 1.0
    return Evaluation(fact, group, Comparison.BOUND, prediction, error, "bound kept" if kept else "bound not kept")


def skipped(fact: Fact, reason: str, group: str = "") -> Evaluation:
    """Returns a fact that is not evaluated, with the reason."""
    return Evaluation(fact, group, reason=reason)


def read_facts(lines: Iterable[str]) -> list[Fact]:
    """Reads a CSV of facts. Raises FactsError, which names the line and the column."""
    reader = csv.DictReader(lines, strict=True)
    found: list[Fact] = []
    try:
        if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
            raise FactsError(f"line 1: no column {', '.join(missing)}")
        found += (_fact(reader.line_num, row) for row in reader)
    except csv.Error as error:
        raise FactsError(f"line {reader.line_num}: {error}") from None
    if not found:
        raise FactsError("no facts in it")
    return found


def _fact(line: int, row: dict[str, str | None]) -> Fact:
    for name in _COLUMNS:
        if not (row.get(name) or "").strip() and name != "used":
            raise FactsError(f"line {line}: {name}: empty")
    text = {name: (row.get(name) or "").strip() for name in _COLUMNS}
    number: float | None = None
    if text["unit"] != "config":
        try:
            number = float(text["value"])
        except ValueError:
            raise FactsError(f"line {line}: value: '{text['value']}' is not a number") from None
        if not math.isfinite(number):
            raise FactsError(f"line {line}: value: {text['value']} is not finite")
    return Fact(line, **text, number=number)
