"""JSON columns as cells: every value comes back, no cell is JSON, and what cannot be read says what would do."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cells import csv_text, original
from scheduler.operations.configure.spread import UnreadableCellError, gather, spread

TRICKY = [
    "",
    " ",
    ";",
    "a;b",
    "true",
    "null",
    "1",
    "1e3",
    "1e999",
    "NaN",
    "-5",
    "[1]",
    "{}",
    '"',
    '"a"',
    "'=1",
    "=1",
    "(no fields)",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.sampled_from(TRICKY)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
KEYS = st.text('ab."; 01²', max_size=4) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)


def through_csv(value: object, empty: object) -> tuple[Any, list[str]]:
    """The value after an export and an import, and the cells between."""
    columns = dict(spread("f", value, empty))
    text = csv_text(list(columns), [list(columns.values())])
    header, row = csv.reader(io.StringIO(text))
    return gather("f", {name: original(cell) for name, cell in zip(header, row, strict=True)}, empty), row


@given(VALUES, st.sampled_from([{}, []]))
def test_every_value_comes_back_and_no_cell_is_json(value: Any, empty: Any) -> None:
    found, cells = through_csv(value, empty)
    assert json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)
    for cell in cells:
        try:
            read = json.loads(cell)
        except (ValueError, RecursionError):
            continue
        assert not isinstance(read, dict | list), cell


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ({"margin": 0.1, "tuning": {"dynamo": {"wave": 4}}}, {"f.margin": 0.1, "f.tuning.dynamo.wave": 4}),
        (["--kv-cache-dtype", "fp8"], {"f": "--kv-cache-dtype; fp8"}),
        ([{"from": "17:00", "days": ["sat"]}], {"f.0.from": "17:00", "f.0.days": "sat;"}),
        ({"wind": True, "zone": "DE", "code": "5"}, {"f.wind": "true", "f.zone": "DE", "f.code": '"5"'}),
        ({"a.b": {"7": None}, "c": {}}, {'f."a.b"."7"': "null", "f.c": "(no fields)"}),
        ({}, {"f": None}),
    ],
)
def test_columns_are_those_that_are_documented(value: Any, columns: dict[str, Any]) -> None:
    assert dict(spread("f", value, {})) == columns


def test_cells_that_people_write_are_read() -> None:
    assert gather("f", {"f.x": ' 1;"a;b" ; c ;', "f.y": "", "f.z": "two\nlines"}, {}) == {
        **{"x": [1, "a;b", "c"], "z": "two\nlines"},
    }
    assert gather("f", {"f": "", "f.x": ""}, []) == []


def test_json_of_older_exports_is_read() -> None:
    assert gather("f", {"f": '{"margin": 0.1, "a": [1, {"b": null}]}'}, {}) == {"margin": 0.1, "a": [1, {"b": None}]}
    assert gather("f", {"f": '["--kv-cache-dtype", "fp8"]'}, []) == ["--kv-cache-dtype", "fp8"]
    assert gather("f", {"f": "{}"}, {}) == {}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"f": "{x}"}, "f: '{x}' is no JSON"),
        ({"f.x": "[1]"}, "f.x: '[1]' is JSON: write each part in a column"),
        ({"f": "a", "f.x": "b"}, "f: leave it empty, or its parts"),
        ({"f.x": "1", "f.x.y": "2"}, "f.x.y: another column has a value"),
        ({"f.x.y": "2", "f.x": "1"}, "f.x: other columns have parts of it"),
        ({"f.1.a": "1"}, "f: items of a list are numbered from 0"),
        ({"f.0": "1", "f.00": "2"}, "f: items of a list are numbered from 0"),
        ({"f.0": "1", "f.a": "2"}, "f: items of a list are numbered from 0"),
        ({"f.x": '"a'}, "within quotes write"),
        ({"f.x": '"a" b'}, "items have semicolons between them"),
        ({"f.": "1"}, "write name.part"),
        ({'f."a"b': "1"}, "write name.part"),
        ({'f."a': "1"}, "within quotes write"),
    ],
)
def test_what_no_export_writes_is_refused_with_the_remedy(cells: dict[str, str], words: str) -> None:
    with pytest.raises(UnreadableCellError) as caught:
        gather("f", cells, {})
    assert words in str(caught.value)
