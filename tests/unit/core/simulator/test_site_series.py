"""Sites of a scenario: their series over time, and what is refused."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulator.fields import ScenarioError, Section
from core.simulator.site_series import DEFAULT_START, Series, Site, bin_s, read_site, read_start

HOUR = 3600.0
QUARTERS = """start,value
2026-01-01T00:30:00+00:00,100
2026-01-01T00:45Z,200
2026-01-01T02:00:00+01:00,-5.5
2026-01-01T01:15Z,
2026-01-01T02:00Z,400
"""


def site(fields: dict[str, Any], start: datetime = DEFAULT_START, folder: Path = Path()) -> Site:
    return read_site(Section("sites.east", fields), folder, start)


def test_site_is_unknown_when_nothing_is_said() -> None:
    found = site({})
    assert found == Site("east")
    assert found.pue == 1.0
    assert found.intensity_g_per_kwh(0.0) is None
    assert found.usd_per_kwh is None
    assert found.intensities(0.0, 2 * HOUR, HOUR) == (None, None)
    assert bin_s([found]) == bin_s([]) == HOUR


def test_values_repeat_from_the_start_when_a_list_has_no_time_zone() -> None:
    found = site({"carbon_g_per_kwh": [1, 2, 3], "usd_per_kwh": 0.1}, datetime(2026, 1, 1, 7, 30, tzinfo=UTC))
    assert [found.intensity_g_per_kwh(h * HOUR) for h in (0, 0.99, 1, 2.5, 3, 7)] == [1, 1, 2, 3, 1, 2]
    assert found.usd_per_kwh.at(1e9) == 0.1
    assert bin_s([found]) == HOUR


def test_values_go_by_the_local_hour_when_a_list_has_a_time_zone() -> None:
    start = datetime(2026, 1, 1, 7, 30, tzinfo=UTC)
    found = site({"time_zone": "Asia/Kolkata", "carbon_g_per_kwh": list(range(24))}, start)
    assert found.intensity_g_per_kwh(0.0) == 13  # 07:30 in UTC is 13:00 in India
    assert [found.intensity_g_per_kwh(h * HOUR) for h in (0.99, 1, 11, 24)] == [13, 14, 0, 13]
    assert bin_s([found]) == HOUR
    west = site({"time_zone": "America/New_York", "carbon_g_per_kwh": list(range(48))}, start)
    assert west.intensity_g_per_kwh(0.0) == 2
    assert west.intensity_g_per_kwh(24 * HOUR) == 26  # the second local day of the list
    assert west.intensity_g_per_kwh(48 * HOUR) == 2
    assert bin_s([west]) == bin_s([found, west]) == 1800.0


@pytest.mark.parametrize(
    ("start", "hours"),
    [
        (datetime(2026, 3, 28, 23, tzinfo=UTC), [0, 1, 3, 4]),  # put forward from 2 to 3
        (datetime(2026, 10, 24, 22, tzinfo=UTC), [0, 1, 2, 2, 3]),  # put back from 3 to 2
    ],
)
def test_local_hours_follow_the_wall_clock_when_it_is_changed(start: datetime, hours: list[int]) -> None:
    found = site({"time_zone": "Europe/Berlin", "carbon_g_per_kwh": list(range(24))}, start)
    assert [found.intensity_g_per_kwh(h * HOUR) for h in range(len(hours))] == hours
    assert list(found.intensities(0.0, len(hours) * HOUR, HOUR)) == hours


@settings(deadline=None)
@given(
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC"]),
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)),
    st.integers(0, 40_000),
)
def test_local_hours_are_those_of_zoneinfo_and_constant_in_bins(zone: str, at: datetime, later_min: int) -> None:
    start = at.replace(second=0, microsecond=0, tzinfo=UTC)
    found = site({"time_zone": zone, "carbon_g_per_kwh": list(range(24))}, start)
    width_s = bin_s([found])
    assert HOUR % width_s == 0
    first_s = later_min * 60 // width_s * width_s
    values = {found.intensity_g_per_kwh(first_s + share * width_s) for share in (0.0, 0.5, 0.999)}
    assert values == {(start + timedelta(seconds=first_s)).astimezone(ZoneInfo(zone)).hour}


def test_hours_of_null_are_missing_and_not_zero() -> None:
    found = site({"carbon_g_per_kwh": [120, None, 0]})
    assert [found.intensity_g_per_kwh(3600.0 * hour) for hour in range(4)] == [120.0, None, 0.0, 120.0]
    assert found.intensities(1800.0, 9000.0, 3600.0) == (None, None)
    assert site({"carbon_g_per_kwh": [None]}).intensity_g_per_kwh(0.0) is None


def test_csv_goes_by_its_times_and_gaps_are_missing(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(QUARTERS)
    found = site({"carbon_g_per_kwh": {"csv": "c.csv"}}, folder=tmp_path)
    expected = {0: None, 30: 100, 44: 100, 45: 200, 60: -5.5, 75: None, 90: None, 120: 400, 134: 400, 135: None}
    assert {minute: found.intensity_g_per_kwh(minute * 60.0) for minute in expected} == expected
    assert bin_s([found]) == 900.0
    assert found.intensities(1800.0, 5400.0, 1800.0) == (150.0, None)
    assert found.intensities(2400.0, 3600.0, 1200.0) == (pytest.approx((5 * 100 + 15 * 200) / 20),)


def test_bins_divide_all_steps_when_a_run_starts_between_them(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(QUARTERS)
    start = datetime(2025, 12, 31, 23, 50, tzinfo=UTC)
    found = site({"usd_per_kwh": {"csv": str(tmp_path / "c.csv")}}, start)
    assert found.usd_per_kwh.at(40 * 60.0) == 100
    assert bin_s([found]) == 300.0


@settings(deadline=None)
@given(
    st.lists(st.floats(-100, 1000), min_size=1, max_size=9),
    st.sampled_from([5, 15, 60]),
    st.integers(-150, 150),
    st.booleans(),
    st.integers(0, 200),
    st.integers(1, 300),
    st.integers(1, 100),
)
def test_means_are_those_of_each_minute(
    values: list[float], step_min: int, first_min: int, repeats: bool, from_min: int, span_min: int, width_min: int
) -> None:
    series = Series(tuple(values), step_min * 60, first_min * 60, repeats)
    found = series.means(from_min * 60.0, (from_min + span_min) * 60.0, width_min * 60.0)
    minutes = series.each(60.0 * (np.arange(from_min, from_min + span_min) + 0.5))
    expected = [minutes[k : k + width_min].mean() for k in range(0, span_min, width_min)]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


def test_steps_are_refused_when_they_have_no_length() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Site("east").intensities(0.0, 1.0, 0.0)


def test_site_survives_when_sent_to_another_process() -> None:
    found = site({"time_zone": "Europe/Berlin", "carbon_g_per_kwh": [1, 2], "usd_per_gpu_hour": 2})
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pue": 0.9}, "sites.east.pue: must be at least 1"),
        ({"pue": "low"}, "sites.east.pue: must be a number"),
        ({"time_zone": "Mars/Olympus"}, "sites.east.time_zone: unknown 'Mars/Olympus'"),
        ({"time_zone": "../zone"}, "sites.east.time_zone: unknown"),
        ({"time_zone": 7.5}, "sites.east.time_zone: unknown"),
        ({"carbon_g_per_kwh": "low"}, "sites.east.carbon_g_per_kwh: must be a number or a list"),
        ({"usd_per_kwh": [0.1, "none"]}, "sites.east.usd_per_kwh: must be a number or a list"),
        ({"usd_per_kwh": {}}, "sites.east.usd_per_kwh.csv: missing"),
        ({"usd_per_kwh": {"csv": "a.csv", "unit": "EUR"}}, "sites.east.usd_per_kwh.unit: unknown field"),
        ({"usd_per_kwh": {"csv": "nowhere.csv"}}, "nowhere.csv: cannot be read"),
        ({"usd_per_gpu_hour": -1}, "sites.east.usd_per_gpu_hour: must be at least 0"),
        ({"carbon": 3}, "sites.east.carbon: unknown field; known here: carbon_g_per_kwh"),
    ],
)
def test_site_is_refused_when_a_field_is_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        site(fields)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 'start' is missing"),
        ("start,price\n", "column 'value' is missing"),
        ("start,value\n2026-01-01T00:00Z,1\n", "needs at least two rows"),
        ("start,value\nyesterday,1\n", "line 2, start: 'yesterday' is not a time"),
        ("start,value\n2026-01-01T00:00,1\n", "line 2, start: '2026-01-01T00:00' is not a time with an offset"),
        ("start,value\n2026-01-01T00:00:30.5Z,1\n", "'2026-01-01T00:00:30.5Z' is not on a whole second"),
        ("start,value\n2026-01-01T00:00Z,high\n", "line 2, value: 'high' is not a number"),
        ("start,value\n2026-01-01T00:00Z,inf\n", "line 2, value: 'inf' is not a number"),
        ("start,value\n2026-01-01T01:00Z,1\n2026-01-01T01:00Z,1\n", "line 3: start must come after"),
        ("start,value\n2026-01-01T01:00Z,1\n2026-01-01T03:00Z,1\n", "steps must be of a second to an hour, not 7200 s"),
        (
            "start,value\n2026-01-01T01:00Z,1\n2026-01-01T01:15Z,1\n2026-01-01T01:35Z,1\n",
            "2026-01-01T01:35:00+00:00 is off the grid of 900 s",
        ),
    ],
)
def test_csv_is_refused_when_it_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(ScenarioError) as refused:
        site({"carbon_g_per_kwh": {"csv": "c.csv"}}, folder=tmp_path)
    assert str(refused.value).startswith("sites.east.carbon_g_per_kwh: c.csv")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start: 2026-03-01T06:00:00+01:00", datetime(2026, 3, 1, 5, tzinfo=UTC)),
        ("start: '2026-03-01T06:00Z'", datetime(2026, 3, 1, 6, tzinfo=UTC)),
        ("name: x", DEFAULT_START),
    ],
)
def test_start_is_read_when_it_has_an_offset(text: str, expected: datetime) -> None:
    assert read_start(Section("", yaml.safe_load(text))) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: 2026-03-01", "start: '2026-03-01' is not a time with an offset"),
        ("start: 2026-03-01T06:00:00", "is not a time with an offset"),
        ("start: noon", "is not a time with an offset"),
        ("start: 2026-03-01T06:00:30.5+00:00", "must be on a whole second"),
    ],
)
def test_start_is_refused_when_it_is_not_a_moment(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_start(Section("", yaml.safe_load(text)))
    assert message in str(refused.value)
