"""Carbon feeds in the database: append-only, errors recorded, null stays null."""

from datetime import timedelta

import pytest

from core.ports import RetryableError
from pools.demo import carbon_curve
from pools.models import Service, Site
from scheduler.control.apply import fleet_messages
from telemetry import tasks
from telemetry.carbon.feeds import RUN_S, forecast_horizon_s, poll, refresh_feed
from telemetry.carbon.site_signals import intensity_at
from telemetry.carbon.turns import FEED_S
from telemetry.models import CarbonFeed, CarbonPoint
from telemetry.providers.provider_http import Outside, Pace
from telemetry.selectors import feed_status
from tests.fakes.house import moment
from tests.fakes.intensity import intensity_steps

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0  # 2026-01-01 00:00, a border of the demo's 48-minute day (2,880 s)
DAY_S = 2_880.0
NOW = moment(START + 5.0)


@pytest.fixture
def feed(demo_rows, tmp_path, settings):
    settings.GREENSERVE_FEEDS_DIR = tmp_path
    return CarbonFeed.objects.get(site__name="location-1")


def add(feed, at_s, value, forecast=False, issued_s=None, length_s=10.0):
    return CarbonPoint.objects.create(
        feed=feed,
        start_at=moment(at_s),
        end_at=moment(at_s + length_s),
        value_g_per_kwh=value,
        raw_unit="gCO2e/kWh",
        forecast=forecast,
        issued_at=moment(at_s if issued_s is None else issued_s),
    )


def test_actuals_and_forecast_are_stored_when_a_feed_is_refreshed(feed):
    stored = refresh_feed(feed, NOW)
    actual, forecast = feed.points.filter(forecast=False), feed.points.filter(forecast=True)
    assert stored == actual.count() + forecast.count()
    assert actual.order_by("-start_at").first().start_at == moment(START)
    assert actual.count() == 361  # the hour before, and the step under way
    assert forecast.count() == forecast_horizon_s() / 10
    assert set(forecast.values_list("issued_at", flat=True)) == {moment(START)}
    assert all(point.start_at > NOW for point in forecast)
    feed.refresh_from_db()
    assert (feed.last_ok_at, feed.last_error) == (NOW, "")


@pytest.mark.parametrize(("steps", "reach_s"), [(6, 7 / 6 * 2 * DAY_S), (10_000, 2 * DAY_S + 5.0)])
def test_forecast_reaches_as_far_as_the_longest_carbon_period_of_a_service(feed, steps, reach_s):
    """And as far as the plan looks whose step begins just before the next refresh, which is 5 s later."""
    knobs = {"carbon_period_s": 2 * DAY_S, "tuning": {"eq1": {"steps": steps}}}
    Service.objects.update(policy="freesh", knobs=knobs)
    refresh_feed(feed, NOW)
    ends = feed.points.filter(forecast=True).order_by("-end_at").values_list("end_at", flat=True)
    assert forecast_horizon_s() == reach_s
    assert ends[0] >= NOW + timedelta(seconds=reach_s)


def test_only_what_is_new_is_stored_when_a_feed_is_refreshed_again(feed):
    refresh_feed(feed, NOW)
    assert refresh_feed(feed, NOW) == 0
    assert refresh_feed(feed, NOW + timedelta(seconds=4)) == 0
    assert refresh_feed(feed, NOW + timedelta(seconds=10)) == 2  # one actual, one step more of forecast


