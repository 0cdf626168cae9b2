"""JSON schemas as Python types: names of components, of enumerations, and what stands in annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .document import Document, Schema, pascal

TEXTS = {"date-time": "Time", "date": "date", "uuid": "UUID", "decimal": "Decimal", "binary": "bytes"}
PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Names:
    """What components and enumerations are called in `models.py`."""

    def __init__(self, document: Document) -> None:
        self.got, self.sent = document.got(), document.sent()
        self.components = {name: name for name in self.got}
        for name in sorted(self.sent - self.got):
            self.components[name] = _of_body(name, self.got)
        self.choices: dict[tuple[str, ...], str] = {}
        self._taken = set(self.components.values())
        self._keys: dict[frozenset[str], tuple[str, ...]] = {}
        for name in sorted(self.got) + sorted(self.sent - self.got):
            for field, schema in document.schemas[name].get("properties", {}).items():
                self._name_choices(pascal(field), self.components[name], schema)

    def choice(self, values: list[Any]) -> str:
        """Returns the name of an enumeration, or the enumeration itself where it occurs in queries alone."""
        key = self._keys.get(frozenset(values))
        return self.choices[key] if key else f"Literal[{', '.join(repr(value) for value in values)}]"

    def _name_choices(self, field: str, component: str, schema: Schema) -> None:
        values = schema.get("enum") or schema.get("items", {}).get("enum")
        if not values or frozenset(values) in self._keys:
            return
        free = [name for name in (field, component + field) if name not in self._taken]
        if not free:
            raise ValueError(f"an enumeration of {component} has no name: {component + field} is another thing")
        name = free[0]
        self._taken.add(name)
        self._keys[frozenset(values)] = tuple(values)
        self.choices[tuple(values)] = name


def _of_body(name: str, got: set[str]) -> str:
    if name.startswith("Patched"):
        return name.removeprefix("Patched").removesuffix("Request") + "Changes"
    plain = name.removesuffix("Request")
    return f"New{plain}" if plain in got else plain


class Types:
    """Annotations. `body`: of what is sent, which is as general as the API allows; else of what is returned."""

    def __init__(self, names: Names, body: bool, prefix: str = "") -> None:
        self.names, self.body, self.prefix = names, body, prefix

    def of(self, schema: Schema) -> str:
        if "$ref" in schema:
            return self.prefix + self.names.components[schema["$ref"].rpartition("/")[2]]
        if "allOf" in schema and len(schema["allOf"]) == 1:
            return self.of(schema["allOf"][0])
        if "oneOf" in schema:
            return _union([self.of(one) for one in schema["oneOf"]])
        if "enum" in schema:
            found = self.names.choice([value for value in schema["enum"] if value is not None])
            found = found if found.startswith("Literal") else self.prefix + found
            return _union([found, "None"]) if "null" in _kinds(schema) or None in schema["enum"] else found
        kinds = _kinds(schema)
        if schema.get("format") == "decimal":
            decimal = ["Decimal", *(["float"] if self.body else [])]
            return _union([*decimal, *(["None"] if "null" in kinds else [])])
        return _union([self._one(kind, schema) for kind in kinds]) if kinds else "Any"

    def _one(self, kind: str, schema: Schema) -> str:
        match kind:
            case "string":
                found = TEXTS.get(schema.get("format", ""), "str")
                return {"Time": "datetime", "UUID": "UUID | str"}.get(found, found) if self.body else found
            case "array":
                inner = self.of(schema.get("items", {}))
                return f"Sequence[{inner}]" if self.body else f"tuple[{inner}, ...]"
            case "object":
                values = schema.get("additionalProperties")
                value = self.of(values) if isinstance(values, Mapping) else "Any"
                return f"Mapping[str, {value}]" if self.body else f"dict[str, {value}]"
        return PLAIN[kind]


def _kinds(schema: Schema) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _union(parts: list[str]) -> str:
    found = list(dict.fromkeys(part for one in parts for part in one.split(" | ")))
    if "Any" in found:
        return "Any"
    return " | ".join([*(part for part in found if part != "None"), *(["None"] if "None" in found else [])])
