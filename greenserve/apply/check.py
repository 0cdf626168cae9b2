"""Finds what is wrong with a plan before anything is changed, as far as values alone can say; the API says the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .document import Fault, Wanted, WantedRow, missing, nearest
from .kinds import KINDS, FieldType, Kind, counted
from .plan import Action, Plan, PlannedChange, Present
from .values import Key, key_text


def faults(wanted: Wanted, present: Present, plan: Plan) -> list[Fault]:
    """Returns references to rows that neither are there nor would be made, and fields that new rows lack."""
    keys = {name: {row.key for row in rows} for name, rows in present.items()}
    gone = {(one.kind, one.key) for one in plan.changes if one.action is Action.DELETE}
    found: list[Fault] = []
    for rows in wanted.values():
        for row in rows.values():
            found += _references(row, wanted, keys, gone)
    for change in plan.changes:
        if change.action is Action.CREATE and change.wanted is not None:
            for spec in missing(KINDS[change.kind], change.values):
                found.append(change.wanted.fault(spec.name, "a new row needs it"))
    return found


def _references(
    row: WantedRow, wanted: Wanted, keys: Mapping[str, set[Key]], gone: set[tuple[str, Key]]
) -> Iterator[Fault]:
    for name, kind, key in named(KINDS[row.kind], row.values):
        if key in wanted.get(kind, {}):
            continue
        one = KINDS[kind].one
        if (kind, key) in gone:
            yield row.fault(name, f"the {one} '{key_text(key)}' would be deleted: name it under {kind} too")
        elif key not in keys[kind]:
            known = {*map(key_text, keys[kind]), *map(key_text, wanted.get(kind, {}))}
            yield row.fault(name, f"there is no {one} '{key_text(key)}'; {nearest(key_text(key), known)}")


def named(kind: Kind, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Key]]:
    """Yields field, kind and key of each row that a row of these values names."""
    for spec in kind.references:
        value = values.get(spec.name)
        for key in () if value is None else value if spec.type is FieldType.NAMES else (value,):
            yield spec.name, spec.of, key


def checked_when_made(plan: Plan) -> frozenset[tuple[str, Key]]:
    """Returns the rows that nobody can try beforehand: they name a row that this plan makes, or come with another one.

    The API tries rows of one kind together, and knows no row of another kind that is not stored.
    """
    made: set[tuple[str, Key]] = set()
    found: set[tuple[str, Key]] = set()
    for change in plan.changes:  # in the order of references
        if change.wanted is None:
            continue
        if any((kind, key) in made for _, kind, key in named(KINDS[change.kind], change.values)):
            found.add((change.kind, change.key))
        if change.action is Action.CREATE:
            made.add((change.kind, change.key))
    for kind in KINDS.values():
        found |= {(one.kind, one.key) for one in _brought(kind.comes_with, plan.of(kind.name, Action.CREATE))}
    return frozenset(found)


def uncertain(plan: Plan) -> frozenset[tuple[str, Key]]:
    """Returns the rows of which an error that the API names beforehand may be none any more when it is their turn.

    They name a row that an earlier step changes, or to which it adds something: a service, whose partition gets its
    first classes.
    """
    touched: set[tuple[str, Key]] = set()
    found: set[tuple[str, Key]] = set()
    for _, step in groupby((one for one in plan.changes if one.wanted is not None), lambda change: change.kind):
        changes = list(step)
        found |= {
            (one.kind, one.key) for one in changes if any((kind, key) in touched for _, kind, key in _all_named(one))
        }
        for one in changes:
            touched |= {(one.kind, one.key), *((kind, key) for _, kind, key in _all_named(one))}
    return frozenset(found)


def _all_named(change: PlannedChange) -> Iterator[tuple[str, str, Key]]:
    """Yields the rows that a changed row names, also by fields that stay as they are."""
    there = {} if change.present is None else change.present.values
    return named(KINDS[change.kind], {**there, **change.values})


def _brought(alike: tuple[str, ...], made: tuple[PlannedChange, ...]) -> Iterator[PlannedChange]:
    """Yields the new rows that come with an earlier one."""
    seen: set[tuple[object, ...]] = set()
    for change in made if alike else ():
        group = tuple(change.values[name] for name in alike)
        if group in seen:
            yield change
        seen.add(group)


@dataclass(frozen=True, slots=True)
class Dependants:
    """A number of rows of a kind that name a row which would be deleted, and stay themselves."""

    kind: str
    count: int

    def __str__(self) -> str:
        return counted(self.kind, self.count)


def dependants(plan: Plan, present: Present) -> Mapping[tuple[str, Key], tuple[Dependants, ...]]:
    """Returns for each deletion the rows that go with it, or keep it from being done; the API decides which."""
    deleted = {(one.kind, one.key) for one in plan.changes if one.action is Action.DELETE}
    found: dict[tuple[str, Key], list[Dependants]] = {}
    for other in KINDS.values():
        users = Counter(
            target
            for row in present.get(other.name, ())
            if (other.name, row.key) not in deleted
            for target in {(kind, key) for _, kind, key in named(other, row.values)} & deleted
        )
        for target, count in users.items():
            found.setdefault(target, []).append(Dependants(other.name, count))
    return {target: tuple(counts) for target, counts in found.items()}
