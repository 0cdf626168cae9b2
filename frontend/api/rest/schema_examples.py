"""Examples for the OpenAPI document: made from the schemas themselves, so that they never differ from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH = 10
BY_FORMAT = {
    "date-time": "2026-11-02T08:30:00Z",
    "date": "2026-11-02",
    "uuid": "0b6c1a8e-5f0e-4c0e-9d0b-0a3f2d4c5b6a",
    "uri": "https://ops.example.org/hooks/greenserve",
    "decimal": "120.0000",
    "email": "operator@example.org",
}
BY_NAME = {
    "site": "ashburn",
    "node": "a1",
    "cluster": "main",
    "service": "llama3-70b",
    "model_card": "Llama3-70B",
    "partition": "all",
    "gpu_type": "H100-SXM-80GB",
    "time_zone": "America/New_York",
    "grid_zone": "US-MIDA-PJM",
    "currency": "USD",
    "etag": '"9c1f0a6d2b5e4c7f8a3b1d0e6f5c4b2a"',
    "next": "https://greenserve.example.org/api/v1/decisions/?cursor=cD0xMg%3D%3D",
    "previous": None,
}


def example(schema: Mapping[str, Any], components: Mapping[str, Any], name: str = "", depth: int = DEPTH) -> Any:
    """Returns a value that the schema allows."""
    if reference := schema.get("$ref"):
        found = components.get(reference.rpartition("/")[2], {})
        return example(found, components, name, depth - 1) if depth > 0 else {}
    for fixed in ("example", "default", "const"):
        if fixed in schema:
            return schema[fixed]
    if "examples" in schema:
        return schema["examples"][0]
    if choices := schema.get("enum"):
        return choices[0]
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return example(schema[several][0], components, name, depth)
    if "allOf" in schema:
        parts = [example(part, components, name, depth) for part in schema["allOf"]]
        return parts[0] if len(parts) == 1 else {key: value for part in parts for key, value in part.items()}
    return _by_type(schema, components, name, depth)


def _by_type(schema: Mapping[str, Any], components: Mapping[str, Any], name: str, depth: int) -> Any:
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    match kind:
        case "object":
            inner = schema.get("properties", {})
            return {key: example(value, components, key, depth - 1) for key, value in inner.items()} if depth else {}
        case "array":
            return [example(schema.get("items", {}), components, name, depth - 1)] if depth > 0 else []
        case "integer":
            return max(1, int(schema.get("minimum", 1)))
        case "number":
            return max(1.0, float(schema.get("minimum", 1.0)))
        case "boolean":
            return True
        case "string":
            found = BY_FORMAT.get(schema.get("format", "")) or BY_NAME.get(name) or name.replace("_", "-") or "text"
            return found[: schema.get("maxLength", len(found))]
    return None
