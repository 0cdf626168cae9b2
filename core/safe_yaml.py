"""The only reader of YAML. A text is refused before its aliases are written out: a few lines can stand for gigabytes.

Tags are those of plain values; of two equal keys none wins. Who needs the place of every value takes the nodes.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

MOST_LETTERS = 10_000_000
MOST_DEPTH = 50
MOST_VALUES = 500_000  # with aliases written out
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")


class BadYamlError(ValueError):
    """A text that is no YAML or has what no text may have. `words` says it without the place, which counts from 1."""

    def __init__(self, words: str, mark: Any = None) -> None:
        self.words = words
        self.line: int = 1 if mark is None else mark.line + 1
        self.column: int = 1 if mark is None else mark.column + 1
        super().__init__(words if mark is None else f"line {self.line}, column {self.column}: {words}")


class Loader(yaml.SafeLoader):
    """Composes and constructs within the limits. Counts what each node stands for, its aliases written out."""

    yaml_constructors = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _PLAIN
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._known: dict[int, tuple[int, int]] = {}  # values and levels of each node that is whole
        self._levels = [0]  # below each node that is being composed

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.events.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._known:
                raise BadYamlError("an alias names itself: write out what is meant", mark)
            values, levels = self._known[id(node)]
            self._count(values, levels, mark)
            return node
        before = self._values
        self._count(1, 1, mark)
        self._levels.append(0)
        node = super().compose_node(parent, index)
        levels = self._levels.pop() + 1
        self._levels[-1] = max(self._levels[-1], levels)
        self._known[id(node)] = self._values - before, levels
        return node

    def _count(self, values: int, levels: int, mark: Any) -> None:
        self._values += values
        self._levels[-1] = max(self._levels[-1], levels)
        if len(self._levels) - 1 + levels > MOST_DEPTH:
            raise BadYamlError(f"more than {MOST_DEPTH} levels: it is nested too deeply", mark)
        if self._values > MOST_VALUES:
            raise BadYamlError(f"more than {MOST_VALUES:,} values, aliases written out: split it", mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise BadYamlError(f"'{key.value}' stands here twice: keep one", key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: Any) -> float:
        found = super().construct_yaml_float(node)
        if not math.isfinite(found):
            raise BadYamlError(f"{node.value} is no finite number", node.start_mark)
        return found


Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)


def compose(text: str, loader: type[Loader] = Loader) -> yaml.Node | None:
    """Returns the document's node; None: there is nothing in it. Raises BadYamlError."""
    if len(text) > MOST_LETTERS:
        raise BadYamlError(f"more than {MOST_LETTERS:,} letters: split it")
    try:
        reader = loader(text)
        try:
            return reader.get_single_node()
        finally:
            reader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _translated(error) from None


def value(node: yaml.Node | None) -> Any:
    """Returns what a node says, as plain values; dates as dates. Raises BadYamlError."""
    if node is None:
        return None
    try:
        return Loader("").construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _translated(error, node) from None


def load(text: str) -> Any:
    """Returns what a text says, as plain values; dates as dates. Raises BadYamlError."""
    return value(compose(text))


def _translated(error: Exception, node: yaml.Node | None = None) -> BadYamlError:
    if isinstance(error, BadYamlError):
        return error
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return BadYamlError(str(error.problem or error.context), mark)
    return BadYamlError(" ".join(str(error).split()), None if node is None else node.start_mark)
