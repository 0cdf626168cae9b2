"""What every provider of weather does alike: hours of the span asked for, units that can be, no empty hours."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings
from django.utils.module_loading import import_string

from core.ports import PermanentError
from core.predictors.carbon_features import WEATHER
from telemetry.providers.provider_http import Bounds, Outside, Pace
from telemetry.weather.weather_port import NOTHING, Place
from tests.fakes.web import Answer, Clock, serving
from tests.unit.telemetry.providers.test_weather import UNITS

NOON = 490_908  # 2026-01-01 12:00, in hours since the epoch
NAMES = ("open_meteo", "weather_csv")
LIKELY = {"wind_m_s": (0, 60), "temperature_k": (220, 330), "dewpoint_k": (220, 330), "irradiance_w_m2": (0, 1400)}


def _time(hour):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)


def _open_meteo(asked):
    """Answers for the days that were asked for; 4 to 6 o'clock are unknown."""
    query = {name: values[0] for name, values in asked.query.items()}
    if "start_date" in query:
        first, last = (datetime.fromisoformat(query[f"{edge}_date"]).replace(tzinfo=UTC) for edge in ("start", "end"))
    else:
        first, last = (
            _time(NOON - 12) + timedelta(days=days)
            for days in (-int(query["past_days"]), int(query["forecast_days"]) - 1)
        )
    times = [first + timedelta(hours=hour) for hour in range(((last - first).days + 1) * 24)]
    values = [None if 4 <= at.hour <= 6 else 9.0 for at in times]
    hourly = {"time": [f"{at:%Y-%m-%dT%H:%M}" for at in times], **{name: values for name in UNITS if name != "time"}}
    return Answer(json.dumps({"utc_offset_seconds": 0, "hourly_units": UNITS, "hourly": hourly}))


@pytest.fixture(params=NAMES)
def provider(request, tmp_path):
    rows = [
        f"PJM,{_time(hour):%Y-%m-%dT%H:%MZ}," + (",,,," if 4 <= hour % 24 <= 6 else "9,282,282,9,9")
        for hour in range(NOON - 30 * 24, NOON + 20 * 24)
    ]
    (tmp_path / "weather.csv").write_text("\n".join(["region,utc," + ",".join(WEATHER), *rows]))
    with serving() as web:
        web.routes["/v1/forecast"] = web.routes["/v1/archive"] = _open_meteo
        clock = Clock()
        quick = Bounds(connect_s=10.0, read_s=20.0, total_s=30.0)
        world = Outside(pace=Pace(clock, clock.sleep), bounds=quick, feed_files=tmp_path, loopback=True)
        config = {"open_meteo": {"base_url": web.url}, "weather_csv": {"file": "weather.csv", "region": "PJM"}}
        adapter = import_string(settings.GREENSERVE_WEATHER_PROVIDERS[request.param])
        yield adapter(config[request.param], Place(39.04, -77.49), world)


def test_every_provider_is_here():
    assert set(settings.GREENSERVE_WEATHER_PROVIDERS) == set(NAMES)


def test_the_past_has_the_hours_that_were_asked_for(provider):
    hours = provider.past(NOON - 50, NOON - 2)
    assert set(hours) <= set(range(NOON - 50, NOON - 2))
    assert {hour for hour in range(NOON - 50, NOON - 2) if not 3 <= hour % 24 <= 6} <= set(hours)
    assert provider.past(NOON - 2, NOON - 1).keys() == {NOON - 2}


def test_the_outlook_has_the_newest_days_and_a_week(provider):
    hours = provider.outlook(NOON, 9)
    assert {NOON - 9 * 24, NOON, NOON + 6 * 24} <= set(hours)
    assert min(hours) >= NOON - 10 * 24


def test_values_are_of_the_port_and_hours_without_any_are_left_out(provider):
    hours = provider.outlook(NOON, 2)
    assert NOTHING not in hours.values()
    assert not [hour for hour in hours if hour % 24 in (4, 5)]
    for values in hours.values():
        for name, value in zip(WEATHER, values, strict=True):
            least, most = LIKELY.get(name, (0, 500))
            assert value is None or least <= value <= most, name


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_that_cannot_do_is_a_permanent_error(name):
    adapter = import_string(settings.GREENSERVE_WEATHER_PROVIDERS[name])
    with pytest.raises(PermanentError, match=name):
        adapter({"plan": "none", "file": "/etc/passwd"}, None, Outside())
