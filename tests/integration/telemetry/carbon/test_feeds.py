"""Feeds in the database: when they are asked, what is stored, how failures cool down, what decisions go by."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from core.ports import CoolDownError, IntensityPoint, PermanentError
from pools.database_locks import Lock
from pools.models import Site
from telemetry.carbon import feeds, site_signals
from telemetry.models import CarbonFeed, CarbonPoint
from telemetry.providers.provider_http import Bounds, Outside, Pace
from telemetry.providers.secrets import VARIABLES, Secret
from telemetry.selectors import feed_status
from tests.fakes.house import moment
from tests.fakes.intensity import intensity_steps
from tests.fakes.web import Answer, Clock, serving

pytestmark = pytest.mark.django_db
START = 1_767_268_800.0  # 2026-01-01 12:00
NOW = moment(START)


@pytest.fixture
def site():
    return Site.objects.create(name="east", grid_zone="Z")


@pytest.fixture
def web():
    with serving() as found:
        yield found


@pytest.fixture
def world():
    clock = Clock()
    keys = {name: Secret("hush") for name in VARIABLES}
    quick = Bounds(connect_s=10.0, read_s=20.0, total_s=30.0)
    return Outside(secrets=keys, pace=Pace(clock, clock.sleep), deadline=clock.at_s + 60.0, bounds=quick, loopback=True)


def point(start_s, value, **values):
    usual = {
        "zone": "Z",
        "end_s": start_s + 3_600.0,
        "raw_value": value,
        "raw_unit": "gCO2e/kWh",
        "signal": "average",
        "factor": "lifecycle",
        "estimated": False,
        "issued_at_s": start_s + 3_600.0,
        "forecast": False,
        "provider": "fake",
    }
    return IntensityPoint(start_s=start_s, value_g_per_kwh=value, **{**usual, **values})


def gb(site, web, **values):
    return CarbonFeed.objects.create(
        site=site, provider="gb_carbon_intensity", zone="GB", config={"base_url": web.url}, **values
    )


def half_hours(*rows):
    return Answer(
        json.dumps(
            {
                "data": [
                    {
                        "from": f"{moment(at_s):%Y-%m-%dT%H:%MZ}",
                        "to": f"{moment(at_s + 1_800.0):%Y-%m-%dT%H:%MZ}",
                        "intensity": {"forecast": forecast, "actual": actual, "index": "low"},
                    }
                    for at_s, forecast, actual in rows
                ]
            }
        )
    )


def test_provider_is_polled_when_its_time_has_come(site, web, world):
    feed = gb(site, web, refresh_s=600.0)
    rows = [(START - 7_200.0, 90, 91), (START - 5_400.0, 80, None), (START, 70, None), (START + 1_800.0, 60, None)]
    web.routes = AnyPath(half_hours(*rows))
    assert feeds.poll(NOW, world=world) == (feed,)
    assert list(feed.points.filter(forecast=False).values_list("start_at", "value_g_per_kwh")) == [
        (moment(START - 7_200.0), 91.0),
        (moment(START - 5_400.0), None),
    ]
    assert sorted(feed.points.filter(forecast=True).values_list("value_g_per_kwh", flat=True)) == [60.0, 70.0]
    kept = feed.points.first()
    assert (kept.provider, kept.zone, kept.factor, kept.model) == ("gb_carbon_intensity", "GB", "direct", "")
    assert feeds.poll(NOW + timedelta(seconds=300), world=world) == ()
    assert feeds.poll(NOW + timedelta(seconds=600), world=world) == (feed,)


class AnyPath(dict):
    """Whatever is asked for, the same."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def get(self, key, default=None):
        return self.answer


def test_feed_cools_down_longer_each_time_when_it_fails(site, web, world):
    feed = gb(site, web, refresh_s=60.0)
    web.routes = AnyPath(Answer("", 404))
    at, waits = NOW, []
    for _ in range(9):
        feeds.refresh_feed(feed, at, world)
        feed.refresh_from_db()
        waits.append((feed.cool_down_until - at).total_seconds())
        assert not feeds.is_due(feed, feed.cool_down_until - timedelta(seconds=1))
        assert feeds.is_due(feed, feed.cool_down_until)
        at = feed.cool_down_until
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, 3_600.0, 3_600.0, 3_600.0]
    assert "gb_carbon_intensity: /intensity/" in feed.last_error
    web.routes = AnyPath(half_hours((START - 7_200.0, 90, 91)))
    feeds.refresh_feed(feed, at, world)
    feed.refresh_from_db()
    assert (feed.failures, feed.cool_down_until, feed.last_error, feed.last_ok_at) == (0, None, "", at)


