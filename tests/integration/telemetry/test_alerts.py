"""Alerts from what is stored to who is notified: raised once, sent once, ended once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.db import IntegrityError, transaction

from greenserve.mail import parse
from pools import agent_versions, wire
from pools.access.audit import Actor
from pools.models import Node, Pool, Site
from scheduler.models import Epoch
from scheduler.operations import pauses
from telemetry.alerts import evaluation, notices, slo_minutes, webhook
from telemetry.models import (
    Alert,
    AlertNotice,
    AlertSilence,
    AlertWatch,
    CarbonFeed,
    EnergyRollup,
    GpuSample,
    InstanceSample,
    MeterMark,
    RequestRecord,
    SloMinute,
)
from telemetry.providers.secrets import Secret
from telemetry.storage import time_partitions
from tests.fakes import seed
from tests.fakes.sink import Sink, receiving
from tests.oracles.webhook_signature import verified

pytestmark = pytest.mark.django_db
SECRET = Secret("a-shared-secret-of-ours")
PERIOD = timedelta(seconds=15)


@pytest.fixture(autouse=True)
def _redis(redis_client) -> None:
    """Without our keys before and after."""


@pytest.fixture
def sink(settings):
    with receiving() as found:
        settings.GREENSERVE_ALERTS = {
            **settings.GREENSERVE_ALERTS,
            "webhook_url": Secret(f"{found.url}/hook?token=hidden"),
            "webhook_secret": SECRET,
            "webhook_private": True,
        }
        yield found


@dataclass
class AlertBench:
    """A fleet whose clock the test moves."""

    seeded: seed.Seeded
    now: datetime

    def rounds(self, count: int = 1, before: Callable[[], object] = lambda: None) -> None:
        for _ in range(count):
            self.now += PERIOD
            before()
            evaluation.run(self.now)
            notices.deliver(self.now)

    def of(self, rule: str) -> list[Alert]:
        return list(Alert.objects.filter(rule=rule))

    def feeds_answer(self) -> None:
        CarbonFeed.objects.update(last_ok_at=self.now)


@pytest.fixture
def bench(settings) -> AlertBench:
    """Nodes are left out, as these tests have no agents; and this machine's disks."""
    seeded = seed.fleet(datetime.now(UTC).replace(microsecond=0))
    time_partitions.ensure([(seeded.now + timedelta(days=day)).date() for day in range(-4, 2)])
    seed.feeds(seeded, seeded.now)
    sources = [path for path in settings.GREENSERVE_ALERTS["sources"] if not path.endswith(("NODES", "FOLDERS"))]
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "sources": sources}
    settings.GREENSERVE_CARBON_REFRESH_S = 20.0
    return AlertBench(seeded, seeded.now)


@pytest.fixture
def stale(bench: AlertBench) -> AlertBench:
    """One feed has not answered for ten minutes; the others do."""
    bench.seeded.now = bench.now
    CarbonFeed.objects.filter(site=bench.seeded.sites[0]).update(
        last_ok_at=bench.now - timedelta(minutes=10), last_error="gone"
    )
    return bench


def sent(sink: Sink) -> list[tuple[str, str]]:
    found = [json.loads(one.body) for one in sink.received]
    return [(one["event"], one["alert"]["rule"]) for one in found]


def test_stale_feed_raises_tells_once_and_ends(stale, sink):
    stale.rounds(4)
    (alert,) = Alert.objects.all()
    assert (alert.rule, alert.subject, alert.state) == ("feed_stale", "location-1/average", "open")
    assert "has not answered for" in alert.summary
    assert "gone" in alert.summary
    assert alert.value > 600
    assert sent(sink) == [("raised", "feed_stale")]
    stale.rounds(3, stale.feeds_answer)
    alert.refresh_from_db()
    assert alert.state == "resolved"
    assert alert.resolved_at == stale.now or alert.resolved_at < stale.now
    assert sent(sink) == [("raised", "feed_stale"), ("resolved", "feed_stale")]
    assert not AlertWatch.objects.exists()


def test_feed_that_is_asked_seldom_is_given_as_much_longer_before_it_is_stale(stale, sink):
    CarbonFeed.objects.filter(last_error="gone").update(refresh_s=300.0)  # late after 905 s: ten minutes are fine
    stale.rounds(2)
    assert not Alert.objects.exists()
    CarbonFeed.objects.filter(last_error="gone").update(refresh_s=190.0)  # after 575 s
    stale.rounds(2)
    assert "has not answered for" in Alert.objects.get().summary


