"""Weather feeds ask for the newest days and a week ahead each hour, and for the past year by year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from core.ports import CoolDownError, PermanentError
from core.predictors.carbon_features import WEATHER
from pools.models import Site
from telemetry import tasks
from telemetry.models import WeatherFeed, WeatherPoint
from telemetry.weather import weather_feeds
from telemetry.weather.weather_feeds import DAY, KEPT
from telemetry.weather.weather_port import HOUR_S

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, 12, 20, tzinfo=UTC)
HOUR = int(NOW.timestamp()) // HOUR_S


class FakeWeather:
    """Has `wind` in each hour since `since`; notes what it was asked for."""

    wind, since, error = 1.0, 0, None
    asked: list[tuple[int, int]] = []

    def __init__(self, config, place, outside):
        self.place = place

    def past(self, first_hour, end_hour):
        if self.error is not None:
            raise self.error
        self.asked.append((first_hour, end_hour))
        return dict.fromkeys(range(max(first_hour, self.since), end_hour), (self.wind, None, None, None, 0.0))

    def outlook(self, now_hour, days_back):
        return self.past(now_hour - days_back * DAY, now_hour + 7 * DAY)


@pytest.fixture
def fake(monkeypatch, settings):
    class Own(FakeWeather):
        asked: list[tuple[int, int]] = []

    settings.GREENSERVE_WEATHER_PROVIDERS = {"fake": "fake"}
    monkeypatch.setattr(weather_feeds, "import_string", lambda path: Own)
    monkeypatch.setattr(weather_feeds, "KEPT", 60 * DAY)
    monkeypatch.setattr(weather_feeds, "YEAR", 40 * DAY)
    return Own


@pytest.fixture
def feed(fake):
    site = Site.objects.create(name="east", latitude=39.04, longitude=-77.49)
    return WeatherFeed.objects.create(site=site, provider="fake")


def test_the_past_is_filled_back_to_what_models_learn_from(feed, fake):
    assert weather_feeds.poll(NOW) == (feed,)
    assert fake.asked == [
        (HOUR - 7 * DAY, HOUR + 7 * DAY),
        (HOUR - 47 * DAY, HOUR - 7 * DAY),
        (HOUR - 60 * DAY, HOUR - 47 * DAY),
    ]
    assert feed.points.count() == 67 * DAY
    first = feed.points.order_by("start_at").first()
    assert [getattr(first, name) for name in WEATHER] == [1.0, None, None, None, 0.0]
    feed.refresh_from_db()
    assert (feed.last_ok_at, feed.last_error) == (NOW, "")
    assert weather_feeds.poll(NOW + timedelta(minutes=50)) == ()
    later = NOW + timedelta(hours=1)
    assert weather_feeds.poll(later) == (feed,)
    assert len(fake.asked) == 4


def test_a_newer_fetch_takes_the_place_of_an_older_one(feed, fake):
    weather_feeds.refresh(feed, NOW)
    fake.wind, later = 2.0, NOW + timedelta(hours=1)
    weather_feeds.refresh(feed, later)
    assert feed.points.filter(fetched_at=later, wind_m_s=2.0).count() == 14 * DAY
    assert feed.points.filter(start_at__gt=later, wind_m_s=1.0).count() == 0
    assert feed.points.filter(fetched_at=NOW, wind_m_s=1.0).count() == 53 * DAY + 1


def test_the_days_of_an_outage_are_asked_for_when_it_is_over(feed, fake):
    weather_feeds.refresh(feed, NOW)
    feed.refresh_from_db()
    fake.asked.clear()
    weather_feeds.refresh(feed, NOW + timedelta(days=20))
    assert fake.asked[0] == (HOUR + 20 * DAY - 27 * DAY, HOUR + 27 * DAY)


def test_filling_ends_when_the_provider_has_no_more(feed, fake):
    fake.since = HOUR - 10 * DAY
    weather_feeds.refresh(feed, NOW)
    assert len(fake.asked) == 3  # the last answer was empty
    assert feed.points.count() == 17 * DAY


@pytest.mark.parametrize(
    ("error", "words"),
    [(PermanentError("fake: no such place"), "fake: no such place"), (KeyError("x"), "fake: KeyError; the server's")],
)
def test_an_error_stands_on_its_feed_and_others_are_asked(feed, fake, monkeypatch, error, words):
    other = WeatherFeed.objects.create(site=Site.objects.create(name="west"), provider="fake")
    real = weather_feeds.provider
    bad = type("Bad", (fake,), {"error": error})
    monkeypatch.setattr(
        weather_feeds, "provider", lambda one, world: bad({}, None, world) if one == feed else real(one, world)
    )
    assert set(weather_feeds.poll(NOW)) == {feed, other}
    feed.refresh_from_db()
    assert feed.last_error.startswith(words)
    assert (feed.failures, feed.last_ok_at) == (1, None)
    assert feed.cool_down_until == NOW + timedelta(minutes=1)
    assert other.points.exists()


def test_all_of_a_provider_are_left_alone_when_it_says_so(feed, fake):
    other = WeatherFeed.objects.create(site=Site.objects.create(name="west"), provider="fake")
    fake.error = CoolDownError("fake: enough", 900.0)
    weather_feeds.refresh(feed, NOW)
    other.refresh_from_db()
    assert other.cool_down_until == NOW + timedelta(minutes=15)
    assert weather_feeds.poll(NOW + timedelta(minutes=14)) == ()


def test_nothing_is_asked_when_no_site_has_a_weather_feed(fake):
    Site.objects.create(name="east", latitude=39.04, longitude=-77.49)
    assert tasks.refresh_weather() == 0
    assert not WeatherPoint.objects.exists()


def test_hours_are_dropped_when_no_model_learns_from_them(feed):
    for hours in (KEPT + 60, 1):
        WeatherPoint.objects.create(feed=feed, start_at=NOW - timedelta(hours=hours), fetched_at=NOW)
    assert weather_feeds.forget(NOW) == 1
    assert feed.points.count() == 1


def test_a_site_has_one_weather_feed(feed):
    with pytest.raises(IntegrityError), transaction.atomic():
        WeatherFeed.objects.create(site=feed.site, provider="fake")
