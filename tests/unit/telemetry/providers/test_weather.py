"""Weather from Open-Meteo's answers, in the form that its documentation shows, and from files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from core.ports import CoolDownError, PermanentError, RetryableError
from telemetry.weather.open_meteo import OpenMeteoProvider
from telemetry.weather.weather_csv import WeatherCsvProvider
from telemetry.weather.weather_port import Place
from tests.fakes.web import Answer

ASHBURN = Place(39.04, -77.49)
NOON = 490_908  # 2026-01-01 12:00, in hours since the epoch
UNITS = {
    "time": "iso8601",
    "wind_speed_10m": "m/s",
    "temperature_2m": "°C",
    "dew_point_2m": "°C",
    "shortwave_radiation": "W/m²",
    "precipitation": "mm",
}
HOURLY: dict[str, list[Any]] = {
    "time": ["2026-01-01T12:00", "2026-01-01T13:00", "2026-01-01T14:00", "2026-01-01T15:00"],
    "wind_speed_10m": [3.1, 4.2, None, None],
    "temperature_2m": [5.0, -1.5, None, None],
    "dew_point_2m": [0.0, -3.0, None, None],
    "shortwave_radiation": [100.0, 250.0, 300.0, None],
    "precipitation": [0.4, 0.0, 1.2, None],
}


def answer(hourly=(), units=(), **more):
    """Returns an answer of /v1/forecast or /v1/archive."""
    document = {
        "latitude": 39.041965,
        "longitude": -77.473144,
        "generationtime_ms": 0.09,
        "utc_offset_seconds": 0,
        "timezone": "GMT",
        "timezone_abbreviation": "GMT",
        "elevation": 94.0,
        "hourly_units": {**UNITS, **dict(units)},
        "hourly": {**HOURLY, **dict(hourly)},
        **more,
    }
    return json.dumps(document)


@pytest.fixture
def open_meteo(web, outside):
    def made(place=ASHBURN, **config):
        return OpenMeteoProvider({"base_url": web.url, **config}, place, outside)

    return made


def test_open_meteo_gives_kelvins_and_means_of_the_hour_that_they_end(web, open_meteo):
    web.routes["/v1/forecast"] = Answer(answer())
    hours = open_meteo().outlook(NOON, 9)
    assert hours == {
        NOON: (3.1, 278.15, 273.15, 250.0, 0.0),
        NOON + 1: (4.2, 271.65, 270.15, 300.0, 1.2),
    }
    (asked,) = web.asked
    assert asked.query == {
        "latitude": ["39.0400"],
        "longitude": ["-77.4900"],
        "hourly": ["wind_speed_10m,temperature_2m,dew_point_2m,shortwave_radiation,precipitation"],
        "wind_speed_unit": ["ms"],
        "timezone": ["UTC"],
        "past_days": ["9"],
        "forecast_days": ["7"],
    }


def test_open_meteo_reads_the_past_from_its_archive_when_asked_for_it(web, open_meteo):
    web.routes["/v1/archive"] = Answer(answer())
    assert list(open_meteo().past(NOON + 1, NOON + 2)) == [NOON + 1]
    assert [web.asked[0].query[name] for name in ("start_date", "end_date")] == [["2026-01-01"], ["2026-01-01"]]


def test_open_meteo_sends_a_key_when_the_plan_is_paid_and_no_error_shows_it(web, open_meteo, outside):
    web.routes["/v1/forecast"] = Answer(json.dumps({"error": True, "reason": "no such key sEcReT"}), 401)
    with pytest.raises(PermanentError, match="check GREENSERVE_OPEN_METEO_KEY") as caught:
        open_meteo(plan="paid").outlook(NOON, 7)
    (key,) = web.asked[0].query["apikey"]
    assert key not in str(caught.value)
    with pytest.raises(PermanentError, match="no key: set GREENSERVE_OPEN_METEO_KEY"):
        OpenMeteoProvider({"plan": "paid"}, ASHBURN, replace(outside, secrets={}))
    OpenMeteoProvider({}, ASHBURN, replace(outside, secrets={}))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (Answer('{"error":true,"reason":"Latitude must be in range"}', 400), PermanentError, "Latitude must be in"),
        (Answer('{"error":true,"reason":"Hourly API request limit exceeded."}', 429), CoolDownError, "left alone"),
        (Answer(answer()[:200]), RetryableError, "no JSON"),
        (Answer(answer(units={"temperature_2m": "°F"})), PermanentError, "hourly_units.temperature_2m is not '°C'"),
        (Answer(answer(units={"wind_speed_10m": "km/h"})), PermanentError, "wind_speed_10m is not 'm/s'"),
        (Answer(answer({"precipitation": [1.0]})), PermanentError, "precipitation has not as many values"),
        (Answer(answer({"wind_speed_10m": ["x", 0, 0, 0]})), PermanentError, "wind_speed_10m is no number"),
        (Answer(answer({"time": ["2026-01-01T12:30", *HOURLY["time"][1:]]})), PermanentError, "is no whole hour"),
        (Answer(answer(utc_offset_seconds=3600)), PermanentError, "utc_offset_seconds is not 0"),
    ],
)
def test_open_meteo_stores_nothing_when_an_answer_is_not_as_documented(web, open_meteo, given, error, words):
    web.routes["/v1/forecast"] = given
    with pytest.raises(error, match=words):
        open_meteo().outlook(NOON, 7)


def test_open_meteo_is_refused_when_the_site_has_no_place_or_the_plan_is_unknown(open_meteo):
    with pytest.raises(PermanentError, match="no latitude and longitude: set both"):
        open_meteo(place=None)
    with pytest.raises(PermanentError, match="plan 'gratis' is not to be had; it tells free, paid"):
        open_meteo(plan="gratis")


ROWS = """region,utc,wind_m_s,temperature_k,dewpoint_k,irradiance_w_m2,precipitation
PJM,2026-01-01T11:00Z,3,280,275,100,0
PJM,2026-01-01T12:00Z,,0,275,,0.5
PJM,2026-01-01T13:00Z,,,,,
CISO,2026-01-01T11:00Z,9,290,285,500,0
PJM,2026-02-01T11:00Z,3,280,275,100,0
"""


@pytest.fixture
def weather_csv(tmp_path, outside):
    def made(text=ROWS, **config):
        (tmp_path / "weather.csv").write_text(text)
        own = {"file": "weather.csv", "region": "PJM", **config}
        return WeatherCsvProvider(own, None, replace(outside, feed_files=tmp_path))

    return made


def test_a_file_is_the_past_and_what_lies_ahead_its_forecast(weather_csv):
    provider = weather_csv()
    assert provider.past(NOON - 1, NOON) == {NOON - 1: (3.0, 280.0, 275.0, 100.0, 0.0)}
    assert provider.outlook(NOON, 7)[NOON] == (None, None, 275.0, None, 0.5)  # no temperature is 0 K
    assert list(provider.outlook(NOON, 7)) == [NOON - 1, NOON]


@pytest.mark.parametrize(
    ("text", "config", "words"),
    [
        (ROWS, {"region": "ERCO"}, "there is no row in it of region 'ERCO'"),
        (ROWS, {"region": ""}, "region is missing"),
        (ROWS, {"file": "/etc/passwd"}, "is no name of a feed's file"),
        (ROWS.replace("3,280", "calm,280"), {}, "line 2: wind_m_s is 'calm', which is no number"),
        (ROWS.replace("dewpoint_k", "dew"), {}, "the header lacks dewpoint_k"),
    ],
)
def test_a_file_is_refused_when_it_is_not_of_the_form(weather_csv, text, config, words):
    with pytest.raises(PermanentError, match=words):
        weather_csv(text, **config)