def test_webhook_is_signed_and_carries_its_delivery(stale, sink):
    stale.rounds()
    (one,) = sink.received
    assert one.path == "/hook?token=hidden"
    header = one.headers[webhook.SIGNATURE_HEADER]
    at_s = int(header.split(",")[0].removeprefix("t="))
    assert verified(SECRET, header, one.body, at_s)
    assert not verified(SECRET, header, one.body + b" ", at_s)
    assert not verified(SECRET, header, one.body, at_s + 301)
    assert not verified(Secret("another-secret-altogether"), header, one.body, at_s)
    (notice,) = AlertNotice.objects.all()
    assert one.headers["X-GreenServe-Delivery"] == str(notice.uid) == json.loads(one.body)["id"]
    assert (notice.state, notice.attempts) == ("sent", 1)


def test_nothing_doubles_when_a_round_is_run_again_or_late(stale, sink):
    stale.rounds()
    for at in (stale.now, stale.now - timedelta(seconds=40), stale.now):
        evaluation.run(at)
        notices.deliver(stale.now)
    assert len(Alert.objects.all()) == 1
    assert sent(sink) == [("raised", "feed_stale")]


def test_database_refuses_a_second_open_alert_of_the_same(stale):
    stale.rounds()
    alert = Alert.objects.get()
    alert.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        alert.save(force_insert=True)


def test_notice_is_sent_again_after_a_while_when_the_receiver_fails(stale, sink, caplog):
    sink.statuses = [503, 204]
    stale.rounds()
    notice = AlertNotice.objects.get()
    assert (notice.state, notice.attempts, notice.error) == ("pending", 1, "webhook: 127.0.0.1 answered 503")
    stale.rounds()
    notice.refresh_from_db()
    assert (notice.state, notice.attempts) == ("sent", 2)
    assert sent(sink) == [("raised", "feed_stale")] * 2
    assert len({json.loads(one.body)["id"] for one in sink.received}) == 1
    assert "hidden" not in caplog.text
    assert SECRET.reveal() not in caplog.text


def test_notice_is_given_up_when_the_receiver_refuses(stale, sink):
    sink.statuses = [404]
    stale.rounds(3)
    assert AlertNotice.objects.get().state == "failed"
    assert len(sink.received) == 1


def test_redirect_is_not_followed(stale, sink):
    sink.statuses = [307]
    sink.headers = {"Location": f"{sink.url}/elsewhere"}
    stale.rounds()
    assert [one.path for one in sink.received] == ["/hook?token=hidden"]
    assert AlertNotice.objects.get().state == "failed"


def test_private_address_is_refused_unless_allowed(stale, sink, settings):
    settings.GREENSERVE_ALERTS = {
        **settings.GREENSERVE_ALERTS,
        "webhook_private": False,
        "webhook_url": Secret("https://127.0.0.1/hook"),
    }
    stale.rounds()
    notice = AlertNotice.objects.get()
    assert (notice.state, sink.received) == ("failed", [])
    assert "an address of its own network" in notice.error


def test_nobody_is_notified_while_silenced_but_all_can_see_it(stale, sink):
    evaluation.silence("feed_stale", "", 60.0, "maintenance", None, stale.now)
    stale.rounds(3)
    assert Alert.objects.get().state == "open"
    assert sink.received == []
    stale.rounds()
    assert sent(sink) == [("raised", "feed_stale")]


def test_silence_of_another_subject_keeps_nobody_quiet_and_can_be_ended(stale, sink):
    other = evaluation.silence("feed_stale", "location-9/average", 600.0, "", None, stale.now)
    stale.rounds()
    assert sent(sink) == [("raised", "feed_stale")]
    assert evaluation.end_silence(other.pk, stale.now)
    assert not evaluation.end_silence(other.pk, stale.now)


def test_end_of_an_alert_that_nobody_heard_of_is_not_sent(stale, sink):
    evaluation.silence("feed_stale", "", 3_600.0, "", None, stale.now)
    stale.rounds()
    stale.rounds(4, stale.feeds_answer)
    assert Alert.objects.get().state == "resolved"
    assert sink.received == []


@pytest.mark.parametrize(
    ("rule", "length_s", "words"),
    [("no_such", 600.0, "rule: there is none"), ("feed_stale", 1.0, "for_s"), ("feed_stale", float("nan"), "for_s")],
)
def test_bad_silence_is_refused_by_name(bench, rule, length_s, words):
    with pytest.raises(ValueError, match=words):
        evaluation.silence(rule, "", length_s, "", None, bench.now)
    assert not AlertSilence.objects.exists()


