"""Models that read the weather: learned where it is known, used while the hours ahead have a fresh forecast of it."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest

from core.predictors import carbon_training
from core.predictors.back_test import Score
from core.predictors.carbon_features import WEATHER
from core.predictors.seasonal import History
from pools.models import Site
from telemetry.forecasts import carbon_forecasts, forecast_record, histories, learned_carbon
from telemetry.models import CarbonFeed, CarbonPoint, LearnedForecast, WeatherFeed, WeatherPoint
from telemetry.weather import weather_history
from tests.fakes.house import moment

pytestmark = pytest.mark.django_db
START_S = 1_767_225_600.0  # 2026-01-01 00:00
HOUR_S = 3_600.0
DAYS = 80
NOW = moment(START_S + DAYS * 24 * HOUR_S)
AHEAD = 30  # hours of weather forecast, more than plans look ahead


@pytest.fixture
def feed(monkeypatch, settings):
    settings.GREENSERVE_BATCHES = {**settings.GREENSERVE_BATCHES, "horizon_s": 86_400.0}
    monkeypatch.setattr(carbon_training, "TREES", 8)
    monkeypatch.setattr(carbon_training, "EVERY_HOURS", 23)
    feed = CarbonFeed.objects.create(site=Site.objects.create(name="east"), provider="fake")
    WeatherFeed.objects.create(site=feed.site, provider="fake")
    wind = _wind(DAYS * 24)
    CarbonPoint.objects.bulk_create(
        CarbonPoint(
            feed=feed,
            start_at=moment(START_S + hour * HOUR_S),
            end_at=moment(START_S + (hour + 1) * HOUR_S),
            issued_at=moment(START_S + hour * HOUR_S),
            value_g_per_kwh=value,
            raw_value=value,
            raw_unit="gCO2e/kWh",
            factor="direct",
            forecast=False,
        )
        for hour, value in enumerate(330.0 + 60.0 * np.sin(np.arange(DAYS * 24) * math.pi / 12) - 12.0 * wind)
    )
    return feed


def _wind(hours):
    """Returns a wind around 5 m/s that comes and goes within days."""
    rng, calm, found = np.random.default_rng(3), 0.0, []
    for _ in range(hours):
        calm = 0.97 * calm + rng.normal(0.0, 0.6)
        found.append(5.0 + calm)
    return np.array(found)


def blow(feed, first=0, until=DAYS * 24 + AHEAD, fetched_at=NOW, **values):
    """Stores the weather of hours since START_S; `values` instead of the usual ones."""
    usual = {"temperature_k": 280.0, "dewpoint_k": 275.0, "irradiance_w_m2": 100.0, "precipitation": 0.0}
    hours = range(first, until)
    WeatherPoint.objects.bulk_create(
        WeatherPoint(
            feed=feed.site.weather_feed,
            start_at=moment(START_S + hour * HOUR_S),
            fetched_at=fetched_at,
            **{"wind_m_s": wind, **usual, **values},
        )
        for hour, wind in zip(hours, _wind(DAYS * 24 + AHEAD)[first:until], strict=True)
    )


def learned(feed):
    learned_carbon.learn(feed, NOW)
    return LearnedForecast.objects.get(feed=feed)


def test_the_model_with_weather_is_chosen_when_wind_makes_the_difference(feed):
    blow(feed)
    row = learned(feed)
    assert row.note == ""
    scores = {score.model: score for score in carbon_forecasts.score(feed, NOW)}
    assert scores["trees with weather"].pinball < 0.7 * scores["trees"].pinball
    assert scores["trees with weather"].samples == scores["trees"].samples
    feed.refresh_from_db()
    assert feed.forecast_model == "trees with weather"
    assert carbon_forecasts.extend(feed, NOW) >= 24
    made = feed.points.filter(forecast=True, model="trees with weather")
    assert made.order_by("start_at").first().start_at == NOW


def test_another_model_takes_over_when_the_weather_ahead_is_stale(feed):
    blow(feed)
    learned(feed)
    carbon_forecasts.score(feed, NOW)
    feed.refresh_from_db()
    WeatherPoint.objects.update(fetched_at=NOW - timedelta(hours=24))
    assert set(learned_carbon.models(feed, NOW)) == {"trees"}
    best = next(one.model for one in forecast_record.newest(feed=feed) if one.model != "trees with weather")
    assert carbon_forecasts.extend(feed, NOW) >= 24
    feed.refresh_from_db()
    assert feed.forecast_model == best
    assert not feed.points.filter(model="trees with weather").exists()
    assert feed.points.filter(forecast=True, model=best).count() >= 24
    later = NOW + timedelta(minutes=1)
    assert "trees with weather" not in {score.model for score in carbon_forecasts.score(feed, later)}


def test_the_providers_own_forecast_takes_over_when_it_is_the_next_best(feed):
    blow(feed)
    learned(feed)
    WeatherPoint.objects.filter(start_at__gte=NOW).delete()
    scores = {"trees with weather": 1.0, "provider": 2.0, "trees": 3.0}
    forecast_record.store(
        [Score(name, 1, 24, 0.5, loss, None) for name, loss in scores.items()],
        "trees with weather",
        NOW,
        HOUR_S,
        24,
        feed=feed,
    )
    CarbonFeed.objects.update(forecast_model="trees with weather")
    feed.refresh_from_db()
    assert carbon_forecasts.extend(feed, NOW) == 0
    feed.refresh_from_db()
    assert feed.forecast_model == ""


def test_nothing_is_said_of_hours_whose_weather_is_unknown(feed):
    blow(feed)
    learned(feed)
    model = learned_carbon.models(feed, NOW)["trees with weather"]
    history = histories.carbon(feed, NOW, HOUR_S)
    assert np.isnan(model(history, 40, 0.5)).tolist() == [False] * AHEAD + [True] * 10
    WeatherPoint.objects.filter(start_at=NOW + timedelta(hours=25)).update(precipitation=None)
    model = learned_carbon.models(feed, NOW)["trees with weather"]
    assert np.flatnonzero(np.isnan(model(history, AHEAD, 0.5))).tolist() == [25]
    WeatherPoint.objects.filter(start_at=NOW + timedelta(hours=3)).update(wind_m_s=None)
    assert "trees with weather" not in learned_carbon.models(feed, NOW)


def test_steps_of_an_hour_have_its_value_when_they_are_shorter(feed):
    blow(feed)
    learned(feed)
    model = learned_carbon.models(feed, NOW)["trees with weather"]
    hourly = histories.carbon(feed, NOW, HOUR_S)
    fine = History(np.repeat(hourly.values, 4), hourly.first_step * 4, 96, 0.0)
    np.testing.assert_allclose(model(fine, 80, 0.5), np.repeat(model(hourly, 20, 0.5), 4))


@pytest.mark.parametrize(
    ("weather", "note"),
    [
        ({"first": 40 * 24}, "learned without weather, which is known of 26 of 66 days"),
        ({"dewpoint_k": None}, "learned without weather, which is known of 0 of 66 days"),
    ],
)
def test_a_model_is_learned_without_weather_when_too_little_of_it_is_known(feed, weather, note):
    blow(feed, **weather)
    row = learned(feed)
    assert (row.note, row.with_weather) == (note, None)
    assert row.model is not None
    assert set(learned_carbon.models(feed, NOW)) == {"trees"}
    CarbonFeed.objects.update(forecast_model="trees with weather")  # of an earlier model
    feed.refresh_from_db()
    assert carbon_forecasts.extend(feed, NOW) >= 24
    feed.refresh_from_db()
    assert feed.forecast_model == forecast_record.FALL_BACK


def test_a_sky_has_what_was_and_what_was_forecast_of_late(feed):
    hour = int(START_S / HOUR_S) + DAYS * 24
    blow(feed, first=DAYS * 24 - 3, fetched_at=NOW - timedelta(hours=20))
    sky = weather_history.sky(feed.site, hour - 5, hour + 5, NOW)
    assert weather_history.whole(sky.rows).tolist() == [False] * 2 + [True] * 8
    assert sky.between(hour - 3, hour - 2)[0, WEATHER.index("temperature_k")] == 280.0
    assert weather_history.whole(sky.between(hour + 4, hour + 6)).tolist() == [True, False]
    later = NOW + timedelta(hours=5)
    assert weather_history.whole(weather_history.sky(feed.site, hour, hour + 8, later).rows).tolist() == (
        [True] * 5 + [False] * 3
    )
