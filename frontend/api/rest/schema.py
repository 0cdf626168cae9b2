"""The OpenAPI document: what drf-spectacular finds in the views, and what all of them have in common."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema

from . import problems
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
STATUSES = ("400", "401", "403", "404", "405", "406", "409", "412", "415", "422", "428", "429", "500", "503")


def header(name: str, words: str, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "description": words, "schema": {"type": "string"}}


class Schema(AutoSchema):
    """Adds to each operation its headers, the selection of fields, and problems for errors."""

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
        for code in STATUSES:
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

    def _is_detail_read(self) -> bool:
        return self.method == "GET" and getattr(self.view, "action", "") == "retrieve"


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
    """`anything, or null` is anything: as `oneOf` a null would be both, which is neither."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("oneOf") == [{}, {"type": "null"}]:
        schema = {name: value for name, value in schema.items() if name != "oneOf"}
    return {name: _plain(value) for name, value in schema.items()}
