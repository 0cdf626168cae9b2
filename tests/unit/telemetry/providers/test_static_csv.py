from datetime import UTC, datetime
from itertools import pairwise

import pytest

from core.ports import PermanentError
from telemetry.providers import static_csv
from telemetry.providers.provider_http import Outside
from telemetry.providers.static_csv import StaticCsvProvider

HEAD = "zone,start_utc,end_utc,signal,value,unit,factor,source"
START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


@pytest.fixture
def write(tmp_path):
    def make(*rows, head=HEAD):
        path = tmp_path / "grid.csv"
        path.write_text("\n".join([head, *rows]) + "\n")
        return path

    return make


def row(start="00:00", end="00:05", zone="DE", signal="average", value="322", unit="gCO2e/kWh", factor="lifecycle"):
    return f"{zone},2026-01-01T{start}Z,2026-01-01T{end}Z,{signal},{value},{unit},{factor},me"


def provider(path, **config):
    return StaticCsvProvider({"file": path.name, "zone": "DE", **config}, Outside(feed_files=path.parent))


@pytest.mark.parametrize(
    ("unit", "raw", "expected"),
    [("gCO2e/kWh", "322", 322.0), ("kgCO2e/MWh", "322", 322.0), ("lb/MWh", "1000", 453.59237)],
)
def test_value_is_grams_per_kwh_when_given_in_any_unit(write, unit, raw, expected):
    (point,) = provider(write(row(value=raw, unit=unit))).actuals("DE", START, START + 60)
    assert point.value_g_per_kwh == pytest.approx(expected)
    assert (point.raw_value, point.raw_unit) == (float(raw), unit)
    assert (point.start_s, point.end_s, point.issued_at_s) == (START, START + 300, START)
    assert not point.forecast
    assert not point.estimated


def test_null_is_not_zero_when_a_value_is_empty(write):
    points = provider(write(row(value=""), row("00:05", "00:10", value="0"))).actuals("DE", START, START + 600)
    assert [point.value_g_per_kwh for point in points] == [None, 0.0]
    assert points[0].raw_value is None


def test_negative_is_legal_when_the_signal_is_marginal(write):
    (point,) = provider(write(row(signal="marginal", value="-614.5", unit="lb/MWh")), signal="marginal").actuals(
        "DE", START, START + 1
    )
    assert point.value_g_per_kwh == pytest.approx(-278.73, abs=0.01)
    assert point.signal == "marginal"


def test_only_its_zone_and_signal_count_when_a_file_has_several(write):
    file = write(row(zone="FR", value="50"), row(value="300"), row(signal="marginal", value="700"))
    assert [p.value_g_per_kwh for p in provider(file).actuals("DE", START, START + 300)] == [300.0]


BAD_ROWS = [
    (row(value="lots"), "line 2, value: 'lots' is not a number"),
    (row(value="nan"), "line 2, value: 'nan' is not a number"),
    (row(value="inf"), "line 2, value: 'inf' is not a number"),
    (row(value="1" * 400), "line 2, value: '1+' is not a number"),
    (row(value="1e300"), "line 2, value: '1e300' is more than can be: at most 20000 g/kWh"),
    (row(value="-1"), "line 2, value: an average intensity cannot be negative"),
    (row(unit="g/MJ"), "line 2, unit: 'g/MJ' is unknown; write gCO2e/kWh, kgCO2e/MWh, lb/MWh"),
    (row(factor="net"), "line 2, factor: 'net' is unknown"),
    (row(end="00:00"), "line 2, end_utc: must be after start_utc"),
    ("DE,yesterday,2026-01-01T00:05Z,average,1,gCO2e/kWh,direct,me", "line 2, start_utc: 'yesterday' is not a time"),
    ("DE,2026-01-01T00:00,2026-01-01T00:05Z,average,1,gCO2e/kWh,direct,me", "line 2, start_utc: .* has no zone"),
    ("DE,0001-01-01T00:00+23:59,2026-01-01T00:05Z,average,1,gCO2e/kWh,direct,me", "line 2, start_utc: .* before 2000"),
    ("DE,2026-01-01T00:00Z,9999-12-31T23:59-23:59,average,1,gCO2e/kWh,direct,me", "line 2, end_utc: .* after 2100"),
    ("DE,2026-01-01T00:00Z,2026-01-01T00:05Z,average", "line 2, value: is missing"),
]


