"""Forecasts over the database: histories, back-tests, the best model used, load counted from request records."""

import math
from datetime import timedelta

import numpy as np
import pytest

from core.ports import IntensityPoint
from pools import demo
from pools.models import Service, Site
from scheduler.control.snapshot.recorded_demand import arrivals, foreseen
from telemetry.carbon import feeds, site_signals
from telemetry.forecasts import carbon_forecasts, forecast_record, histories, load_forecasts
from telemetry.models import CarbonFeed, DemandSketch, ForecastScore, GpuSample, LoadPoint, RequestRecord
from telemetry.storage import time_partitions
from tests.fakes.house import moment, requests_came
from tests.fakes.intensity import intensity_steps

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0  # 2026-01-01 00:00
HOUR_S = 3_600.0
DAYS = 15
NOW_S = START + DAYS * 24 * HOUR_S
NOW = moment(NOW_S)


@pytest.fixture
def hourly(settings):
    """A feed's usual horizon: a day."""
    settings.GREENSERVE_BATCHES = {**settings.GREENSERVE_BATCHES, "horizon_s": 86_400.0}
    site = Site.objects.create(name="east")
    return CarbonFeed.objects.create(site=site, provider="fake")


NOISE = np.random.default_rng(1).normal(0.0, 1.0, (DAYS + 2) * 24).tolist()


def wave(hour):
    return 300.0 + 100.0 * math.sin(2 * math.pi * hour / 24)


def point(hour, value, issued_s=None, forecast=False):
    start_s = START + hour * HOUR_S
    issued_s = start_s + HOUR_S if issued_s is None else issued_s
    return IntensityPoint(
        "Z",
        start_s,
        start_s + HOUR_S,
        value,
        value,
        "gCO2e/kWh",
        "average",
        "direct",
        False,
        issued_s,
        forecast,
        "fake",
    )


def measure(feed, noise=5.0, until=DAYS * 24):
    feeds.append(feed, [point(h, wave(h) + noise * NOISE[h]) for h in range(until)], NOW)


def test_best_model_forecasts_when_the_provider_does_not(hourly):
    measure(hourly)
    scores = carbon_forecasts.score(hourly, NOW)
    hourly.refresh_from_db()
    assert hourly.forecast_model == scores[0].model != "persistence"
    stored = forecast_record.newest(feed=hourly)
    assert (stored[0].model, stored[0].chosen) == (scores[0].model, True)
    assert sum(row.chosen for row in stored) == 1
    assert all(row.mape is not None and row.pinball > 0.0 and row.samples >= 24 * 10 for row in stored)
    assert all(0.5 < row.coverage <= 1.0 and 0.0 <= row.regret < 200.0 for row in stored)
    assert stored[0].regret < {row.model: row.regret for row in stored}["persistence"]
    assert carbon_forecasts.extend(hourly, NOW) == 24
    assert carbon_forecasts.extend(hourly, NOW + timedelta(seconds=60)) == 0  # not each time
    made = hourly.points.filter(forecast=True).order_by("start_at")
    assert {(p.model, p.provider, p.estimated) for p in made} == {(scores[0].model, "greenserve", True)}
    assert made[0].start_at == NOW
    ahead = intensity_steps(hourly.site, NOW, HOUR_S, 24)
    assert np.abs(np.array(ahead) - [wave(h) for h in range(24)]).max() < 25.0


def test_feed_is_carried_forward_when_there_is_no_record_yet(hourly):
    measure(hourly, until=3)
    at = moment(START + 3 * HOUR_S)
    assert carbon_forecasts.score(hourly, at) == ()
    assert carbon_forecasts.extend(hourly, at) > 0
    hourly.refresh_from_db()
    assert hourly.forecast_model == "persistence"
    assert not ForecastScore.objects.exists()
    later = at + timedelta(hours=2)
    assert (
        site_signals.IntensityCurve(hourly.site, at, later).at(at.timestamp() + 60.0) is None
    )  # not for the inventory
    assert (
        site_signals.intensity_at(hourly.site, later)
        == hourly.points.get(start_at=at - timedelta(hours=1)).value_g_per_kwh
    )


def own(feed, error, first_day=0):
    """The provider's forecasts: each midnight and noon, 36 hours ahead."""
    for half_day in range(2 * first_day, 2 * DAYS + 1):
        issued_h = 12 * half_day
        hours = range(issued_h, issued_h + 36)
        rows = [point(h, wave(h) + 5.0 * NOISE[h] + error, START + issued_h * HOUR_S, True) for h in hours]
        feeds.append(feed, rows, moment(START + issued_h * HOUR_S))


