"""JSON columns as cells of a table: an object has a column for each of its parts, and a list of values is one line.

    {"margin": 0.1, "tuning": {"dynamo": {"wave": 4}}}  ->  knobs.margin 0.1, knobs.tuning.dynamo.wave 4
    ["--kv-cache-dtype", "fp8"]                         ->  --kv-cache-dtype; fp8
    [{"from": "17:00", "days": ["sat", "sun"]}]         ->  windows.0.from 17:00, windows.0.days sat; sun

No cell is an object or a list of JSON. A list has a semicolon, also one of a single item (`fp8;`) and an empty one
(`;`). Numbers, true, false and null stand as JSON has them; a text that looks like one of these, like a list or like
JSON stands in quotes. An object without fields within another one is `(no fields)`. Every value comes back as it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

NO_FIELDS = "(no fields)"
_DECODER = json.JSONDecoder(strict=False)  # also texts with line breaks, as people write them into cells


class UnreadableCellError(ValueError):
    """A column or a cell that no export writes; the text says what would do."""


class _Parts(dict[str, Any]):
    """The parts below a part of a column's name, in distinction from a value that is an object."""


def spread(name: str, value: object, empty: object) -> Iterator[tuple[str, object]]:
    """Yields a field's columns with their cells; an empty cell where the whole value is `empty`, {} or []."""
    if value == empty:
        yield name, None
    else:
        yield from _columns(name, value)


def _columns(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _columns(f"{path}.{_part_of(str(key))}", inner)
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for place, inner in enumerate(value):
            yield from _columns(f"{path}.{place}", inner)
    else:
        yield path, _cell(value)


def gather(name: str, cells: Mapping[str, str], empty: object) -> Any:
    """Returns the value that a row has in the columns `name` and `name.part`. Empty cells are parts that it lacks.

    Raises:
        UnreadableCellError: Columns that contradict each other, or a cell that no export writes.
    """
    filled = {column: cell.strip() for column, cell in cells.items() if cell.strip()}
    if not filled:
        return empty
    if name in filled:
        if len(filled) > 1:
            raise UnreadableCellError(f"{name}: leave it empty, or its parts ({name}. and more)")
        return _older(name, filled[name])
    root = _Parts()
    for column, cell in filled.items():
        _put(root, column, _parts(column, len(name)), _value(column, cell))
    return _joined(name, root)


def _cell(value: object) -> object:
    """Returns a value without columns of its own as a cell. Numbers stay numbers: they get no apostrophe."""
    if isinstance(value, Mapping):
        return NO_FIELDS
    if isinstance(value, list):
        return "; ".join(str(_token(item)) for item in value) + (";" if len(value) < 2 else "")
    return _token(value)


def _token(value: object) -> object:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return value
    text = str(value)
    return text if _is_plain(text) else json.dumps(text, ensure_ascii=False)


def _is_plain(text: str) -> bool:
    """Says whether a text comes back as itself without quotes. The apostrophe is that of cells (core.cells)."""
    simple = text.isprintable() and text == text.strip() and text not in ("", NO_FIELDS) and ";" not in text
    return simple and text[0] not in "\"'[{" and _scalar(text) == text


def _value(column: str, cell: str) -> Any:
    """Reads a cell that is a value, or a list of them."""
    if cell == NO_FIELDS:
        return {}
    if cell[0] in "[{":
        raise UnreadableCellError(f"{column}: '{cell[:40]}' is JSON: write each part in a column, or import YAML")
    items: list[Any] = []
    at, is_list = 0, False
    while at < len(cell):
        if cell[at] == '"':
            item, at = _quoted(column, cell, at)
            items.append(item)
            rest = cell[at:].lstrip()
            if rest and rest[0] != ";":
                raise UnreadableCellError(f"{column}: '{cell[:40]}': items have semicolons between them")
        word, semicolon, rest = cell[at:].partition(";")
        if word.strip():
            items.append(_scalar(word.strip()))
        is_list = is_list or bool(semicolon)
        at = len(cell) - len(rest.lstrip())
    return items if is_list else items[0]


def _quoted(where: str, text: str, at: int) -> tuple[str, int]:
    try:
        found, end = _DECODER.raw_decode(text, at)
    except ValueError as error:
        raise UnreadableCellError(f"{where}: '{text[:40]}': within quotes write \\\" and \\\\ ({error})") from None
    return str(found), end


def _scalar(text: str) -> object:
    """Reads a number, true, false or null of JSON; everything else is a text."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(found, str | Mapping | list) or (isinstance(found, float) and not math.isfinite(found)):
        return text
    return found


def _older(name: str, cell: str) -> Any:
    """Reads a whole value in one cell: a line, or JSON as exports had it until 0.1."""
    if cell[0] not in "[{":
        return _value(name, cell)
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        words = f"{name}: '{cell[:40]}' is no JSON ({error}): write each part in a column, or import YAML"
        raise UnreadableCellError(words) from None


def _part_of(key: str) -> str:
    """Returns a key as a part of a column's name; digits alone are places in lists, so such a key is in quotes."""
    plain = key.isprintable() and key == key.strip() and key and not _is_place(key) and not {'"', "."} & set(key)
    return key if plain else json.dumps(key, ensure_ascii=False)


def _is_place(part: str) -> bool:
    return part.isascii() and part.isdigit()


def _parts(column: str, at: int) -> list[str]:
    """Returns the parts of a column's name after the field's, those in quotes with them."""
    found = []
    while at < len(column):
        at += 1  # the dot
        if column[at : at + 1] == '"':
            _, end = _quoted(column, column, at)
        else:
            end = column.find(".", at) if "." in column[at:] else len(column)
        if end == at or column[end : end + 1] not in ("", "."):
            raise UnreadableCellError(f'{column}: write name.part, or name."part" for a part with dots or digits alone')
        found.append(column[at:end])
        at = end
    return found


def _put(root: _Parts, column: str, parts: list[str], value: object) -> None:
    node: Any = root
    for part in parts[:-1]:
        node = node.setdefault(part, _Parts())
        if not isinstance(node, _Parts):
            raise UnreadableCellError(f"{column}: another column has a value for what this is a part of")
    if parts[-1] in node:
        raise UnreadableCellError(f"{column}: other columns have parts of it")
    node[parts[-1]] = value


def _joined(name: str, node: Any) -> Any:
    """Returns the object, or the list where all parts are places."""
    if not isinstance(node, _Parts):
        return node
    places = [part for part in node if _is_place(part)]
    if not places:
        keys = {part: str(json.loads(part, strict=False)) if part.startswith('"') else part for part in node}
        return {key: _joined(f"{name}.{part}", node[part]) for part, key in keys.items()}
    numbers = [str(number) for number in range(len(node))]
    if set(places) != set(numbers):
        raise UnreadableCellError(f"{name}: items of a list are numbered from 0 without gaps, and have no names beside")
    return [_joined(f"{name}.{number}", node[number]) for number in numbers]
