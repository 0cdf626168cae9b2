"""YAML with the place of every value, by the core rules of YAML 1.2: `no` and `17:00` are texts, as they look.

PyYAML alone reads by YAML 1.1, where they are false and 1020, and lets the second of two equal keys win.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from core import safe_yaml

_NULL, _BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_CORE = (
    (_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (_INT, re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (_FLOAT, re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"), list("-+.0123456789")),
    (_MERGE, re.compile(r"^<<$"), ["<"]),
)


class Loader(safe_yaml.Loader):
    """Composes nodes by the core rules."""

    yaml_implicit_resolvers: dict[str, Any] = {}


class Dumper(yaml.SafeDumper):
    """Writes texts in quotes where readers by either rules would take them for something else."""

    yaml_implicit_resolvers = {first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()}

    def ignore_aliases(self, data: object) -> bool:
        return True


for _tag, _pattern, _first in _CORE:
    Loader.add_implicit_resolver(_tag, _pattern, _first)
    if _tag in (_INT, _FLOAT):
        Dumper.add_implicit_resolver(_tag, _pattern, _first)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class UnreadableError(Exception):
    """A text that is no YAML, or has what a fleet's file cannot have."""

    def __init__(self, mark: Mark, words: str) -> None:
        super().__init__(words)
        self.mark, self.words = mark, words


class Reading:
    """Turns the nodes of one file into values."""

    def __init__(self, file: str) -> None:
        self.file = file

    def root(self, text: str) -> yaml.Node | None:
        """Returns the document's node; None: there is nothing in it. Raises UnreadableError."""
        try:
            return safe_yaml.compose(text, Loader)
        except safe_yaml.BadYamlError as error:
            raise UnreadableError(
                Mark(self.file, error.line, error.column), f"this is no YAML: {error.words}"
            ) from None

    def mark(self, node: yaml.Node) -> Mark:
        return Mark(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def pairs(self, node: yaml.MappingNode) -> Iterator[tuple[str, Mark, yaml.Node]]:
        """Yields the keys with their places and nodes; those of `<<: *name` last, where they are not there already.

        Raises UnreadableError: a key that is no text, or comes twice.
        """
        seen: set[str] = set()
        merged: list[yaml.MappingNode] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += self._merged(value)
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise UnreadableError(self.mark(key), "a key is a text")
            if key.value in seen:
                raise UnreadableError(self.mark(key), f"'{key.value}' stands here twice: keep one")
            seen.add(key.value)
            yield key.value, self.mark(key), value
        for mapping in merged:
            for name, mark, value in self.pairs(mapping):
                if name not in seen:
                    seen.add(name)
                    yield name, mark, value

    def value(self, node: yaml.Node) -> Any:
        """Returns the node's value. Raises UnreadableError for tags."""
        if isinstance(node, yaml.MappingNode):
            return {name: self.value(inner) for name, _, inner in self.pairs(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self.value(inner) for inner in node.value]
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        text: str = node.value
        match node.tag:
            case "tag:yaml.org,2002:null":
                return None
            case "tag:yaml.org,2002:bool":
                return text.lower() == "true"
            case "tag:yaml.org,2002:int":
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            case "tag:yaml.org,2002:float":
                return float(text)
            case "tag:yaml.org,2002:str":
                return text
        raise UnreadableError(self.mark(node), f"the tag {node.tag} means nothing here: leave it out")

    def _merged(self, node: yaml.Node) -> list[yaml.MappingNode]:
        found = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(one, yaml.MappingNode) for one in found):
            raise UnreadableError(self.mark(node), "<< takes the alias of fields, such as *h100")
        return list(found)
