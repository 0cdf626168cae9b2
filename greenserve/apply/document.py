"""Reads a fleet's files: their rows by kind, each field with its place. What is wrong is said of all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .kinds import KINDS, FieldSpec, Kind
from .values import Key, WrongValueError, given, key_of, key_text
from .yaml_values import Mark, Reading, UnreadableError

MOST_LETTERS = 10_000_000
CONFIG_FILE = "config_file"  # in place of a model's config: the path of one, from the folder of the fleet's file
_SHOWN = 12  # names that a hint lists


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake at one place of a file, with what would do."""

    mark: Mark
    where: str  # the kind, or the row and its field
    words: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.where}: {self.words}" if self.where else f"{self.mark}: {self.words}"


class DocumentError(Exception):
    """Files that cannot be used, with everything that is wrong in them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: fault.mark))
        super().__init__("\n".join(map(str, self.faults)))


@dataclass(frozen=True, slots=True)
class WantedRow:
    """One row of a file.

    Attributes:
        values: The fields that the file names, canonical.
        mark: Where the row begins.
        marks: Where each field stands.
        if_empty: Values of fields that it does not name, for a row that has none of its own.
    """

    kind: str
    key: Key
    values: Mapping[str, Any]
    mark: Mark
    marks: Mapping[str, Mark]
    if_empty: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{KINDS[self.kind].one} {key_text(self.key)}"

    def fault(self, field: str, words: str) -> Fault:
        where = f"{self.label}, {field}" if field else self.label
        return Fault(self.marks.get(field.partition(".")[0], self.mark), where, words)


# Rows by kind, in the order in which kinds can be made. A kind that is there without rows is one that the files name.
Wanted = Mapping[str, Mapping[Key, WantedRow]]


def read(files: Iterable[tuple[str, str]]) -> Wanted:
    """Returns the rows of all files together.

    Args:
        files: The name and the text of each.

    Raises:
        DocumentError: With all that is wrong: no YAML, unknown kinds and fields, wrong types, rows that come twice.
    """
    found: dict[str, dict[Key, WantedRow]] = {}
    faults: list[Fault] = []
    for name, text in files:
        _File(name, found, faults).read(text)
    if faults:
        raise DocumentError(faults)
    return {name: found[name] for name in KINDS if name in found}


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint: the nearest of the known names, or some of them."""
    names = sorted(known)
    if near := difflib.get_close_matches(name, names, 1):
        return f"did you mean {near[0]}?"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"known are {', '.join(names[:_SHOWN])}{more}" if names else "there are none yet"


