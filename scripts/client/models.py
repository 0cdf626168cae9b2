"""Writes `models.py`: a frozen Struct for each thing that is returned, a TypedDict for each body that is sent."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from .document import Document, Schema
from .python_types import Names, Types

WIDTH = 114  # of 120, less the quotation marks
HEAD = '''"""What the REST API returns, and the bodies that it takes.

Made from the API's OpenAPI document by `make client`: change the API, not this.
Structs are what is returned: None is not known, or not there. Typed dictionaries are fields of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Required, TypedDict
from uuid import UUID

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]
'''
USUAL_FIELDS = {"url", "etag"}  # of many resources, and the guide explains them


def models(document: Document, names: Names) -> str:
    parts = [HEAD]
    for values, name in sorted(names.choices.items(), key=lambda one: one[1]):
        parts.append(f"{name} = Literal[{', '.join(repr(value) for value in values)}]")
    parts += ["", ""]
    for name in sorted(names.got):
        parts.append(_struct(name, document.schemas[name], Types(names, body=False)))
    for name in sorted(names.sent, key=lambda one: names.components[one]):
        if name not in names.got:
            parts += _bodies(name, document.schemas[name], names)
    return "\n".join(parts)


def _struct(name: str, schema: Schema, types: Types) -> str:
    lines = [f"class {name}(msgspec.Struct, frozen=True, kw_only=True):", *_docstring(name, schema)]
    there = set(schema.get("required", ()))
    for field, inner in schema["properties"].items():
        kind = types.of(inner)
        if field in there:
            lines.append(f"    {field}: {kind}")
        else:
            lines.append(f"    {field}: {kind if kind.endswith('None') or kind == 'Any' else f'{kind} | None'} = None")
    return "\n".join([*lines, "", ""])


def _bodies(name: str, schema: Schema, names: Names) -> Iterator[str]:
    """Yields the body's class; for changes also that of an item of a list of them."""
    types, called = Types(names, body=True), names.components[name]
    there = set(schema.get("required", ()))
    lines = [f"class {called}(TypedDict, total=False):", *_docstring(called, schema)]
    for field, inner in schema["properties"].items():
        lines.append(f"    {field}: {f'Required[{types.of(inner)}]' if field in there else types.of(inner)}")
    yield "\n".join([*lines, "", ""])
    if called.endswith("Changes"):
        item = called.removesuffix("s")
        yield (
            f"class {item}({called}):\n"
            f'    """Changes of one row, in a list of them: its id, and the etag that was read."""\n\n'
            f"    id: Required[int]\n    etag: Required[str]\n\n"
        )


def _docstring(name: str, schema: Schema) -> list[str]:
    words = " ".join(str(schema.get("description", "")).split()) or f"The API's {_apart(name)}."
    fields = {
        field: first
        for field, inner in schema["properties"].items()
        if field not in USUAL_FIELDS and (first := _sentence(str(inner.get("description", ""))))
    }
    return docstring(words, fields, "Attributes", "    ")


def _apart(name: str) -> str:
    """Returns a class's name as words: ReportFile is `report file`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _sentence(words: str) -> str:
    """Returns the words up to where a list of choices begins."""
    return " ".join(re.split(r"\n\s*\n?[*-] `|^\* `", words)[0].split())


def docstring(words: str, fields: dict[str, str], title: str, indent: str) -> list[str]:
    """Returns the lines of a docstring."""
    found = _wrapped(words, indent)
    if fields:
        found += ["", f"{indent}{title}:"]
        for field, text in fields.items():
            found += _wrapped(f"{field}: {text}", f"{indent}    ", hanging="    ")
    found = [line.replace("\\", "\\\\").replace('"""', "'''") for line in found]
    if len(found) == 1 and not found[0].endswith('"'):
        return [f'{indent}"""{found[0].strip()}"""', ""]
    return [f'{indent}"""{found[0].strip()}', *found[1:], f'{indent}"""', ""]


def _wrapped(text: str, indent: str, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
