"""The loops go on when the wall clock is set forward, put right again, or set back."""

from datetime import timedelta

import pytest

from core.types import Loop
from pools.models import AuditEntry
from scheduler import tasks
from scheduler.control import ahead_of_clock, epochs
from scheduler.models import ControllerState, DeliveryState, Epoch, WebhookDelivery, WebhookSubscription
from scheduler.webhooks import _claim
from tests.fakes.house import report_all

pytestmark = pytest.mark.django_db
TWO_HOURS = timedelta(hours=2)


def at(moment, monkeypatch, redis_client):
    """Sets the scheduler's clock, and has the nodes report by it."""
    monkeypatch.setattr(tasks.timezone, "now", lambda: moment)
    report_all(redis_client, moment)


@pytest.mark.parametrize("back", [TWO_HOURS, timedelta(days=3)], ids=["two hours", "three days"])
def test_all_loops_run_at_once_when_the_clock_is_set_back(service, redis_client, now, monkeypatch, back):
    before = now - back
    at(before, monkeypatch, redis_client)
    past = [epochs.run(service, loop, before) for loop in epochs.EPOCH_LOOPS]
    at(now, monkeypatch, redis_client)
    past += [epochs.run(service, loop, now) for loop in epochs.EPOCH_LOOPS]
    at(before, monkeypatch, redis_client)
    tasks.run_epochs("scale")
    later = Epoch.objects.exclude(pk__in=[epoch.pk for epoch in past if epoch])
    assert {epoch.kind for epoch in later} >= {"carbon", "scale"}
    assert {epoch.due_at for epoch in later} == {before}
    note = AuditEntry.objects.get(kind="clock")
    assert (note.action, note.object_key) == ("set back", f"epochs of {service}")


def test_loops_do_not_run_again_and_again_once_periods_are_given_back(service, redis_client, now, monkeypatch):
    at(now, monkeypatch, redis_client)
    for loop in epochs.EPOCH_LOOPS:
        epochs.run(service, loop, now)
    at(now - TWO_HOURS, monkeypatch, redis_client)
    tasks.run_epochs("shard")
    count = Epoch.objects.count()
    tasks.run_epochs("shard")
    assert Epoch.objects.count() == count
    assert AuditEntry.objects.filter(kind="clock").count() == 1


def test_a_period_runs_in_its_turn_though_it_was_run_ahead_of_the_clock(service, redis_client, now, monkeypatch):
    """Two hours forth, which was wrong, and put right: two hours later the same period is there again."""
    at(now, monkeypatch, redis_client)
    epochs.run(service, Loop.CARBON, now)
    ahead = epochs.run(service, Loop.CARBON, now + TWO_HOURS)
    assert ahead is not None
    at(now, monkeypatch, redis_client)
    tasks.run_epochs("carbon")
    again = epochs.run(service, Loop.CARBON, now + TWO_HOURS)
    assert again is not None
    assert again.pk != ahead.pk
    assert again.index > 0
    ahead.refresh_from_db()
    assert ahead.index < 0


def test_holds_of_the_loops_are_forgotten_when_they_end_ahead_of_the_clock(service, now):
    epochs.run(service, Loop.CARBON, now)
    ControllerState.objects.update_or_create(
        service=service, kind="scale", defaults={"value": {"hold_until_s": now.timestamp() + 60.0}}
    )
    assert ahead_of_clock.give_back(service, now - TWO_HOURS)
    assert ControllerState.objects.get(service=service, kind="scale").value == {}
    assert epochs.has_plan(service)


def test_nothing_is_given_back_when_clocks_differ_by_seconds(service, now):
    epochs.run(service, Loop.CARBON, now)
    begin = Epoch.objects.get(kind="carbon").due_at
    assert not ahead_of_clock.give_back(service, begin - timedelta(seconds=50))
    assert not AuditEntry.objects.filter(kind="clock").exists()


def test_publishing_goes_on_when_the_clock_is_set_back(service, redis_client, now, monkeypatch):
    from pools import wire

    at(now, monkeypatch, redis_client)
    epochs.run(service, Loop.CARBON, now)
    tasks.publish()
    before = wire.decode(redis_client.get(wire.FLEET_INDEX_KEY), wire.FleetIndex)
    at(now - TWO_HOURS, monkeypatch, redis_client)
    tasks.publish()
    after = wire.decode(redis_client.get(wire.FLEET_INDEX_KEY), wire.FleetIndex)
    assert after.version > before.version
    assert after.at_s == (now - TWO_HOURS).timestamp()


def test_a_delivery_is_sent_when_its_next_attempt_lies_ahead_of_the_clock(now):
    subscription = WebhookSubscription.objects.create(name="w", url="https://example.org/", events=[], secret="s")
    row = WebhookDelivery.objects.create(
        subscription=subscription, event="job.ended", subject="1", body={}, state=DeliveryState.PENDING, due_at=now
    )
    assert _claim(now - timedelta(minutes=10), ()) is None
    assert _claim(now - TWO_HOURS, ()).pk == row.pk
