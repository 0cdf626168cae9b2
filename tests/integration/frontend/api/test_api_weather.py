"""Weather feeds over REST, and what a feed and its page say of the weather that forecasts read."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from pools.models import Site
from telemetry.models import CarbonFeed, WeatherFeed, WeatherPoint
from tests.fakes import seed
from tests.integration.frontend.api.test_api_writes import Api, person, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(redis_client) -> Api:
    return Api(person("operator"))


def test_a_weather_feed_is_made_when_provider_and_configuration_can_do(api: Api):
    seed.fleet()
    feed = {"site": "location-1", "provider": "open_meteo"}
    for change, field, words in (
        ({}, "config", "the site has no latitude and longitude: set both"),
        ({"provider": "oracle"}, "provider", "known are open_meteo, weather_csv"),
        ({"provider": "weather_csv"}, "config", "file is missing"),
        (
            {"provider": "weather_csv", "config": {"file": "../x", "region": "PJM"}},
            "config",
            "is no name of a feed's file",
        ),
        ({"refresh_s": 1}, "refresh_s", "must be at least 60"),
    ):
        error = problem(api("POST", "weather-feeds/", {**feed, **change}))["errors"][0]
        assert error["field"] == field, change
        assert words in error["detail"], change
    Site.objects.filter(name="location-1").update(latitude=39.0, longitude=-77.5)
    assert api("POST", "weather-feeds/", feed).status_code == 201
    assert problem(api("POST", "weather-feeds/", feed))["errors"][0]["field"] == "site"
    assert WeatherFeed.objects.get().config == {}


def test_a_feed_says_which_weather_its_forecast_reads(api: Api):
    seeded = seed.everything(minutes=6, rps=1.0)
    feed, now = CarbonFeed.objects.filter(site=seeded.sites[0]).first(), timezone.now()
    assert api("GET", f"feeds/~{feed.pk}/").json()["weather"] is None
    weather = WeatherFeed.objects.create(site=feed.site, provider="open_meteo", source="Open-Meteo.com", last_ok_at=now)
    WeatherPoint.objects.create(feed=weather, start_at=now + timedelta(hours=40), fetched_at=now)
    found = api("GET", f"feeds/~{feed.pk}/").json()["weather"]
    assert (found["provider"], found["used"], found["last_error"]) == ("open_meteo", False, "")
    page = page_of(feed)
    assert "The forecast in use does not read the weather at the site." in page
    assert "Open-Meteo.com" in page
    CarbonFeed.objects.update(forecast_model="trees with weather")
    assert api("GET", f"feeds/~{feed.pk}/").json()["weather"]["used"] is True
    assert "The forecast in use reads the weather at the site." in page_of(feed)


def page_of(feed):
    client = Client()
    client.force_login(get_user_model().objects.get_or_create(username="viewer")[0])
    return client.get(f"/feeds/{feed.pk}/").content.decode()
