"""The OpenAPI document as the generator reads it: components by role, operations by resource, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
ROOT = "/api/v1/"
WRAPPERS = ("OneOrMany", "OneOrManyRequest", "Several", "ValidationResults")
USUAL = {
    "retrieve": "get",
    "partial_update": "change",
    "destroy": "delete",
    "bulk_update": "change_many",
}
# Operations whose names in the document do not begin with their resource's.
OWN = {
    "mode_retrieve": "get",
    "mode_set": "set",
    "advice_retrieve": "advice",
    "preview_create": "preview",
    "nodes_join_create": "join",
    "series": "get",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a resource.

    Attributes:
        group: the client's attribute, such as `alert_silences`.
        name: the method's, such as `acknowledge`.
    """

    group: str
    name: str
    method: str
    path: str
    schema: Schema

    @property
    def words(self) -> str:
        return str(self.schema.get("description", "")).strip()

    def parameters(self, where: str) -> list[Schema]:
        return [one for one in self.schema.get("parameters", ()) if one["in"] == where]

    def takes(self, header: str) -> bool:
        return any(one["name"] == header for one in self.parameters("header"))

    def bodies(self) -> Mapping[str, Schema]:
        """Returns the schema of the body by media type."""
        content = self.schema.get("requestBody", {}).get("content", {})
        return {kind: one["schema"] for kind, one in content.items()}

    def answers(self) -> Mapping[str, Schema]:
        """Returns the schema of the answer by media type; empty where it has no body."""
        for status, answer in self.schema["responses"].items():
            if status.startswith("2"):
                return {kind: one["schema"] for kind, one in answer.get("content", {}).items()}
        raise ValueError(f"{self.path} says nothing of what it returns")


class Document:
    """The OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.schemas: Mapping[str, Schema] = document["components"]["schemas"]
        self._paths: Mapping[str, Any] = document["paths"]

    def operations(self) -> list[Operation]:
        """Returns all of them, by resource. Raises ValueError where two would have one name."""
        found = [
            Operation(
                group := _snake(schema["tags"][0]), _method(schema["operationId"], group), verb.upper(), path, schema
            )
            for path, verbs in self._paths.items()
            for verb, schema in verbs.items()
        ]
        names = [(one.group, one.name) for one in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two operations are called {twice}: name one in OWN")
        return sorted(found, key=lambda one: (one.group, one.path.count("{"), one.path, one.name))

    def component(self, schema: Schema) -> str | None:
        """Returns the name of the component that a schema refers to; None: it is none."""
        return str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else None

    def one_of_many(self, schema: Schema) -> str | None:
        """Returns the component of which the schema takes one or a list; None: it is no such schema."""
        name = self.component(schema)
        if name is None or not name.endswith(WRAPPERS):
            return None
        first = self.schemas[name]["oneOf"][0]
        return self.component(first.get("items", first))

    def row(self, schema: Schema) -> str | None:
        """Returns the component of a list's rows; None: the schema is no list."""
        name = self.component(schema)
        fields = self.schemas[name].get("properties", {}) if name else {}
        return self.component(fields["results"]["items"]) if "results" in fields and "next" in fields else None

    def sent(self) -> set[str]:
        """Returns the components that occur in bodies, as those of JSON alone."""
        bodies = [body for one in self.operations() for kind, body in one.bodies().items() if "json" in kind]
        return self._reached(bodies)

    def got(self) -> set[str]:
        """Returns the components that occur in answers."""
        return self._reached([schema for one in self.operations() for schema in one.answers().values()])

    def _reached(self, begin: list[Schema]) -> set[str]:
        found: set[str] = set()
        todo = [name for schema in begin for name in _references(schema)]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += _references(self.schemas[name])
        return {name for name in found if not self._is_wrapper(name)}

    def _is_wrapper(self, name: str) -> bool:
        return name.endswith(WRAPPERS) or self.row({"$ref": name}) is not None


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield str(schema["$ref"]).rpartition("/")[2]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _method(operation_id: str, group: str) -> str:
    if operation_id in OWN:
        return OWN[operation_id]
    if not operation_id.startswith(f"{group}_"):
        raise ValueError(f"{operation_id} is an operation of {group} and does not begin so: name it in OWN")
    name = operation_id.removeprefix(f"{group}_")
    return USUAL.get(name, name)


def _snake(tag: str) -> str:
    return tag.replace("-", "_")


def pascal(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[-_]", name))