def test_all_feeds_of_a_provider_cool_down_when_it_says_so(site, web, world):
    feed = gb(site, web)
    other = gb(Site.objects.create(name="west", rank=1), web)
    stranger = CarbonFeed.objects.create(site=site, provider="pjm", signal="marginal")
    web.routes = AnyPath(Answer("", 429, {"Retry-After": "1234"}))
    assert feeds.poll(NOW, world=replace(world, secrets={})) != ()
    for one in (feed, other, stranger):
        one.refresh_from_db()
    assert feed.cool_down_until == other.cool_down_until == NOW + timedelta(seconds=1234)
    assert stranger.cool_down_until == NOW + timedelta(seconds=60)  # it has no key
    assert "GREENSERVE_PJM_KEY" in stranger.last_error


def test_actuals_are_kept_when_the_forecast_fails(site, web, world):
    feed = gb(site, web)
    good = half_hours((START - 7_200.0, 90, 91))
    web.routes = AnyPath([good, Answer("", 400)])
    assert feeds.refresh_feed(feed, NOW, world) == 1
    feed.refresh_from_db()
    assert feed.last_error
    assert feed.last_ok_at is None


def test_nobody_is_asked_when_another_run_is_under_way(site, web, world):
    gb(site, web)
    with _elsewhere() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtext(%s))", [Lock.FEEDS])
        assert feeds.poll(NOW, world=world) == ()
        cursor.execute("SELECT pg_advisory_unlock(hashtext(%s))", [Lock.FEEDS])
    web.routes = AnyPath(half_hours())
    assert len(feeds.poll(NOW, world=world)) == 1


def _elsewhere():
    """A connection of another process."""
    other = connection.copy()

    class Held:
        def __enter__(self):
            return other.cursor()

        def __exit__(self, *_):
            other.close()

    return Held()


def test_rest_waits_for_the_next_run_when_a_rate_limit_leaves_no_call(site, web, world):
    for number in range(3):
        CarbonFeed.objects.create(
            site=Site.objects.create(name=f"p{number}", rank=number),
            provider="pjm",
            signal="marginal",
            zone="1",
            refresh_s=600.0,
            config={"base_url": web.url},
        )
    web.routes = AnyPath(Answer('{"totalRows":0,"items":[]}'))
    asked = feeds.poll(NOW, world=replace(world, deadline=world.pace.now() + 15.0))
    assert [feed.site.name for feed in asked] == ["p0", "p1"]
    later = feeds.poll(NOW + timedelta(seconds=60), world=replace(world, deadline=world.pace.now() + 100.0))
    assert [feed.site.name for feed in later] == ["p2"]


@pytest.mark.parametrize("changes", [{"signal": "marginal"}, {"factor": "direct"}])
def test_series_are_not_mixed_when_a_provider_tells_another(site, changes):
    feed = CarbonFeed.objects.create(site=site, provider="fake", factor="lifecycle")
    with pytest.raises(PermanentError, match="the feed is average lifecycle"):
        feeds.append(feed, [point(START, 1.0), point(START, 1.0, **changes)], NOW)
    assert not feed.points.exists()


def test_price_has_its_currency_when_it_is_stored(site):
    feed = CarbonFeed.objects.create(site=site, provider="fake", signal="price")
    priced = point(START, None, signal="price", factor="", raw_unit="EUR/MWh", raw_value=-2.0)
    priced = replace(priced, price_per_kwh=-0.002, currency="EUR")
    assert feeds.append(feed, [priced], NOW) == 1
    assert feeds.append(feed, [priced], NOW) == 0
    assert feeds.append(feed, [replace(priced, price_per_kwh=-0.003)], NOW) == 1
    assert site_signals.price_steps(site, moment(START + 60.0), 1.0, 1, "EUR") == (-0.003,)
    assert site_signals.intensity_at(site, moment(START + 60.0)) is None
    assert site_signals.price_steps(site, NOW, 3_600.0, 2, "EUR") == (-0.003, None)
    assert site_signals.price_steps(site, NOW, 3_600.0, 2, "USD") == ()


def test_value_may_come_when_it_was_null_before(site):
    feed = CarbonFeed.objects.create(site=site, provider="fake")
    assert feeds.append(feed, [point(START, None)], NOW) == 1
    assert feeds.append(feed, [point(START, None)], NOW) == 0
    assert feeds.append(feed, [point(START, 10.0)], moment(START + 7_200.0)) == 1
    assert site_signals.intensity_at(site, moment(START)) == 10.0
    with pytest.raises(Exception, match="append-only"), transaction.atomic():
        CarbonPoint.objects.update(value_g_per_kwh=1.0)


def test_point_is_refused_when_it_is_carbon_and_price_at_once(site):
    feed = CarbonFeed.objects.create(site=site, provider="fake")
    with pytest.raises(IntegrityError, match="carbon_point_one_signal"), transaction.atomic():
        feeds.append(feed, [point(START, 1.0, price_per_kwh=1.0)], NOW)
    with pytest.raises(IntegrityError, match="carbon_point_models_forecast"), transaction.atomic():
        feeds.append(feed, [point(START, 1.0)], NOW, model="profile")