def test_revision_is_a_new_row_when_a_value_changes(feed, tmp_path):
    feed.config = {"file": "grid.csv", "zone": "Z"}
    feed.save()

    def write(first):
        head = "zone,start_utc,end_utc,signal,value,unit,factor,source\n"
        rows = [f"Z,2026-01-01T00:{m:02}Z,2026-01-01T00:{m + 5:02}Z,average,{v},gCO2e/kWh,direct,me" for m, v in first]
        (tmp_path / "grid.csv").write_text(head + "\n".join(rows) + "\n")

    write([(0, 100), (5, 200)])
    refresh_feed(feed, NOW)
    write([(0, 100), (5, 250)])
    assert refresh_feed(feed, NOW + timedelta(seconds=60)) == 1
    assert intensity_at(feed.site, moment(START + 301)) == 250.0
    write([(0, 110), (5, 250)])
    assert refresh_feed(feed, NOW + timedelta(seconds=70)) == 1
    assert intensity_at(feed.site, moment(START + 200)) == 110.0
    assert feed.points.count() == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provider": "crystal_ball"}, "unknown carbon provider 'crystal_ball'; known are eia, electricity_maps"),
        ({"config": {"file": "/nowhere.csv", "zone": "Z"}}, "'/nowhere.csv' is no name of a feed's file"),
        ({"config": {"zone": "Z"}}, "file is missing"),
        ({"config": {"file": "pools.demo:carbon_day.csv", "zone": "Atlantis"}}, "no average row of zone 'Atlantis'"),
    ],
)
def test_error_stands_on_the_feed_when_a_refresh_fails(feed, changes, words):
    refresh_feed(feed, NOW)
    for name, value in changes.items():
        setattr(feed, name, value)
    feed.save(update_fields=list(changes))
    assert refresh_feed(feed, NOW + timedelta(seconds=20)) == 0
    feed.refresh_from_db()
    assert words in feed.last_error
    assert feed.last_error_at == NOW + timedelta(seconds=20)
    assert feed.last_ok_at == NOW


def test_other_feeds_are_refreshed_when_one_fails(feed):
    feed.provider = "crystal_ball"
    feed.save()
    tasks.refresh_carbon_feeds()
    assert sorted(CarbonPoint.objects.values_list("feed__site__name", flat=True).distinct()) == [
        "location-2",
        "location-3",
    ]


POISON = {
    "config that is a list": {"config": ["file"]},
    "zone that no column holds": {"config": {"file": "pools.demo:carbon_day.csv", "zone": "Z" * 70, "repeat": "day"}},
    "path of a device": {"config": {"file": "/dev/zero"}},
    "module in place of a file": {"config": {"file": "os:environ"}},
    "pace without end": {"config": {"file": "pools.demo:carbon_day.csv", "repeat": "day", "speedup": 1e12}},
    "refresh without end": {"refresh_s": 1e300, "config": {"file": "gone.csv"}},
    "adapter that breaks": {"provider": "broken"},
}


class Broken:
    def __init__(self, config, outside):
        raise ZeroDivisionError("nobody thought\0of it")


@pytest.mark.parametrize("kind", POISON)
def test_two_of_three_feeds_are_refreshed_when_the_first_is_poison(feed, kind, settings):
    settings.GREENSERVE_CARBON_PROVIDERS = {**settings.GREENSERVE_CARBON_PROVIDERS, "broken": f"{__name__}.Broken"}
    CarbonFeed.objects.filter(pk=feed.pk).update(**POISON[kind])
    CarbonFeed.objects.exclude(pk=feed.pk).update(last_tried_at=NOW - timedelta(days=1))
    assert tasks.refresh_carbon_feeds() == 3
    assert CarbonPoint.objects.values("feed").distinct().count() == 2
    feed.refresh_from_db()
    assert feed.failures == 1
    assert feed.last_error
    assert [found.state for found in feed_status.statuses(feed.last_tried_at)] == ["cooling down", "fresh", "fresh"]


def test_forecasts_of_others_are_made_when_one_history_breaks_a_model(feed, monkeypatch):
    asked = []

    def extend(found, now):
        asked.append(found.pk)
        if found.pk == feed.pk:
            raise ZeroDivisionError

    monkeypatch.setattr(tasks.carbon_forecasts, "extend", extend)
    assert tasks.refresh_carbon_feeds() == 3
    assert feed.pk in asked
    assert len(asked) == 3


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, wait_s):
        self.now_s += wait_s


class Hanging:
    """Waits until its turn is over, as a provider's client does."""

    def __init__(self, config, outside):
        outside.pace.sleep(outside.deadline - outside.pace.now())
        raise RetryableError("did not answer")


def test_others_have_their_turn_when_the_first_hangs(feed, settings):
    settings.GREENSERVE_CARBON_PROVIDERS = {**settings.GREENSERVE_CARBON_PROVIDERS, "hanging": f"{__name__}.Hanging"}
    CarbonFeed.objects.filter(pk=feed.pk).update(provider="hanging")
    CarbonFeed.objects.exclude(pk=feed.pk).update(last_tried_at=NOW - timedelta(days=1))
    clock = Clock()
    world = Outside(pace=Pace(clock, clock.sleep), deadline=RUN_S)
    assert [found.pk == feed.pk for found in poll(NOW, world=world)] == [True, False, False]
    assert clock() == FEED_S
    assert CarbonPoint.objects.values("feed").distinct().count() == 2


