from __future__ import annotations

import csv
import io

import pytest
from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st

from frontend import reader
from frontend.charts import chart_csv
from telemetry.selectors.frames import POINTS, Window
from telemetry.selectors.pool_table import pool_state
from telemetry.selectors.service_level import _rolled

from . import frames


@given(st.floats(min_value=60, max_value=1e6), st.floats(min_value=1e6, max_value=2e9))
def test_window_covers_its_range_in_aligned_buckets(range_s, now_s):
    window = Window.last(range_s, now_s)
    assert window.start_s % window.bucket_s == 0
    assert window.start_s <= now_s - range_s
    assert window.ends_s[-1] >= now_s > window.starts_s[-1] or window.starts_s[-1] == now_s
    assert len(window.starts_s) <= POINTS + 2


@given(st.dictionaries(st.integers(-3, 9), st.integers(0, 50)), st.integers(1, 4))
def test_rolling_sums_equal_plain_sums(counts, roll):
    counts = {i: n for i, n in counts.items() if i > -roll}
    assert _rolled(counts, roll, 10) == [sum(counts.get(j, 0) for j in range(i - roll + 1, i + 1)) for i in range(10)]


@pytest.mark.parametrize(
    ("wanted", "states", "state"),
    [
        (0, {}, "off"),
        (1, {}, "waiting"),
        (1, {"pending": 1}, "starting"),
        (1, {"ready": 1}, "serving"),
        (2, {"ready": 1, "starting": 1}, "partial"),
        (0, {"draining": 1}, "draining"),
        (2, {"ready": 1, "failed": 1}, "failed"),
    ],
)
def test_pool_state(wanted, states, state):
    from collections import Counter

    assert pool_state(wanted, Counter(states)) == state


@pytest.mark.parametrize(("query", "key"), [("", "15m"), ("range=6h", "6h"), ("range=1y", "15m"), ("range=%00", "15m")])
def test_range_falls_back_to_the_default_when_it_is_not_one(query, key):
    assert reader.chosen(QueryDict(query), 5_000.0).key == key


def test_refresh_is_slower_when_buckets_are_longer():
    refresh = [reader.refresh_s(reader.chosen(QueryDict(f"range={key}"), 1e6).window) for key in reader.RANGES]
    assert refresh == sorted(refresh)
    assert refresh[0] == reader.FASTEST_S
    assert refresh[-1] <= reader.SLOWEST_S


def test_address_keeps_its_moments_when_another_zone_is_chosen():
    found = reader.in_zone("/sites/a/?from=2026-01-05T12:00:00&to=2026-01-05T13:00:00&zone=UTC", "Europe/Berlin")
    assert dict(QueryDict(found.partition("?")[2]).items()) == {
        "from": "2026-01-05T13:00:00", "to": "2026-01-05T14:00:00", "zone": "Europe/Berlin"
    }  # fmt: skip
    assert reader.in_zone("/sites/?sort=name", "Europe/Berlin") == "/sites/?sort=name"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_units_in_its_header_and_empty_cells_for_unknown():
    table = rows(chart_csv.power(frames.power()))
    assert table[0]["start_utc"] == "1970-01-01T00:16:40Z"
    assert table[0]["east_in_use_w"] == "1000.0"
    assert table[2]["east_in_use_w"] == ""
    carbon = rows(chart_csv.carbon(frames.carbon()))
    assert [r["east_g_per_kwh"] for r in carbon] == ["400.0", "", "", "410.0"]
    assert rows(chart_csv.slo(frames.slo()))[1]["chat_ttft_share_within_2_s"] == "0.97"
    assert rows(chart_csv.jain(frames.jain()))[3]["class_SS_jain"] == "0.9"