def both(site, averages, marginals):
    for signal, values in (("average", averages), ("marginal", marginals)):
        feed = CarbonFeed.objects.create(site=site, provider="fake", signal=signal)
        rows = [point(START + i * 3_600.0, v, signal=signal) for i, v in enumerate(values)]
        feeds.append(feed, rows, NOW)


def test_decisions_go_by_marginal_rates_when_every_site_has_them(site):
    west = Site.objects.create(name="west", rank=1)
    both(site, [100.0, 110.0], [-50.0, 400.0])
    both(west, [200.0, 210.0], [300.0, 500.0])
    found = site_signals.for_decisions([site, west], NOW, moment(START + 7_200.0))
    assert found.signal == "marginal"
    assert found.steps(site, NOW, 3_600.0, 2) == (-50.0, 400.0)
    assert found.at(west, NOW) == 300.0
    assert intensity_steps(site, NOW, 3_600.0, 2) == (100.0, 110.0)  # what the inventory goes by


@pytest.mark.parametrize("marginals", [None, [], [None, 300.0], [300.0, None, None, None]])
def test_decisions_go_by_averages_when_a_site_lacks_marginal_rates(site, marginals):
    west = Site.objects.create(name="west", rank=1)
    both(site, [100.0] * 4, [50.0] * 4)
    if marginals is None:
        feeds.append(CarbonFeed.objects.create(site=west, provider="fake"), [point(START, 200.0)], NOW)
    else:
        both(west, [200.0] * 4, marginals)
    found = site_signals.for_decisions([site, west], NOW, moment(START + 4 * 3_600.0))
    assert found.signal == "average"
    assert (found.at(site, NOW), found.at(west, NOW)) == (100.0, 200.0)


def test_gaps_are_seen_when_points_are_missing_or_null(site):
    feed = CarbonFeed.objects.create(site=site, provider="fake")
    hours = [1.0, None, 3.0, 4.0]
    feeds.append(feed, [point(START + i * 3_600.0, v) for i, v in enumerate(hours)], NOW)
    feeds.append(feed, [point(START + 6 * 3_600.0, 6.0), point(START + 2 * 3_600.0, None)], moment(START + 36_000.0))
    assert feed_status.gaps(feed, NOW, moment(START + 8 * 3_600.0)) == (
        (START + 3_600.0, START + 3 * 3_600.0),
        (START + 4 * 3_600.0, START + 6 * 3_600.0),
        (START + 7 * 3_600.0, START + 8 * 3_600.0),
    )
    assert feed_status.gaps(feed, NOW, moment(START + 3_600.0)) == ()


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, "never"),
        ({"last_error": "no", "last_error_at": NOW}, "failing"),
        ({"last_error": "no", "cool_down_until": NOW + timedelta(seconds=9)}, "cooling down"),
        ({"last_ok_at": NOW - timedelta(hours=2)}, "stale"),
        ({"last_ok_at": NOW}, "late"),
    ],
)
def test_state_is_shown_when_a_feed_is_looked_at(site, values, state):
    feed = CarbonFeed.objects.create(site=site, provider="fake", refresh_s=300.0, **values)
    assert feed_status.status(feed, NOW).state == state
    if state == "late":
        feeds.append(feed, [point(START - 3_600.0, 5.0)], NOW)
        found = feed_status.status(feed, NOW)
        assert (found.state, found.known_until_s) == ("fresh", START)
        assert found.gaps == ()
        feeds.append(feed, [point(START - 5 * 3_600.0, 5.0)], NOW)
        assert feed_status.status(feed, NOW).gap_s == pytest.approx(3 * 3_600.0)


def test_outage_is_filled_when_a_provider_answers_again(site, web, world):
    feed = gb(site, web)
    feeds.append(feed, [replace(point(START - 5 * 86_400.0, 5.0), factor="direct")], NOW)
    web.routes = AnyPath(half_hours())
    feeds.refresh_feed(feed, NOW, world)
    assert web.asked[0].path == "/intensity/2025-12-27T12:00Z/2026-01-01T12:00Z"


def test_long_wait_counts_when_a_provider_says_so(site, monkeypatch):
    feed = CarbonFeed.objects.create(site=site, provider="fake")

    def refuse(*_):
        raise CoolDownError("fake: later", 7_200.0)

    monkeypatch.setattr(feeds, "provider", refuse)
    feeds.refresh_feed(feed, NOW)
    feed.refresh_from_db()
    assert feed.cool_down_until == NOW + timedelta(seconds=7_200)


def test_old_forecasts_are_dropped_when_they_are_forgotten(site):
    feed = CarbonFeed.objects.create(site=site, provider="fake")
    rows = [point(START, 1.0), point(START, 2.0, forecast=True), point(START + 3_600.0, 2.0, forecast=True)]
    feeds.append(feed, rows, NOW)
    assert feeds.forget(moment(START + 5_000.0)) == 1
    assert feed.points.count() == 2