def test_alert_can_be_acknowledged_once(stale):
    user = get_user_model().objects.create_user("operator")
    stale.rounds()
    alert = Alert.objects.get()
    assert evaluation.acknowledge(alert.pk, user, stale.now)
    assert not evaluation.acknowledge(alert.pk, user, stale.now)
    stale.rounds()
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_by) == ("acknowledged", user)


def test_mail_says_what_and_what_next(stale, settings):
    settings.MAIL_SERVER = parse("smtp+plain://localhost")
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "emails": ("ops@example.org",)}
    stale.rounds(2)
    stale.rounds(4, stale.feeds_answer)
    raised, over = mail.outbox
    assert raised.to == ["ops@example.org"]
    assert raised.subject.startswith("[GreenServe] alert: The average carbon feed of Location 1")
    assert "Next: greenserve logs epochs" in raised.body
    assert over.subject.startswith("[GreenServe] over: ")


def test_burn_of_the_error_budget_raises_and_ends_with_its_cause(bench, sink):
    def requests(at: datetime, count: int, met: bool) -> None:
        RequestRecord.objects.bulk_create(
            RequestRecord(
                started_at=at + timedelta(milliseconds=n), request_id=f"{at.timestamp()}-{n}", service="llama3-70b",
                endpoint="chat", stream=True, status="ok", http_status=200, ttft_s=1.0, e2e_s=1.0, attempts=1,
                slo_met=met, slo_failed="" if met else "ttft",
            )
            for n in range(count)
        )  # fmt: skip

    for minute in range(58, 0, -2):
        requests(bench.now - timedelta(minutes=minute), 10, met=minute > 20)
    bench.feeds_answer()
    bench.rounds()
    (alert,) = bench.of("slo_burn_fast")
    assert alert.subject == "llama3-70b/ttft"
    assert 14.4 <= alert.value <= 100.0
    assert {one.subject for one in bench.of("slo_burn_slow")} == {"llama3-70b/ttft"}
    for _ in range(36):  # ten minutes of good answers
        bench.feeds_answer()
        requests(bench.now, 10, met=True)
        bench.rounds()
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_minutes_are_the_same_however_often_they_are_counted_and_late_records_count(bench):
    def record(n: int, at: datetime, met: bool = True, status: str = "ok") -> None:
        RequestRecord.objects.create(
            started_at=at, request_id=str(n), service="llama3-70b", endpoint="chat", stream=True, status=status,
            http_status=200, ttft_s=0.5 if status == "ok" else None, e2e_s=30.0, attempts=1, slo_met=met,
            slo_failed="" if met else "e2e,tpot,ttft",
        )  # fmt: skip

    for n in range(6):
        record(n, bench.now - timedelta(minutes=n), met=n != 3)
    slo_minutes.refresh(bench.now)
    before = list(SloMinute.objects.order_by("pk").values_list("kind", "start_at", "judged", "within"))
    assert slo_minutes.refresh(bench.now) == 0
    assert list(SloMinute.objects.order_by("pk").values_list("kind", "start_at", "judged", "within")) == before
    record(99, bench.now - timedelta(minutes=10), met=False, status="upstream_error")
    assert slo_minutes.refresh(bench.now) == 3
    total = {kind: (j, w) for kind, j, w in _totals()}
    assert total == {"ttft": (7, 5), "e2e": (7, 5), "tpot": (1, 0)}


def _totals() -> list[tuple[str, int, int]]:
    from django.db.models import Sum

    return list(SloMinute.objects.values_list("kind").annotate(Sum("judged"), Sum("within")).order_by("kind"))