class _File:
    """One file on its way into `found`; goes on after a fault, so that the next one is found too."""

    def __init__(self, name: str, found: dict[str, dict[Key, WantedRow]], faults: list[Fault]) -> None:
        self.name, self.found, self.faults = name, found, faults
        self.nodes = Reading(name)
        self.if_empty: dict[str, Any] = {}  # of the row that is being read

    def read(self, text: str) -> None:
        if len(text) > MOST_LETTERS:
            self._fault(Mark(self.name, 1, 1), "", f"it has more than {MOST_LETTERS:,} letters: split it")
            return
        try:
            root = self.nodes.root(text)
            if not isinstance(root, yaml.MappingNode):
                mark = Mark(self.name, 1, 1) if root is None else self.nodes.mark(root)
                self._fault(
                    mark, "", "a fleet's file names kinds, and below each its rows: `sites:`, then `- name: oslo`"
                )
                return
            for name, mark, node in self.nodes.pairs(root):
                self._kind(name, mark, node)
        except UnreadableError as error:
            self._fault(error.mark, "", error.words)

    def _fault(self, mark: Mark, where: str, words: str) -> None:
        self.faults.append(Fault(mark, where, words))

    def _kind(self, name: str, mark: Mark, node: yaml.Node) -> None:
        if name not in KINDS:
            self._fault(mark, name, f"there is no such kind; {nearest(name, KINDS)}")
            return
        kind = KINDS[name]
        self.found.setdefault(name, {})
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._row(kind, item, None)
        elif isinstance(node, yaml.MappingNode) and kind.lookup == ("name",):
            for key, _, item in self.nodes.pairs(node):
                self._row(kind, item, key)
        else:
            by_name = ", or fields below each name" if kind.lookup == ("name",) else ""
            self._fault(self.nodes.mark(node), name, f"give a list of rows{by_name}; [] for none")

    def _row(self, kind: Kind, node: yaml.Node, name: str | None) -> None:
        """Reads one row; `name` is what stands before it where rows stand below their names."""
        mark = self.nodes.mark(node)
        if not isinstance(node, yaml.MappingNode):
            self._fault(mark, kind.one, "a row is fields with values, such as name: oslo")
            return
        values: dict[str, Any] = {} if name is None else {"name": name}
        marks: dict[str, Mark] = {} if name is None else {"name": mark}
        label = f"{kind.one} {name}" if name is not None else self._label(kind, node)
        self.if_empty = {}
        try:
            for field, at, value in self.nodes.pairs(node):
                if name is not None and field == "name":
                    self._fault(at, f"{label}, name", "it stands before the row already: leave one out")
                    continue
                self._field(kind, label, field, at, value, values)
                marks[field] = at
        except UnreadableError as error:
            self._fault(error.mark, label, error.words)
        if CONFIG_FILE in marks and "config" in marks:
            self._fault(marks[CONFIG_FILE], f"{label}, {CONFIG_FILE}", "there is a config beside it: leave one out")
        self._complete(kind, label, mark, values, marks)
        if all(part in values for part in kind.lookup):
            lacking = {name: value for name, value in self.if_empty.items() if name not in values}
            self._enter(WantedRow(kind.name, key_of(kind.name, values), values, mark, marks, lacking))

    def _label(self, kind: Kind, node: yaml.MappingNode) -> str:
        """Returns what people call a row that may be wrong: its kind, and of its key what is there."""
        plain = {key.value: value.value for key, value in node.value if isinstance(value, yaml.ScalarNode)}
        return " ".join([kind.one, "/".join(plain[part] for part in kind.lookup if part in plain)]).strip()

    def _field(self, kind: Kind, label: str, field: str, at: Mark, node: yaml.Node, values: dict[str, Any]) -> None:
        if kind.name == "models" and field == CONFIG_FILE:
            self._config(label, at, node, values)
            return
        if field not in kind.names:
            self._fault(at, f"{label}, {field}", f"there is no such field; {nearest(field, kind.names)}")
            return
        try:
            values[field] = given(kind.field(field), self.nodes.value(node))
        except WrongValueError as error:
            self._fault(self.nodes.mark(node), f"{label}, {field}", str(error))

    def _config(self, label: str, at: Mark, node: yaml.Node, values: dict[str, Any]) -> None:
        """Reads a model's config from the file, or from that in the folder, that is named."""
        from core.engine.model_config import BadConfig
        from pools.model_files import hugging_face

        where, named = f"{label}, {CONFIG_FILE}", self.nodes.value(node)
        if not isinstance(named, str) or not named:
            self._fault(at, where, "give the path of a config.json, or of its folder")
            return
        path = Path(self.name).parent / Path(named).expanduser()
        try:
            values["config"] = hugging_face.read(path)
        except BadConfig as error:
            self._fault(at, where, str(error))
            return
        if (tokenizer := hugging_face.tokenizer_beside(str(path))) is not None:
            self.if_empty["tokenizer"] = str(tokenizer)

    def _complete(self, kind: Kind, label: str, mark: Mark, values: dict[str, Any], marks: Mapping[str, Mark]) -> None:
        """Sees to it that all fields are there that the row is known by; one that may be null may be left out."""
        for spec in map(kind.field, kind.lookup):
            if spec.name not in values and spec.name not in marks:
                if spec.nullable:
                    values[spec.name] = None
                else:
                    self._fault(mark, f"{label}, {spec.name}", "it is needed: a row is known by it")

    def _enter(self, row: WantedRow) -> None:
        rows = self.found[row.kind]
        if row.key in rows:
            self._fault(row.mark, row.label, f"it stands at {rows[row.key].mark} already: keep one of them")
        rows.setdefault(row.key, row)


def missing(kind: Kind, values: Mapping[str, Any]) -> tuple[FieldSpec, ...]:
    """Returns the fields that a new row of these values lacks."""
    return tuple(field for field in kind.fields if field.required and field.name not in values)
