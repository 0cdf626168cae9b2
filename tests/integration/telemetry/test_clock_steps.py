"""Alerts, notices, feeds and forecasts go on when the wall clock is set; alerts say what was set back and restarted."""

from datetime import timedelta

import pytest
from django.utils import timezone

from pools import clock_repairs, wire
from pools.models import AuditEntry
from telemetry.alerts import alert_settings, evaluation, notices, upkeep_sources
from telemetry.alerts.alert_state_machine import Reading
from telemetry.carbon import feeds
from telemetry.forecasts import carbon_forecasts, load_forecasts
from telemetry.models import Alert, AlertNotice, AlertWatch, CarbonFeed, ForecastScore, LoadPoint

pytestmark = pytest.mark.django_db
TWO_HOURS = timedelta(hours=2)
RULES = alert_settings.all_rules()


@pytest.fixture
def now():
    return timezone.now()


def look(at, value, rule="node_silent"):
    reading = Reading(rule, "n1", value, f"n1 is silent: {value}")
    return evaluation.keep(RULES, [reading], [rule], at)


def looks(at, value, seconds=90):
    for second in range(0, seconds, 15):
        look(at + timedelta(seconds=second), value)
    return at + timedelta(seconds=seconds)


def upkeep(source, at):
    return list(source.read(at, RULES))


@pytest.mark.parametrize("step", [-TWO_HOURS, TWO_HOURS], ids=["back", "forth"])
def test_alerts_open_and_end_when_the_clock_is_set(db, now, step):
    at = looks(now, 60.0)
    opened = Alert.objects.get()
    at = looks(at + step, 0.0)
    opened.refresh_from_db()
    assert opened.state == Alert.AlertState.RESOLVED
    looks(at, 60.0)
    assert Alert.objects.exclude(state=Alert.AlertState.RESOLVED).count() == 1
    assert AuditEntry.objects.filter(kind="clock", object_key="watches of alerts").count() == (step < timedelta(0))


def test_waiting_begins_anew_when_a_watch_is_set_back(db, now):
    look(now, 60.0)
    look(now - TWO_HOURS, 60.0)
    watch = AlertWatch.objects.get()
    assert (watch.at, watch.breach_since) == (now - TWO_HOURS, None)
    looks(now - TWO_HOURS + timedelta(seconds=15), 60.0, seconds=30)
    assert not Alert.objects.exists()
    looks(now - TWO_HOURS + timedelta(seconds=45), 60.0, seconds=30)
    assert Alert.objects.count() == 1


def test_notice_is_sent_when_its_next_try_lies_ahead_of_the_clock(db, now):
    looks(now, 60.0)
    row = AlertNotice.objects.create(alert=Alert.objects.get(), event="raised", channel="webhook", due_at=now)
    assert notices._claim(now - timedelta(minutes=10), ()) is None
    assert notices._claim(now - TWO_HOURS, ()).pk == row.pk


def test_feeds_are_asked_at_once_when_the_clock_is_set_back(demo_rows, now):
    for step in (timedelta(0), TWO_HOURS):  # forth, and put right again
        assert len(feeds.poll(now + step)) == CarbonFeed.objects.count()
    assert len(feeds.poll(now)) == CarbonFeed.objects.count()
    assert feeds.poll(now + timedelta(seconds=1)) == ()
    assert set(CarbonFeed.objects.values_list("last_tried_at", flat=True)) == {now}
    assert not CarbonFeed.objects.filter(last_ok_at__gt=now).exists()
    assert AuditEntry.objects.filter(kind="clock", object_key="carbon feeds").count() == 1


def test_a_feed_that_cools_down_ahead_of_the_clock_is_asked_and_its_age_is_known(demo_rows, now):
    ahead = now + TWO_HOURS
    CarbonFeed.objects.update(last_tried_at=ahead, last_ok_at=ahead, cool_down_until=ahead + timedelta(hours=1))
    feeds._set_back(now)
    found = set(CarbonFeed.objects.values_list("last_tried_at", "last_ok_at", "cool_down_until"))
    assert found == {(None, now, None)}


def test_forecasts_are_scored_on_when_the_last_score_lies_ahead_of_the_clock(demo_rows, now, monkeypatch):
    feed = CarbonFeed.objects.first()
    values = {"model": "m", "quantile": 0.5, "pinball": 1.0, "origins": 1, "steps": 1, "samples": 1, "chosen": True}
    ForecastScore.objects.create(feed=feed, scored_at=now + TWO_HOURS, step_s=300.0, **values)
    scored = []
    monkeypatch.setattr(carbon_forecasts, "score", lambda one, at: scored.append(one.pk))
    assert carbon_forecasts.score_due(now, 3_600.0, 10.0) == CarbonFeed.objects.count()
    assert feed.pk in scored


def test_load_is_counted_on_when_points_lie_ahead_of_the_clock(demo_rows, now, monkeypatch):
    from telemetry.forecasts import histories

    step_s = histories.load_step_s()
    common = {"service": "s", "request_class": "", "step_s": step_s, "peak_rps": 1.0, "requests": 1}
    LoadPoint.objects.create(start_at=now + TWO_HOURS, **common)
    counted = []
    monkeypatch.setattr(load_forecasts, "_counted", lambda first, last, step_s: counted.append(last) or {})
    load_forecasts.record_load(now)
    assert len(counted) == 1


def test_alert_says_for_an_hour_that_the_clock_was_set_back(db, now):
    assert upkeep(upkeep_sources.CLOCK, now) == []
    clock_repairs.note("watermarks of GPUs", 3, now + TWO_HOURS, now)
    at = AuditEntry.objects.get().at
    (reading,) = upkeep(upkeep_sources.CLOCK, at)
    assert reading.rule == "clock_set_back"
    assert "3 watermarks of GPUs lay up to 7200 s ahead of the clock" in reading.summary
    assert upkeep(upkeep_sources.CLOCK, at + timedelta(minutes=61)) == []


def test_alert_says_for_an_hour_which_process_was_restarted_since_it_made_no_progress(db, now, redis_client):
    def tell(stalled_s):
        rows = [
            wire.ProcessRow("beat", 1, "running", 0.0, 1, "log", "no progress for 60 s", stalls=1, stalled_s=stalled_s),
            wire.ProcessRow("web", 2, "running", 0.0, 0, "log"),
        ]
        redis_client.set(wire.PROCESSES_KEY, wire.encode(wire.ProcessTable(now.timestamp(), rows)), ex=60)

    tell(30.0)
    (reading,) = upkeep(upkeep_sources.STALLS, now)
    assert (reading.rule, reading.subject, reading.value) == ("process_stalled", "beat", 1.0)
    assert reading.summary == "beat made no progress and was restarted 30 s ago, 1 times in all"
    evaluation.keep(RULES, [reading], ["process_stalled"], now)
    assert Alert.objects.get().step.startswith("`greenserve logs beat`")
    tell(4_000.0)
    assert upkeep(upkeep_sources.STALLS, now) == []


def test_upkeep_is_judged_by_the_product(settings):
    found = {rule for source in alert_settings.sources() for rule in source.rules}
    assert {"process_stalled", "clock_set_back", "rows_set_aside"} <= found
