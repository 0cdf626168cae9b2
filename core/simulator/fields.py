"""Reads the fields of a scenario one by one, so that each error names its field and what would be right."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core import bounds, safe_yaml
from core.simulator.kernel.simulated import SimulationError


class ScenarioError(SimulationError):
    """A scenario that cannot be used; the message names the field and the remedy."""


class Section:
    """A mapping of the file. `finish` refuses the keys that nobody asked for."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values
        self._asked: set[str] = set()

    @property
    def key(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def values(self) -> Mapping[str, Any]:
        return self._values

    def error(self, key: str, message: str) -> ScenarioError:
        return ScenarioError(f"{self._name(key)}: {message}")

    def finish(self) -> None:
        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(str(key), self._asked, 1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(self._asked))}"
                raise self.error(str(key), f"unknown field; {hint}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key)
        if value is None:
            if default is None:
                raise self.error(key, "missing; give a name")
            return default
        if isinstance(value, (dict, list, bool)):
            raise self.error(key, f"must be a name, not {value!r}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            raise self.error(key, f"must be a list of names, not {value!r}")
        return tuple(str(item) for item in value)

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        value = self.text(key, default)
        if value not in known and value != default:
            raise self.error(key, f"unknown '{value}'; known: {', '.join(known)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def number(
        self, key: str, default: float | None, least: float | None = None, above: float | None = None
    ) -> float | None:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(key, f"must be a number, not {value!r}")
        if least is not None and value < least:
            raise self.error(key, f"must be at least {least:g}, not {value}")
        if above is not None and value <= above:
            raise self.error(key, f"must be above {above:g}, not {value}")
        self._check_most(key, value)
        return float(value)

    def integer(self, key: str, default: int, least: int, most: int | None = None) -> int:
        value = self.maybe_integer(key, least, most)
        return default if value is None else value

    def maybe_integer(self, key: str, least: int, most: int | None = None) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be a whole number, not {value!r}")
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise self.error(key, f"must be {limits}, not {value}")
        self._check_most(key, value)
        return value

    def series(self, key: str) -> tuple[float, ...]:
        """Reads a number that always holds, or a list with one for each hour, where null is NaN: not known."""
        value = self._get(key)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        for item in values:
            if item is None:
                continue
            if isinstance(item, bool) or not isinstance(item, (int, float)) or not math.isfinite(item):
                raise self.error(key, f"must be a number or a list with one for each hour, not {item!r}")
            self._check_most(key, item)
        return tuple(math.nan if item is None else float(item) for item in values)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Reads a list of numbers."""
        values = self._get(key)
        if not isinstance(values, list) or not values:
            raise self.error(key, f"must be a list of numbers, not {values!r}")
        for item in values:
            if isinstance(item, bool) or not isinstance(item, (int, float)) or not math.isfinite(item):
                raise self.error(key, f"must be a list of numbers, but has {item!r}")
        return tuple(float(item) for item in values)

    def rows(self, key: str) -> tuple[tuple[float, ...], ...]:
        """Reads a list of lists of numbers."""
        rows = self._get(key)
        if not isinstance(rows, list):
            raise self.error(key, f"must be a list of lists of numbers, not {rows!r}")
        own = Section(self._name(key), {f"row {n}": row for n, row in enumerate(rows)})
        return tuple(own.numbers(name) for name in own.names())

    def names(self) -> tuple[str, ...]:
        """Returns the keys of a mapping that has a name for each item."""
        return tuple(str(key) for key in self._values)

    def is_mapping(self, key: str) -> bool:
        """Says whether a field that may be a plain value is a mapping of its own."""
        return isinstance(self._get(key), dict)

    def section(self, key: str) -> Section:
        return self.optional(key) or Section(self._name(key), {})

    def optional(self, key: str) -> Section | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be a mapping of fields, not {value!r}")
        return Section(self._name(key), value)

    def sections(self, key: str) -> list[Section]:
        """Reads a list of mappings; a lone mapping is a list of one."""
        value = self._get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        for item in items:
            if not isinstance(item, dict):
                raise self.error(key, f"must be a mapping or a list of them, not {item!r}")
        return [Section(f"{self._name(key)}[{n}]", item) for n, item in enumerate(items)]

    def children(self) -> Iterator[Section]:
        for key in self._values:
            yield self.section(key)

    def _get(self, key: str) -> Any:
        self._asked.add(key)
        return self._values.get(key)

    def _check_most(self, key: str, value: float) -> None:
        """Refuses what no quantity of this name can be, in size; whether it may be below zero is the field's to say."""
        bound = bounds.of(key)
        if bound is not None and abs(value) > bound.most:
            raise self.error(key, f"must be at most {bound.most:,g}, not {value:g}")

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def put(document: dict[str, Any], setting: str) -> None:
    """Puts `a.b=value` into the document; a list on the way takes it in each of its items, or in the one numbered.

    Raises:
        ScenarioError: The setting is not `key=value`, or its value is not YAML.
    """
    path, sign, text = setting.partition("=")
    if not sign or not path.strip():
        raise ScenarioError(f"--set {setting}: write it as key=value, like workload.rate_rps=5")
    try:
        value = safe_yaml.load(text)
    except safe_yaml.BadYamlError:
        raise ScenarioError(f"--set {setting}: the value is not YAML") from None
    _put(document, path.strip().split("."), value, setting)


def _put(node: Any, path: Sequence[str], value: Any, setting: str) -> None:
    key, rest = path[0], path[1:]
    if isinstance(node, list):
        if key.isdigit():
            if int(key) >= len(node):
                raise ScenarioError(f"--set {setting}: there are {len(node)} items, numbered from 0")
            if rest:
                _put(node[int(key)], rest, value, setting)
            else:
                node[int(key)] = value
        else:
            for item in node:
                _put(item, path, value, setting)
    elif isinstance(node, dict):
        if not rest:
            node[key] = value
        else:
            if node.get(key) is None:
                node[key] = {}
            _put(node[key], rest, value, setting)
    else:
        raise ScenarioError(f"--set {setting}: '{key}' is inside a plain value")