def test_feed_goes_on_when_a_wrong_clock_left_it_a_value_of_the_future(feed):
    add(feed, START + 86_400 * 3, 100.0)
    refresh_feed(feed, NOW)
    assert feed.points.filter(forecast=False, start_at__lte=NOW).count() == 361


def test_null_stays_null_when_the_feed_has_no_value(feed, tmp_path):
    gap, step = START + 150 * 10.0, 150
    lines = carbon_curve.FILE.read_text().splitlines(keepends=True)
    i = next(i for i, line in enumerate(lines) if line.startswith("US-PJM-DOM,")) + step
    zone, since, until, signal, _, rest = lines[i].split(",", 5)
    lines[i] = ",".join((zone, since, until, signal, "", rest))
    (tmp_path / "day.csv").write_text("".join(lines))
    feed.config["file"] = "day.csv"
    refresh_feed(feed, moment(gap + 1))
    point = feed.points.get(start_at=moment(gap), forecast=False)
    assert (point.value_g_per_kwh, point.raw_value) == (None, None)
    assert intensity_at(feed.site, moment(gap + 1)) is None
    assert intensity_at(feed.site, moment(gap - 1)) is not None


def test_newest_issue_counts_when_a_forecast_was_revised(feed):
    add(feed, START, 100.0, forecast=True, issued_s=START - 600)
    add(feed, START, 300.0, forecast=True, issued_s=START - 60)
    add(feed, START, 200.0, forecast=True, issued_s=START - 300)
    assert intensity_at(feed.site, NOW) == 300.0


def test_measured_value_counts_when_there_is_a_forecast_too(feed):
    add(feed, START, 300.0, forecast=True, issued_s=START + 3)
    add(feed, START, 250.0)
    add(feed, START + 10, 300.0, forecast=True)
    add(feed, START + 10, None)
    assert intensity_at(feed.site, NOW) == 250.0
    assert intensity_at(feed.site, moment(START + 12)) is None


def test_step_is_the_mean_over_time_when_points_are_shorter(feed):
    add(feed, START, 100.0, length_s=15.0)
    add(feed, START + 15, 500.0, length_s=45.0)
    assert intensity_steps(feed.site, moment(START), 60.0, 2) == (pytest.approx(400.0), None)


def test_step_is_unknown_when_less_than_half_of_it_is_known(feed):
    add(feed, START, 100.0, length_s=25.0)
    add(feed, START + 60, 100.0, length_s=35.0)
    assert intensity_steps(feed.site, moment(START), 60.0, 2) == (None, pytest.approx(100.0))


def test_price_of_marginal_carbon_is_not_mixed_in_when_a_site_has_both(feed):
    marginal = CarbonFeed.objects.create(site=feed.site, provider="static_csv", signal="marginal")
    add(marginal, START, -50.0)
    assert intensity_at(feed.site, NOW) is None


def test_another_sites_points_are_not_used_when_asked_for_one(feed):
    add(feed, START, 100.0)
    assert intensity_at(Site.objects.get(name="location-2"), NOW) is None


def test_routing_goes_by_marginal_rates_when_all_sites_of_a_service_have_one(feed):
    refresh_feed(feed, NOW)
    sites = list(Site.objects.filter(pools__isnull=False).distinct())

    def published():
        pools = fleet_messages.fleet_snapshot(NOW, 1).services[0].pools
        average = {pool.intensity_g_per_kwh for pool in pools if pool.site == feed.site.name}
        return average, {pool.site: pool.marginal_g_per_kwh for pool in pools}

    average, marginal = published()
    assert marginal == dict.fromkeys([site.name for site in sites])
    for n, site in enumerate(sites):
        made = CarbonFeed.objects.create(site=site, signal="marginal", provider="static_csv", source="a test")
        add(made, START, -5.0 if n == 0 else 100.0 * n)
        wanted = {site.name: 100.0 * k for k, site in enumerate(sites)} if site is sites[-1] else {}
        assert published() == (average, wanted or marginal)
    assert None not in average
