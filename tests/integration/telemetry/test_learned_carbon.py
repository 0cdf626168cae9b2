"""Models that learn from a feed's past: learned once a day, judged on what they never saw, used where they are best."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.predictors import carbon_training
from core.predictors.seasonal import History
from pools.models import Site
from telemetry.carbon import feeds
from telemetry.forecasts import carbon_forecasts, forecast_record, histories, learned_carbon
from telemetry.models import CarbonFeed, CarbonPoint, LearnedForecast
from tests.fakes.house import moment

pytestmark = pytest.mark.django_db
START_S = 1_767_225_600.0  # 2026-01-01 00:00
HOUR_S = 3_600.0
DAYS = 80
NOW = moment(START_S + DAYS * 24 * HOUR_S)


@pytest.fixture
def feed(monkeypatch, settings):
    settings.GREENSERVE_BATCHES = {**settings.GREENSERVE_BATCHES, "horizon_s": 86_400.0}
    monkeypatch.setattr(carbon_training, "TREES", 8)
    monkeypatch.setattr(carbon_training, "EVERY_HOURS", 23)
    return CarbonFeed.objects.create(site=Site.objects.create(name="east"), provider="fake")


def measure(feed, days, first=0):
    """Stores a day's course whose height wanders and comes back to 300 g/kWh."""
    rng, level, rows = np.random.default_rng(3), 0.0, []
    for hour in range(days * 24):
        level = 0.97 * level + rng.normal(0.0, 6.0)
        start = moment(START_S + hour * HOUR_S)
        value = 300.0 + 60.0 * math.sin(2 * math.pi * hour / 24) + level
        rows.append(
            CarbonPoint(
                feed=feed,
                start_at=start,
                end_at=start + timedelta(hours=1),
                issued_at=start,
                value_g_per_kwh=value,
                raw_value=value,
                raw_unit="gCO2e/kWh",
                factor="direct",
                forecast=False,
            )
        )
    CarbonPoint.objects.bulk_create(rows[first * 24 :])


def test_a_learned_model_is_scored_with_the_others_when_the_past_is_long(feed):
    measure(feed, DAYS)
    assert learned_carbon.learn_due(NOW, 60.0) == 1
    row = LearnedForecast.objects.get(feed=feed)
    assert (row.learned_at, row.hours, row.note) == (NOW, (DAYS - 14) * 24, "")
    scores = {score.model: score for score in carbon_forecasts.score(feed, NOW)}
    assert scores["trees"].pinball < scores["week ago"].pinball < scores["persistence"].pinball
    assert scores["trees"].samples == scores["day ago"].samples
    assert "trees" in {one.model for one in forecast_record.newest(feed=feed)}
    CarbonFeed.objects.filter(pk=feed.pk).update(forecast_model="trees")
    feed.refresh_from_db()
    assert carbon_forecasts.extend(feed, NOW) >= 24
    made = feed.points.filter(forecast=True, model="trees")
    assert made.order_by("start_at").first().start_at == NOW
    assert all(150.0 < value < 450.0 for value in made.values_list("value_g_per_kwh", flat=True))


def test_a_model_is_learned_again_when_a_day_is_over(feed):
    measure(feed, DAYS)
    assert learned_carbon.learn_due(NOW, 60.0) == 1
    assert learned_carbon.learn_due(NOW + timedelta(hours=23), 60.0) == 0
    assert learned_carbon.learn_due(NOW + timedelta(hours=24), 60.0) == 1
    assert learned_carbon.learn_due(NOW, 0.0) == 0


def test_nothing_is_learned_when_the_past_is_short(feed):
    measure(feed, DAYS, first=10)
    assert learned_carbon.learn_due(NOW, 60.0) == 0
    row = LearnedForecast.objects.get(feed=feed)
    assert row.note == "56 days are known, and 60 are needed to learn from; the last 14 days are kept for back-tests"
    assert row.model is None
    assert learned_carbon.models(feed, NOW) == {}
    assert "trees" not in {score.model for score in carbon_forecasts.score(feed, NOW)}


def test_nothing_is_learned_when_values_may_be_negative_or_days_are_short(feed):
    CarbonFeed.objects.filter(pk=feed.pk).update(config={"speedup": 60})
    CarbonFeed.objects.create(site=feed.site, provider="fake", signal="marginal")
    assert learned_carbon.learn_due(NOW, 60.0) == 0
    assert not LearnedForecast.objects.exists()


def test_others_are_learned_when_one_fails(feed, monkeypatch):
    measure(feed, DAYS)
    CarbonFeed.objects.create(site=Site.objects.create(name="west"), provider="fake")
    real = histories.carbon

    def broken(one, *rest):
        if one.site.name == "west":
            raise RuntimeError("broken")
        return real(one, *rest)

    monkeypatch.setattr(histories, "carbon", broken)
    assert learned_carbon.learn_due(NOW, 60.0) == 1
    assert LearnedForecast.objects.get(feed__site__name="west").note == "learning failed; the server's log says why"


def test_a_model_is_left_out_when_it_cannot_be_read(feed):
    LearnedForecast.objects.create(feed=feed, tried_at=NOW, learned_at=NOW, hours=1500, model=b"no model")
    assert learned_carbon.models(feed, NOW) == {}
    assert feeds.zone(feed) == feed.zone


def test_the_learned_model_is_not_read_when_another_one_forecasts(feed):
    measure(feed, DAYS)
    LearnedForecast.objects.create(feed=feed, tried_at=NOW, learned_at=NOW, hours=1500, model=b"no model")
    CarbonFeed.objects.filter(pk=feed.pk).update(forecast_model="profile")
    feed.refresh_from_db()
    with CaptureQueriesContext(connection) as asked:
        assert carbon_forecasts.extend(feed, NOW) >= 24
    assert not any(LearnedForecast._meta.db_table in query["sql"] for query in asked)


def test_steps_have_their_hours_value_when_they_are_shorter(feed):
    measure(feed, DAYS)
    learned_carbon.learn(feed, NOW)
    model = learned_carbon.models(feed, NOW)["trees"]
    hourly = histories.carbon(feed, NOW, HOUR_S)
    fine = History(np.repeat(hourly.values, 12), hourly.first_step * 12, 288, 0.0)
    by_hour, by_step = model(hourly, 30, 0.5), model(fine, 30 * 12, 0.5)
    np.testing.assert_allclose(by_step, np.repeat(by_hour, 12))
    late = History(fine.values[:-5], fine.first_step, 288, 0.0)  # within an hour: it begins with its own
    assert model(late, 12, 0.5)[:5].tolist() == [model(late, 12, 0.5)[0]] * 5
    assert np.isnan(model(History(np.ones(700), 0, 7, 0.0), 4, 0.5)).all()