def test_silent_node_raises_by_its_last_sample_and_ends_when_its_agent_speaks(bench, settings, redis_client):
    settings.GREENSERVE_ALERTS = {
        **settings.GREENSERVE_ALERTS, "sources": ["telemetry.alerts.sources.NODES"],
    }  # fmt: skip
    names = list(Node.objects.values_list("name", flat=True))

    def speak(names: list[str]) -> None:
        for name in names:
            state = wire.AgentState(name, "boot", bench.now.timestamp(), 1, [])
            redis_client.set(wire.agent_key(name), wire.encode(state), ex=60)

    GpuSample.objects.create(at=bench.now - timedelta(seconds=90), gpu=bench.seeded.gpus[0], power_w=1.0)
    silent = bench.seeded.gpus[0].node.name
    bench.rounds(4, lambda: speak([name for name in names if name != silent]))
    (alert,) = Alert.objects.all()
    assert alert.subject == silent
    assert alert.value == pytest.approx(150.0)
    assert alert.step == f"`greenserve logs node.{silent}`"
    bench.rounds(4, lambda: speak(names))
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_agent_that_is_too_old_is_named_until_a_later_one_reports(bench, settings, redis_client, monkeypatch):
    settings.GREENSERVE_ALERTS = {
        **settings.GREENSERVE_ALERTS, "sources": ["telemetry.alerts.sources.NODES"],
    }  # fmt: skip
    monkeypatch.setattr(agent_versions, "LEAST", "0.2.0")
    names = list(Node.objects.values_list("name", flat=True))

    def speak(version: str) -> None:
        for name in names:
            own = version if name == names[0] else "0.2.0"
            state = wire.AgentState(name, "boot", bench.now.timestamp(), 1, [], version=own)
            redis_client.set(wire.agent_key(name), wire.encode(state), ex=60)

    bench.rounds(1, lambda: speak(""))
    (alert,) = Alert.objects.all()
    assert (alert.rule, alert.subject) == ("agent_too_old", names[0])
    assert "of GreenServe 0.1.0, and this control plane works with 0.2.0 and later" in alert.summary
    assert alert.step == f"Install a later GreenServe on node {names[0]}, and start its agent again"
    bench.rounds(6, lambda: speak("0.2.1"))
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_nothing_changes_when_redis_is_away(bench, settings):
    settings.GREENSERVE_ALERTS = {
        **settings.GREENSERVE_ALERTS, "sources": ["telemetry.alerts.sources.NODES"],
    }  # fmt: skip
    bench.rounds(4)
    assert Alert.objects.exclude(state="resolved").count() == Node.objects.count()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    bench.rounds(8)
    assert Alert.objects.exclude(state="resolved").count() == Node.objects.count()


def rollup(site: Site, at: datetime, step_s: int, kind: str, energy_uj: int) -> None:
    EnergyRollup.objects.create(
        step_s=step_s, start_at=at, site=site, kind=kind, energy_uj=energy_uj, gpu_us=0, carbon_gco2e=0.0,
        unknown_uj=0, until=at,
    )  # fmt: skip


def test_ledger_that_does_not_balance_raises_and_one_that_does_stays_quiet(bench):
    site, other = bench.seeded.sites[:2]
    today = bench.now.replace(hour=0, minute=0, second=0)
    for which, entered in ((site, 98_000_000), (other, 100_000_000)):
        gpu = next(gpu for gpu in bench.seeded.gpus if gpu.node.cluster.site_id == which.pk)
        MeterMark.objects.create(gpu=gpu, at=bench.now, energy_uj=100_000_000, opened_at=today, opened_energy_uj=0)
        rollup(which, today, 86_400, "serving", entered)
    bench.rounds(6, bench.feeds_answer)
    (alert,) = bench.of("ledger_imbalance")
    assert (alert.subject, alert.level) == (site.name, "bad")
    assert alert.value == pytest.approx(2 / 98)


def test_unattributed_energy_raises(bench):
    site = bench.seeded.sites[0]
    for _ in range(24):
        bench.feeds_answer()
        at = bench.now
        rollup(site, at, 60, "serving", 90_000_000)
        rollup(site, at, 60, "unattributed", 10_000_000)
        bench.rounds()
    assert [alert.value for alert in bench.of("energy_unattributed")] == [pytest.approx(0.1)]


def test_power_near_the_cap_raises_a_warning_and_above_it_something_worse(bench):
    site = bench.seeded.sites[0]
    gpus = [gpu for gpu in bench.seeded.gpus if gpu.node.cluster.site_id == site.pk]
    Site.objects.filter(pk=site.pk).update(power_cap_w=1_000.0 * len(gpus))
    for share, level in ((0.95, "warn"), (1.01, "bad")):
        for _ in range(6):
            bench.feeds_answer()
            at = bench.now + PERIOD
            GpuSample.objects.bulk_create(GpuSample(at=at, gpu=gpu, power_w=1_000.0 * share) for gpu in gpus)
            bench.rounds()
        (alert,) = bench.of("power_near_cap")
        assert (alert.subject, alert.level) == (site.name, level)
        assert alert.value == pytest.approx(share)


