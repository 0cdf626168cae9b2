"""Webhooks of subscribers: each event once, signed, tried again, and no address that is not public."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.test import Client

from core.ports import RetryableError
from pools.access.audit import Actor
from pools.models import AuditEntry, Job
from scheduler import webhooks
from scheduler.models import WebhookDelivery, WebhookSubscription
from scheduler.tasks import tell_webhooks
from telemetry.providers import provider_http
from telemetry.providers.secrets import Secret
from tests.fakes import seed
from tests.fakes.sink import receiving
from tests.oracles.webhook_signature import verified

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _private(settings, redis_client) -> None:
    """The receiver of these tests stands at the loopback."""
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "webhook_private": True}


@pytest.fixture
def receiver():
    with receiving() as found:
        yield found


@pytest.fixture
def looked_up(monkeypatch):
    """What names resolve to; those that are not named here cannot be resolved."""
    known: dict[str, str] = {}

    def resolve(host, port, timeout_s):
        if host not in known:
            raise RetryableError("cannot be resolved")
        return [{"host": known[host]}]

    monkeypatch.setattr(provider_http, "resolve", resolve)
    return known


def done(**changed) -> Job:
    values = {"kind": "report", "state": "done", "finished_at": datetime.now(UTC) + timedelta(seconds=1), **changed}
    return Job.objects.create(**values)


def test_event_arrives_once_and_signed(receiver):
    row = webhooks.subscribe(Actor(), "ops", receiver.url + "/hook", ["job.ended"])
    job = done()
    assert [tell_webhooks(), tell_webhooks()] == [1, 0]
    (got,) = receiver.received
    assert verified(Secret(row.secret), got.headers["X-GreenServe-Signature"], got.body, datetime.now().timestamp())
    body = json.loads(got.body)
    assert (body["event"], body["data"]["uid"], body["data"]["state"]) == ("job.ended", str(job.uid), "done")
    assert WebhookDelivery.objects.get().state == "sent"
    assert row.secret not in json.dumps(list(AuditEntry.objects.values("before", "after")))
    assert "/hook" not in json.dumps(list(AuditEntry.objects.values("before", "after")))


def test_what_was_before_the_subscription_is_not_sent(receiver):
    done(finished_at=datetime.now(UTC) - timedelta(minutes=1))
    webhooks.subscribe(Actor(), "ops", receiver.url, ["job.ended"])
    assert webhooks.collect(datetime.now(UTC)) == 0


def test_delivery_is_tried_again_and_given_up_and_sent_on_request(receiver):
    receiver.statuses = [503]
    webhooks.subscribe(Actor(), "ops", receiver.url, ["job.ended"])
    done()
    now = datetime.now(UTC)
    webhooks.collect(now)
    for _ in range(webhooks.TRIES):
        assert webhooks.deliver(now) == 0
        now += timedelta(seconds=webhooks.LONGEST_WAIT_S + 1)
    row = WebhookDelivery.objects.get()
    assert (row.state, row.attempts) == ("failed", webhooks.TRIES)
    assert "503" in row.error
    receiver.statuses = [200]
    assert webhooks.again(row, now)
    assert webhooks.deliver(now) == 1


def test_all_kinds_of_events_are_found(looked_up):
    seeded = seed.everything(minutes=3, rps=0.2)
    row = webhooks.subscribe(Actor(), "all", "https://ops.example.org/", list(webhooks.EVENTS))
    type(row).objects.update(created_at=seeded.now - timedelta(hours=1))
    made = webhooks.collect(datetime.now(UTC))
    assert made == WebhookDelivery.objects.filter(event="decision.made").count() > 0
    assert not WebhookDelivery.objects.filter(body__kind="clock").exists()


def test_name_that_leads_inside_is_refused_when_it_is_subscribed_or_changed(settings, looked_up):
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "webhook_private": False}
    looked_up |= {"inside.example": "10.0.0.1", "metadata.example": "169.254.169.254", "out.example": "1.1.1.1"}
    for host in ("inside.example", "metadata.example"):
        with pytest.raises(ValidationError, match="no public address") as refused:
            webhooks.subscribe(Actor(), "ops", f"https://{host}/hook", ["job.ended"])
        assert set(refused.value.message_dict) == {"url"}
    row = webhooks.subscribe(Actor(), "ops", "https://out.example/hook", ["job.ended"])
    with pytest.raises(ValidationError, match="no public address"):
        webhooks.change(Actor(), row, {"url": "https://inside.example/hook"})
    assert WebhookSubscription.objects.get().url == "https://out.example/hook"


def test_metadata_is_refused_where_private_addresses_are_allowed(looked_up):
    looked_up["metadata.example"] = "::ffff:169.254.169.254"
    for url in ("https://metadata.example/", "http://169.254.169.254/", "http://[::ffff:a9fe:a9fe]/"):
        with pytest.raises(ValidationError):
            webhooks.subscribe(Actor(), "ops", url, ["job.ended"])


def test_subscription_over_rest_shows_its_secret_once_and_refuses_private_addresses(settings, looked_up):
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "webhook_private": False}
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))

    def post(**body):
        return client.post("/api/v1/webhooks/", json.dumps(body), content_type="application/json")

    asked = {"name": "ops", "url": "https://ops.example.org/hook", "events": ["alert.opened"]}
    made = post(**asked)
    assert made.status_code == 201, made.content
    assert len(made.json()["secret"]) > 30
    found = client.get(f"/api/v1/webhooks/{made.json()['id']}/")
    assert "secret" not in found.json()
    assert post(**{**asked, "name": "b", "url": "http://ops.example.org/"}).json()["errors"][0]["field"] == "url"
    assert post(**{**asked, "name": "b", "events": ["moon.rises"]}).json()["errors"][0]["field"] == "events.0"
    changed = client.patch(
        found.wsgi_request.path,
        json.dumps({"enabled": False}),
        content_type="application/json",
        headers={"If-Match": found.headers["ETag"]},
    )
    assert changed.json()["enabled"] is False
    inside = post(**{**asked, "name": "inside", "url": "https://127.0.0.1/"}).json()["errors"][0]
    assert inside["field"] == "url"
    assert "GREENSERVE_ALERT_WEBHOOK_PRIVATE=1" in inside["detail"]
    row = webhooks.subscribe(Actor(), "inside", "https://rebinding.example/", ["job.ended"])
    looked_up["rebinding.example"] = "127.0.0.1"
    done()
    assert tell_webhooks() == 0
    delivery = WebhookDelivery.objects.get(subscription=row)
    assert delivery.state == "failed"
    assert "no public address" in delivery.error