@pytest.mark.parametrize(("bad", "words"), BAD_ROWS)
def test_error_names_file_line_and_field_when_a_row_is_bad(write, bad, words):
    with pytest.raises(PermanentError, match=rf"grid\.csv {words}"):
        provider(write(bad))


def test_error_names_the_line_when_intervals_overlap(write):
    with pytest.raises(PermanentError, match="line 3, start_utc: overlaps"):
        provider(write(row(), row("00:04", "00:09")))


def test_error_names_the_column_when_the_head_lacks_one(write):
    with pytest.raises(PermanentError, match="line 1, unit: column is missing"):
        provider(write(row(), head=HEAD.replace("unit,", "")))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"file": "/nowhere.csv"}, "'/nowhere.csv' is no name of a feed's file: put a CSV file"),
        ({"file": "nowhere.csv"}, "nowhere.csv: there is no such file for feeds: put a CSV file"),
        ({"file": ""}, "file is missing"),
        ({"repeat": "week"}, "repeat must be 'day'"),
        ({"repeat": "day", "speedup": 0}, "speedup must be above 0 and at most 1000"),
        ({"repeat": "day", "speedup": "fast"}, "speedup must be above 0 and at most 1000"),
        ({"repeat": "day", "speedup": 1e9}, "speedup must be above 0 and at most 1000"),
        ({"speedup": 30}, "speedup needs repeat: day"),
        ({"zone": "XX"}, "no average row of zone 'XX'"),
    ],
)
def test_error_says_what_is_wrong_when_the_configuration_is_bad(write, config, words):
    with pytest.raises(PermanentError, match=words):
        provider(write(row()), **config)


def test_forecast_is_what_lies_ahead_in_the_file_when_asked(write):
    found = provider(write(row(value="1"), row("00:05", "00:10", value="2"), row("00:10", "00:15", value="3")))
    points = found.forecast("DE", START + 100, 300)
    assert [(p.start_s - START, p.value_g_per_kwh) for p in points] == [(300, 2.0)]
    assert all(p.forecast and p.issued_at_s == START for p in points)


def test_day_is_played_over_and_over_when_it_repeats(write):
    found = provider(write(row("00:00", "12:00", value="1"), row("12:00", "23:59", value="2")), repeat="day")
    later = START + 400 * 86_400
    points = found.actuals("DE", later, later + 86_400)
    assert [(p.start_s - later, p.value_g_per_kwh) for p in points[:2]] == [(0, 1.0), (43_200, 2.0)]


def test_day_passes_thirty_times_as_fast_when_sped_up():
    found = StaticCsvProvider(
        {"file": "pools.demo:carbon_day.csv", "zone": "US-PJM-DOM", "repeat": "day", "speedup": 30}, Outside()
    )
    start = 1_767_225_600.0
    points = found.actuals("US-PJM-DOM", start, start + 2_880 - 1)
    assert len(points) == 288
    assert all(p.end_s - p.start_s == pytest.approx(10.0) for p in points)
    assert all(a.end_s == b.start_s for a, b in pairwise(points))
    again = found.actuals("US-PJM-DOM", start + 2_880, start + 2_880 + 5)
    assert again[0].value_g_per_kwh == points[0].value_g_per_kwh


def test_repeat_is_refused_when_the_file_has_more_than_a_day(write):
    file = write(row("00:00", "23:00"), "DE,2026-01-02T00:00Z,2026-01-02T01:00Z,average,1,gCO2e/kWh,direct,me")
    with pytest.raises(PermanentError, match="rows of one UTC day"):
        provider(file, repeat="day")


def test_answer_is_refused_when_it_would_have_more_points_than_a_turn_can_store(write, monkeypatch):
    monkeypatch.setattr(static_csv, "MOST_POINTS", 3)
    played = provider(write(row()), repeat="day", speedup=1_000)
    assert len(played.actuals("DE", START, START + 200)) == 3
    with pytest.raises(PermanentError, match="more than 3 points at once"):
        played.forecast("DE", START, 1e12)


def test_file_is_refused_when_it_has_too_many_rows(write, monkeypatch):
    monkeypatch.setattr(static_csv, "MOST_ROWS", 1)
    with pytest.raises(PermanentError, match="line 3, file: has more than 1 rows"):
        provider(write(row(), row("00:05", "00:10")))