def test_site_that_is_partly_unheard_can_raise_but_not_end(bench):
    site = bench.seeded.sites[0]
    gpus = [gpu for gpu in bench.seeded.gpus if gpu.node.cluster.site_id == site.pk]
    Site.objects.filter(pk=site.pk).update(power_cap_w=1_000.0)
    for heard in (gpus[:1], gpus[:1]):
        for _ in range(6):
            bench.feeds_answer()
            at = bench.now + PERIOD
            power_w = 950.0 if not bench.of("power_near_cap") else 10.0
            GpuSample.objects.bulk_create(GpuSample(at=at, gpu=gpu, power_w=power_w) for gpu in heard)
            bench.rounds()
    assert [alert.state for alert in bench.of("power_near_cap")] == ["open"]


def test_growing_queue_raises_and_a_shrinking_one_does_not(bench):
    one, two = bench.seeded.instances[:2]
    for n in range(30):
        bench.feeds_answer()
        at = bench.now + PERIOD
        InstanceSample.objects.create(at=at, instance=one, state="ready", waiting=3 * n)
        InstanceSample.objects.create(at=at, instance=two, state="ready", waiting=90 - 3 * n)
        bench.rounds()
    (alert,) = bench.of("queue_growing")
    pool = Pool.objects.get(pk=one.pool_id)
    assert alert.subject == f"llama3-70b/{pool.site.name}/{pool.request_class.name}"


def epoch(bench, index: int, status: str) -> None:
    at = bench.now
    Epoch.objects.create(
        kind="carbon", service=bench.seeded.service, index=index, period_s=60.0, due_at=at, started_at=at,
        finished_at=at, status=status, error="the solver died" if status == "failed" else "",
    )  # fmt: skip


def test_failed_epoch_raises_with_its_decision_and_ends_with_the_next_that_is_well(bench):
    epoch(bench, 1, "failed")
    bench.feeds_answer()
    bench.rounds()
    (alert,) = bench.of("epoch_failed")
    assert (alert.subject, alert.level, alert.value) == ("llama3-70b/carbon", "bad", 1.0)
    assert "the solver died" in alert.summary
    epoch(bench, 2, "applied")
    bench.rounds(6, bench.feeds_answer)
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_alert_of_a_failed_epoch_ends_when_somebody_pauses_the_loop(bench):
    epoch(bench, 1, "failed")
    bench.feeds_answer()
    bench.rounds()
    (alert,) = bench.of("epoch_failed")
    pauses.pause(Actor(), bench.seeded.service, "carbon", "the solver is being looked at")
    bench.rounds(6, bench.feeds_answer)
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_instance_that_falls_over_again_and_again_raises(bench):
    instance, other = bench.seeded.instances[:2]
    type(instance).objects.filter(pk=instance.pk).update(state="failed", detail="out of memory")
    for n in range(60):
        state = "failed" if n % 10 < 4 else "starting"
        at = bench.now - timedelta(seconds=10 * n)
        InstanceSample.objects.create(at=at, instance=instance, state=state)
        InstanceSample.objects.create(at=at, instance=other, state="ready")
    bench.feeds_answer()
    bench.rounds()
    (alert,) = bench.of("crash_loop")
    assert alert.subject == str(instance.uid)
    assert alert.value == 6.0
    assert "out of memory" in alert.summary


def test_alert_of_a_rule_that_is_gone_ends(stale):
    stale.rounds()
    Alert.objects.update(rule="of_old")
    evaluation.tidy(stale.now)
    assert Alert.objects.get().state == "resolved"


def test_channel_that_fails_is_left_alone_until_the_next_time(stale, sink):
    sink.statuses = [503]
    CarbonFeed.objects.update(last_ok_at=stale.now - timedelta(minutes=10))
    stale.rounds()
    assert Alert.objects.count() == 3
    assert len(sink.received) == 1
    assert sorted(AlertNotice.objects.values_list("attempts", flat=True)) == [0, 0, 1]
    sink.statuses = [204]
    stale.rounds(2)
    assert set(AlertNotice.objects.values_list("state", flat=True)) == {"sent"}


def test_end_is_sent_after_the_beginning(stale, sink):
    sink.statuses = [503]
    stale.rounds()
    sink.statuses = [204]
    AlertNotice.objects.update(due_at=stale.now + timedelta(minutes=25))
    stale.rounds(4, stale.feeds_answer)
    assert Alert.objects.get().state == "resolved"
    assert sent(sink) == [("raised", "feed_stale")]
    stale.now += timedelta(minutes=25)
    notices.deliver(stale.now)
    assert sent(sink)[1:] == [("raised", "feed_stale"), ("resolved", "feed_stale")]
