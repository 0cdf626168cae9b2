"""Compares the rows that files want with those that are there: what would be made, changed and deleted, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from .document import Wanted, WantedRow
from .kinds import KINDS, Kind, naming
from .values import Key, alike, canonical, key_of, key_text, same, shown, words


@dataclass(frozen=True, slots=True)
class PresentRow:
    """One row as REST shows it. `values` are the fields that people set, canonical."""

    kind: str
    key: Key
    id: int
    etag: str
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{KINDS[self.kind].one} {key_text(self.key)}"


Present = Mapping[str, Sequence[PresentRow]]


class Action(Enum):
    """A row is made, changed or deleted; each has the sign of its line in a plan."""

    CREATE = "+"
    CHANGE = "~"
    DELETE = "-"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, or one part of an object in it (`knobs.clock`), in words. An empty text: the part is not there."""

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change of one row. A creation has no `present` row, and a deletion no `wanted` one.

    Attributes:
        values: The fields that are sent, canonical.
        fields: What differs, in words.
    """

    action: Action
    kind: str
    key: Key
    wanted: WantedRow | None
    present: PresentRow | None
    values: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[FieldChange, ...] = ()

    @property
    def label(self) -> str:
        return f"{KINDS[self.kind].one} {key_text(self.key)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes in the order in which they can be made, and how many rows are as the files want them."""

    changes: tuple[PlannedChange, ...]
    unchanged: Mapping[str, int]

    def count(self, action: Action) -> int:
        return sum(change.action is action for change in self.changes)

    def of(self, kind: str, action: Action) -> tuple[PlannedChange, ...]:
        return tuple(one for one in self.changes if one.kind == kind and one.action is action)


def present_row(kind: Kind, row: Mapping[str, Any]) -> PresentRow:
    """Returns one of REST's rows. Raises WrongValueError, KeyError: it is not as this version knows it."""
    values = {spec.name: canonical(spec, row[spec.name]) for spec in kind.fields}
    return PresentRow(kind.name, key_of(kind.name, values), row["id"], row["etag"], values)


def by_key(rows: Sequence[PresentRow]) -> dict[Key, PresentRow]:
    """Returns the row that counts for each key: of versions with one key the one that was entered last."""
    return {row.key: row for row in sorted(rows, key=lambda row: row.id)}


def compare(wanted: Wanted, present: Present, prune: bool = False) -> Plan:
    """Returns what makes the fleet that is there the wanted one.

    Only the kinds and fields that the files name are looked at. Makes and changes come in the order of references, and
    then deletions in the opposite order.

    Args:
        present: The rows of all kinds that the files name.
        prune: Rows of these kinds that no file names are deleted, but versions never.
    """
    changes: list[PlannedChange] = []
    unchanged: dict[str, int] = {}
    for name in (name for name in KINDS if name in wanted):
        there = by_key(present[name])
        rows = {key: _filled(row, there.get(key)) for key, row in wanted[name].items()}
        made = [_create(row) for key, row in rows.items() if key not in there]
        differing = [_change(row, there[key]) for key, row in rows.items() if key in there]
        changed = [change for change in differing if change is not None]
        unchanged[name] = len(differing) - len(changed)
        changes += [*made, *changed]
    if prune:
        changes += _deletions(wanted, present)
    return Plan(tuple(changes), unchanged)


def _filled(row: WantedRow, there: PresentRow | None) -> WantedRow:
    """Returns the row with what it would have where none is set."""
    lacking = {name: value for name, value in row.if_empty.items() if there is None or not there.values[name]}
    return replace(row, values={**row.values, **lacking}) if lacking else row


def _create(row: WantedRow) -> PlannedChange:
    kind = KINDS[row.kind]
    fields = tuple(FieldChange(name, "", shown(kind.field(name), value)) for name, value in row.values.items())
    return PlannedChange(Action.CREATE, row.kind, row.key, row, None, row.values, fields)


def _change(row: WantedRow, there: PresentRow) -> PlannedChange | None:
    """Returns what differs; None: nothing."""
    kind = KINDS[row.kind]
    values: dict[str, Any] = {}
    fields: list[FieldChange] = []
    for name, value in row.values.items():
        spec = kind.field(name)
        new = (*value, *_always(kind, name, value, there)) if spec.name in dict(kind.always_in) else value
        if name in kind.once or same(spec, there.values[name], new):
            continue
        values[name] = new
        old, now = there.values[name], new
        if isinstance(old, Mapping) and isinstance(now, Mapping):
            fields += _parts(name, old, now)
        else:
            fields.append(FieldChange(name, shown(spec, old), shown(spec, now)))
    if not values:
        return None
    return PlannedChange(Action.CHANGE, row.kind, row.key, row, there, values, tuple(fields))


def _always(kind: Kind, name: str, value: tuple[Key, ...], there: PresentRow) -> tuple[Key, ...]:
    """Returns the name that the list always has, where the files leave it out: a loop may have set it since."""
    needed: Key = there.values[dict(kind.always_in)[name]]
    return () if needed in value else (needed,)


def _parts(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FieldChange]:
    """Yields what differs within an object, with dots: `knobs.tuning.dynamo.wave`."""
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _parts(f"{path}.{name}", before, after)
        elif name not in old or name not in new or not alike(before, after):
            before_text, after_text = (words(side[name]) if name in side else "" for side in (old, new))
            yield FieldChange(f"{path}.{name}", before_text, after_text)


def _deletions(wanted: Wanted, present: Present) -> Iterator[PlannedChange]:
    for name in reversed(tuple(KINDS)):
        if name in wanted and not KINDS[name].versions:
            for row in present[name]:
                if row.key not in wanted[name]:
                    yield PlannedChange(Action.DELETE, name, row.key, None, row)


def needed_kinds(wanted: Wanted, prune: bool = False) -> tuple[str, ...]:
    """Returns the kinds that must be read: those of the files, those that their rows name, and with `prune` those
    whose rows name them."""
    found = set(wanted)
    for name in wanted:
        found |= {spec.of for spec in KINDS[name].references}
        if prune:
            found |= {kind.name for kind in naming(name)}
    return tuple(name for name in KINDS if name in found)
