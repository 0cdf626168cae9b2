"""The OpenAPI document: what drf-spectacular finds in the views, and what all of them have in common."""

from __future__ import annotations

import inspect
from decimal import Decimal
from typing import Any

from django.db import models
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import force_instance
from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.permissions import SAFE_METHODS

from . import problems
from .bodies import Body, ByType
from .schema_examples import example

PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": ["type", "title", "status", "detail", "instance", "request_id"],
    "properties": {
        "type": {"type": "string", "examples": [problems.TYPE + "invalid"]},
        "title": {"type": "string", "examples": ["Bad Request"]},
        "status": {"type": "integer", "examples": [400]},
        "detail": {"type": "string", "examples": ["pue: Ensure this value is greater than or equal to 1.0."]},
        "instance": {"type": "string", "description": "The address that was asked.", "examples": ["/api/v1/sites/"]},
        "request_id": {"type": ["string", "null"], "examples": ["6f1d0c9a"]},
        "remedy": {"type": "string", "examples": ["Read the resource, then send its ETag in If-Match."]},
        "errors": {
            "type": "array",
            "description": "One for each field that is wrong; in a list `2.site` is the field of its third item.",
            "items": {
                "type": "object",
                "required": ["field", "detail"],
                "properties": {
                    "field": {"type": "string", "examples": ["pue"]},
                    "detail": {"type": "string", "examples": ["Ensure this value is greater than or equal to 1.0."]},
                    "remedy": {"type": "string", "examples": ["Give the ratio, such as 1.2."]},
                },
            },
        },
    },
}  # fmt: skip
RESPONSE: dict[str, Any] = {
    "description": "A problem.",
    "content": {problems.CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
REFERENCE = {"$ref": "#/components/responses/Problem"}
OF_BASES = {inspect.getdoc(base) for base in (Body, ByType)}  # words for us, which a class without its own would show
ALWAYS = ("400", "401", "403", "406", "429", "500", "503")  # what any operation may answer


def header(name: str, words: str, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "description": words, "schema": {"type": "string"}}


class Schema(AutoSchema):
    """Adds to each operation its headers, the selection of fields, and the problems that it answers with.

    An answer has all of its fields: those that may be missing are declared with `required=False`, and no default.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        more = operation.setdefault("parameters", [])
        handler = getattr(self.view, getattr(self.view, "action", None) or self.method.lower(), None)
        if getattr(handler, "idempotent", False):
            words = "A key of this request's own; sent again within 24 h it gets the same answer and does nothing."
            more.append(header("Idempotency-Key", words))
        if getattr(handler, "conditional", False):
            more.append(header("If-Match", "The ETag of the resource as you know it.", required=True))
        if self._is_detail_read():
            more.append(header("If-None-Match", "An ETag that you have: 304 where it is still the one."))
            operation["responses"]["304"] = {"description": "It has not changed."}
        if (
            self.method == "GET"
            and hasattr(self.view, "names")
            and getattr(self.view, "action", "") in ("list", "retrieve")
        ):
            words = "Only these fields of each, with commas between."
            names = {"type": "string", "pattern": "^[a-z0-9_]+(,[a-z0-9_]+)*$"}
            more.append({"name": "fields", "in": "query", "description": words, "schema": names})
        for code in self._problems(handler):
            operation["responses"].setdefault(code, REFERENCE)
        operation.setdefault("description", _first_words(self.view, operation))
        return operation

    def get_operation_id(self) -> str:
        base = getattr(self.view, "basename", None)
        if base is None:
            return str(super().get_operation_id())
        return f"{base.replace('-', '_')}_{self.view.action}"

    def get_tags(self) -> list[str]:
        return [getattr(self.view, "tag", None) or super().get_tags()[0]]

    def _problems(self, handler: Any) -> list[str]:
        """Returns the statuses of the errors that the operation answers with, beside those of all."""
        found = list(ALWAYS)
        if "{" in self.path or self.view.named_in_body:
            found.append("404")
        if self.method not in SAFE_METHODS:
            found.append("409")
        if self.method in ("POST", "PATCH"):
            found.append("415")
        if getattr(handler, "conditional", False):
            found += ["412", "428"]
        if getattr(handler, "idempotent", False):
            found.append("422")
        return found

    def _map_basic_serializer(self, serializer: Any, direction: str) -> dict[str, Any]:
        serializer = force_instance(serializer)  # type: ignore[no-untyped-call]
        found: dict[str, Any] = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if direction == "response":
            fields, rows = serializer.fields, isinstance(serializer, serializers.ModelSerializer)
            there = [
                name
                for name in found.get("properties", {})
                if rows or fields[name].required or fields[name].read_only or fields[name].default is not empty
            ]
            found["required"] = there
        elif isinstance(serializer, Body):
            found["additionalProperties"] = False
        if type(serializer).__doc__ is None and inspect.getdoc(type(serializer)) in OF_BASES:
            found.pop("description", None)
        return found

    def _map_serializer_field(self, field: Any, direction: str, bypass_extensions: bool = False) -> Any:
        found = super()._map_serializer_field(field, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        model = getattr(getattr(field.parent, "Meta", None), "model", None)
        if found is not None and type(field) is serializers.JSONField and model is not None:
            found |= _shape(model._meta.get_field(field.source))
        if found is not None and direction == "request" and isinstance(field, serializers.DecimalField):
            found["type"] = ["number", *([found["type"]] if isinstance(found["type"], str) else found["type"])]
        return found

    def _is_detail_read(self) -> bool:
        return self.method == "GET" and getattr(self.view, "action", "") == "retrieve"


def _shape(column: models.JSONField[Any, Any]) -> dict[str, Any]:
    """Returns the type of what a column of JSON holds, by its default: a list, or else an object."""
    kind = "array" if column.default is list else "object"
    shape: dict[str, Any] = {"type": [kind, "null"] if column.null else kind}
    return {**shape, "items": {}} if kind == "array" else {**shape, "additionalProperties": {}}


def _first_words(view: Any, operation: dict[str, Any]) -> str:
    return f"{operation['operationId'].replace('_', ' ').capitalize()}."


def finish(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Adds the problem document and an example for each body, as a hook of drf-spectacular."""
    parts = result.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    schemas["Problem"] = PROBLEM
    parts.setdefault("responses", {})["Problem"] = RESPONSE
    for name in schemas:
        schemas[name] = _plain(schemas[name])
    bodies = [RESPONSE]
    for path in result["paths"].values():
        for operation in path.values():
            bodies += [operation["requestBody"]] if "requestBody" in operation else []
            bodies += [answer for answer in operation["responses"].values() if "$ref" not in answer]
    for body in bodies:
        for kind, content in body.get("content", {}).items():
            if "json" in kind and "example" not in content and "examples" not in content:
                content["example"] = example(content.get("schema", {}), schemas)
    return result


def _plain(schema: object) -> Any:
    """`anything, or null` is anything: as `oneOf` a null would be both, which is neither. No ids of enums."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return float(schema) if isinstance(schema, Decimal) else schema
    if schema.get("oneOf") == [{}, {"type": "null"}]:
        schema = {name: value for name, value in schema.items() if name != "oneOf"}
    return {name: _plain(value) for name, value in schema.items() if name != "x-spec-enum-id"}