@pytest.mark.parametrize(("error", "best"), [(0.5, ""), (150.0, "some model")])
def test_better_one_is_used_when_provider_and_models_forecast(hourly, error, best):
    measure(hourly)
    own(hourly, error)
    scores = {score.model: score for score in carbon_forecasts.score(hourly, NOW)}
    assert scores["provider"].pinball == pytest.approx(error / 2.0, abs=3.0)
    assert (scores["provider"].coverage, scores["profile"].coverage is None) == (None, False)
    assert scores["provider"].regret == pytest.approx(0.0, abs=1e-6)  # it is off, and in the right order
    hourly.refresh_from_db()
    assert bool(hourly.forecast_model) is bool(best)
    carbon_forecasts.extend(hourly, NOW)
    ahead = np.array(intensity_steps(hourly.site, NOW, HOUR_S, 12))
    off = np.abs(ahead - [wave(h) + 5.0 * NOISE[DAYS * 24 + h] for h in range(12)]).max()
    assert off < (1.0 if not best else 40.0)


def test_provider_is_believed_when_it_has_no_record_yet(hourly):
    measure(hourly)
    own(hourly, 40.0, first_day=DAYS)
    assert "provider" not in {score.model for score in carbon_forecasts.score(hourly, NOW)}
    hourly.refresh_from_db()
    assert hourly.forecast_model == ""
    assert carbon_forecasts.extend(hourly, NOW) == 0
    assert not any(row.chosen for row in forecast_record.newest(feed=hourly))


def test_coverage_is_unknown_when_intervals_take_too_long(hourly, monkeypatch):
    monkeypatch.setattr(carbon_forecasts, "INTERVALS_S", -1.0)
    measure(hourly)
    assert {score.coverage for score in carbon_forecasts.score(hourly, NOW)} == {None}
    assert all(row.regret is not None for row in forecast_record.newest(feed=hourly))


def test_provider_is_judged_by_what_it_had_said_when_it_revised_since(hourly):
    measure(hourly, noise=0.0)
    history = histories.carbon(hourly, NOW, HOUR_S)
    at = 10 * 24
    feeds.append(hourly, [point(at + 1, 1.0, START + (at - 5) * HOUR_S, True)], moment(START + (at - 5) * HOUR_S))
    feeds.append(hourly, [point(at + 1, 2.0, START + (at + 0.5) * HOUR_S, True)], moment(START + (at + 0.5) * HOUR_S))
    found = carbon_forecasts.own_forecasts(hourly, history, HOUR_S, (at - 6, at, at + 1), 3)
    assert np.isnan(found[0]).all()
    assert found[1].tolist()[1] == 1.0
    assert found[2].tolist()[0] == 2.0


def test_gap_is_no_value_when_a_history_is_made(hourly):
    feeds.append(hourly, [point(0, 100.0), point(1, None), point(3, 50.0)], NOW)
    values = histories.carbon(hourly, moment(START + 5 * HOUR_S), HOUR_S).values
    np.testing.assert_array_equal(values, [100.0, np.nan, np.nan, 50.0])


def test_feeds_take_turns_when_scoring_is_due(hourly):
    measure(hourly)
    assert carbon_forecasts.score_due(NOW, 3_600.0, 60.0) == 1
    assert carbon_forecasts.score_due(NOW + timedelta(seconds=10), 3_600.0, 60.0) == 0
    assert carbon_forecasts.score_due(NOW + timedelta(seconds=3_700), 3_600.0, 0.0) == 0
    assert carbon_forecasts.score_due(NOW + timedelta(seconds=3_700), 3_600.0, 60.0) == 1


# -- Load ------------------------------------------------------------------------------------------


@pytest.fixture
def service(settings):
    settings.DEMO_SPEEDUP = 1.0
    settings.GREENSERVE_LOOPS = {**settings.GREENSERVE_LOOPS, "carbon": {"period_s": 1_800.0, "steps": 6}}
    demo.load()
    time_partitions.ensure([NOW.date()])
    return Service.objects.first().name


def ask(service, at_s, name, count=1, status="ok"):
    RequestRecord.objects.bulk_create(
        RequestRecord(
            started_at=moment(at_s + i * 0.001),
            request_id=f"{at_s}-{name}-{i}-{status}",
            service=service,
            endpoint="chat",
            stream=False,
            status=status,
            http_status=200,
            request_class=name,
            attempts=1,
            route_reason="",
            error="",
            slo_failed="",
        )
        for i in range(count)
    )


def test_peak_is_the_fullest_five_seconds_when_load_is_counted(service):
    ask(service, NOW_S + 1.0, "SS", 3)
    ask(service, NOW_S + 3.0, "SS", 2)
    ask(service, NOW_S + 6.0, "SS", 4)
    ask(service, NOW_S + 2.0, "LL", 5)
    ask(service, NOW_S + 2.5, None, 7)
    ask(service, NOW_S + 2.5, "SS", 90, status="client_error")
    ask(service, NOW_S + 310.0, "SS", 1)
    at = moment(NOW_S + 630.0)
    written = load_forecasts.record_load(at)
    found = {
        (p.request_class, (p.start_at - NOW).total_seconds()): (p.peak_rps, p.requests) for p in LoadPoint.objects.all()
    }
    assert found == {
        ("", 0.0): (17 / 5, 21),
        ("SS", 0.0): (1.0, 9),
        ("LL", 0.0): (1.0, 5),
        ("", 300.0): (0.2, 1),
        ("SS", 300.0): (0.2, 1),
    }
    assert written == 5
    ask(service, NOW_S + 400.0, "SS", 20)  # that came late
    load_forecasts.record_load(moment(NOW_S + 930.0))
    assert LoadPoint.objects.get(request_class="SS", start_at=moment(NOW_S + 300.0)).peak_rps == 4.0
    assert LoadPoint.objects.count() == 5


