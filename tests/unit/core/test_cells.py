"""Cells of tables: no text is taken for a formula, every text comes back, numbers stay numbers."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cells import cell_text, csv_line, csv_text, flat, harmless, is_formula, original

NASTY = (
    *('=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "\ufeff=1"),
    *("\uff1d1", "\uff0b1", "\uff0d1", "\uff201", "\u200b=1", "'=1", "''\uff1d1", "\x00=1", "-", "\ttext"),
)
texts = st.one_of(st.sampled_from(NASTY), st.text("'=+-@ \t\r\n\u200b\uff1da,\";", max_size=8), st.text(max_size=20))


@pytest.mark.parametrize("text", NASTY)
def test_apostrophe_stands_before_what_a_spreadsheet_would_run(text):
    assert harmless(text) == f"'{text}"
    assert original(harmless(text)) == text


@pytest.mark.parametrize("text", ["acme", "a=b", "'quoted'", "2026-10-05", "", "東京", "{}", "a-b", "0=1"])
def test_text_stays_as_it_is_when_no_spreadsheet_would_run_it(text):
    assert harmless(text) == text == original(text)


@given(texts)
def test_every_text_comes_back(text):
    assert original(harmless(text)) == text
    assert not harmless(text).lstrip().startswith(("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"))


@given(st.lists(texts, min_size=2, max_size=4))
def test_rows_come_back_when_a_program_reads_them(row):
    found = list(csv.reader(io.StringIO(csv_text(["a"] * len(row), [row, row]), newline="")))
    assert [[original(cell) for cell in line] for line in found[1:]] == [row, row]


def test_numbers_are_never_altered():
    at = datetime(2026, 10, 5, tzinfo=UTC)
    assert csv_line([-5, -0.25, Decimal("-0.0000000010"), None, True, at, "-5"]) == (
        "-5,-0.25,-0.0000000010,,true,2026-10-05T00:00:00+00:00,'-5"
    )


@pytest.mark.parametrize("value", [{}, [], object(), b"x"])
def test_value_is_refused_when_it_is_no_single_one(value):
    with pytest.raises(TypeError, match="a cell cannot hold"):
        cell_text(value)


def test_nested_value_has_a_column_for_each_part():
    value = {"windows": [{"from": "07:00", "price": 0.3}, {"from": "19:00"}], "empty": {}}
    assert dict(flat("tariff", value)) == {
        "tariff.windows.0.from": "07:00",
        "tariff.windows.0.price": 0.3,
        "tariff.windows.1.from": "19:00",
    }
    assert dict(flat("rank", 3)) == {"rank": 3}


def test_sign_alone_is_a_formula():
    assert is_formula("=")
    assert not is_formula("'")