def test_each_request_counts_once_when_its_sketch_is_forgotten_and_when_it_is_not(service):
    time_partitions.ensure({(NOW - timedelta(hours=3)).date()})
    for hours in (0.5, 1.5, 3.0):
        ask(service, NOW_S - hours * 3_600.0, "SS", 5)
    DemandSketch.objects.filter(start_at__lt=NOW - timedelta(hours=2)).delete()
    load_forecasts.record_load(moment(NOW_S + 30.0))
    found = LoadPoint.objects.filter(request_class="SS").order_by("start_at").values_list("peak_rps", "requests")
    assert list(found) == [(1.0, 5)] * 3


def test_quiet_step_is_zero_when_gpus_were_sampled_in_it(service):
    ask(service, NOW_S + 1.0, "SS")
    GpuSample.objects.create(at=moment(NOW_S + 400.0), gpu_id=1)
    load_forecasts.record_load(moment(NOW_S + 930.0))
    steps = {(p.start_at - NOW).total_seconds(): p.peak_rps for p in LoadPoint.objects.filter(request_class="SS")}
    assert steps == {0.0: 0.2, 300.0: 0.0}  # in the third nobody knows


@pytest.mark.slow("weeks of load, by every model")
def test_next_six_steps_are_forecast_by_class_when_weeks_are_known(service):
    step_s = 300.0
    rng = np.random.default_rng(4)
    first = round(NOW_S / step_s) - 15 * 288
    for name, scale in (("", 3.0), ("SS", 1.0)):
        LoadPoint.objects.bulk_create(
            LoadPoint(
                service=service,
                request_class=name,
                start_at=moment(step * step_s),
                step_s=step_s,
                peak_rps=scale * float(rng.poisson(20 + 15 * math.sin(2 * math.pi * step / 288))) / 5,
                requests=1,
            )
            for step in range(first, first + 15 * 288)
        )
    load_forecasts.score_due(NOW, 3_600.0, 600.0)
    found = load_forecasts.upcoming(service, NOW + timedelta(seconds=30))
    assert set(found) == {"", "SS"}
    ss = found["SS"]
    assert (len(ss.rates_rps), ss.start_s, ss.step_s) == (6, NOW_S, 300.0)
    assert all(upper >= middle for upper, middle in zip(ss.rates_rps, ss.median_rps, strict=True))
    assert max(abs(middle - 4.0) for middle in ss.median_rps) < 2.0
    assert [row.chosen for row in ss.record] == [True] + [False] * (len(ss.record) - 1)
    assert ss.model == ss.record[0].model
    assert {row.quantile for row in ss.record} == {load_forecasts.QUANTILE}


def test_load_is_carried_forward_when_it_was_never_scored(service):
    ask(service, NOW_S + 1.0, "SS", 5)
    load_forecasts.record_load(moment(NOW_S + 330.0))
    found = load_forecasts.upcoming(service, moment(NOW_S + 330.0))["SS"]
    assert (found.model, found.median_rps, found.record) == ("persistence", (1.0,) * 6, ())


def risen(service, peaks, model="day ago"):
    """A day of load, as peaks by the hour, twice; `model` was found best."""
    first = round(NOW_S / 300.0) - 2 * 288
    LoadPoint.objects.bulk_create(
        LoadPoint(
            service=service,
            request_class="",
            start_at=moment(step * 300.0),
            step_s=300.0,
            peak_rps=peaks(step % 288),
            requests=1,
        )
        for step in range(first, first + 2 * 288)
    )
    if model:
        ForecastScore.objects.create(
            service=service, model=model, scored_at=NOW, step_s=300.0, steps=6, origins=1, samples=24, quantile=0.9,
            pinball=0.1, chosen=True,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("peak", "model", "step_s", "rates"),
    [
        (lambda at: 4.0 if at < 3 else 2.0, "day ago", 300.0, (2.0, 2.0, 2.0, 1.0, 1.0, 1.0)),  # a rise is seen coming
        (lambda at: 0.5, "day ago", 300.0, (1.0,) * 6),  # what was seen recently is the least
        (lambda at: 900.0, "day ago", 300.0, (4.0,) * 6),
        (lambda at: 4.0, None, 300.0, (1.0,) * 6),  # it has no record
        (lambda at: 4.0, "day ago", 10.0, (1.0,) * 6),  # the loop's steps are others
    ],
)
def test_demand_rises_when_the_best_model_foresees_it(service, peak, model, step_s, rates):
    risen(service, peak, model)
    requests_came(NOW, count=10, over_s=5.0)  # 2 requests a second, for 5 seconds
    own = Service.objects.get(name=service)
    seen = foreseen(arrivals(own, NOW, 1_800.0), own, NOW, step_s, 6)
    assert seen.peak_rps == 2.0
    assert (seen.rise or (1.0,) * 6) == pytest.approx(rates)
