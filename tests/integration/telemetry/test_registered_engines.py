"""Engines that someone else runs, over Redis and PostgreSQL: measured like own ones, but for their energy."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from pools import wire
from pools.models import Instance, Service
from pools.registration.worker_hosts import WorkerHosts
from pools.simnode.engine.sim_metrics import EngineCounters, EngineGauges, render
from scheduler.control import clock_decisions
from scheduler.control.apply import apply, desired_messages, publish
from telemetry import selectors
from telemetry.ingest import ingester as ingest
from telemetry.ingest.scraper import RegisteredEngines
from telemetry.models import InstanceSample
from tests.fakes.metrics_page import MetricsPage
from tests.fakes.simnode import eventually

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool(demo_rows, redis_client):
    service = Service.objects.get()
    publish.publish(redis_client, timezone.now())
    return service.pools.filter(site__name="location-1", request_class__partition=service.partition).last()


@pytest.fixture
def page():
    with MetricsPage() as running:
        running.text = page_of(running=3, waiting=2, prompt=1000, output=500)
        yield running


@pytest.fixture
def client():
    found = Client()
    found.force_login(get_user_model().objects.create_user("viewer"))
    return found


@pytest.fixture
def engines(redis_client):
    made = RegisteredEngines(redis_client, WorkerHosts())
    yield made
    made.close()


def page_of(running, waiting, prompt, output):
    counters = EngineCounters()
    counters.prompt_tokens, counters.generation_tokens = prompt, output
    return render(counters, "m", EngineGauges(running, waiting, 0.4))


def register(client, pool, url, lease_s=60.0):
    uid = str(uuid.uuid5(uuid.NAMESPACE_URL, url))
    worker = wire.WorkerRegistration(
        *(uid, url, pool.service.name, "A100-80GB", 4, lease_s, time.time()),
        request_class=pool.request_class.name,
        site=pool.site.name,
    )
    client.set(wire.worker_key(uid), wire.encode(worker))
    client.zadd(wire.WORKERS_KEY, {uid: time.time() + lease_s})
    return uid


def published(client):
    data = client.get(wire.MEASURED_WORKERS_KEY)
    return wire.decode(data, wire.AgentState).instances if data else []


def rounds(engines, client, condition):
    """Rounds until it is true, as the thread would make them, with a second between for the engines."""
    now_s = time.time()

    def one():
        nonlocal now_s
        now_s += 1.0
        engines.round(now_s)
        return condition(published(client))

    return eventually(one, 20.0, "reading")


def ingested(client):
    ingester = ingest.Ingester(client, clock_decisions.store)
    ingester.ensure_groups()
    for _ in range(5):
        ingester.step(block_ms=1)


def test_engine_is_measured_and_shown_when_it_has_registered(pool, page, engines, redis_client, client):
    uid = register(redis_client, pool, page.url)
    (seen,) = rounds(engines, redis_client, lambda found: [i for i in found if i.running is not None])
    assert (seen.uid, seen.pool_id, seen.running, seen.waiting, seen.kv_usage) == (uid, pool.pk, 3, 2, 0.4)
    assert (seen.state, seen.power_w) == ("ready", None)
    ingested(redis_client)
    instance = Instance.objects.get(uid=uid)
    assert (instance.node, instance.pool, instance.state, instance.url) == (None, pool, "ready", page.url)
    sample = InstanceSample.objects.filter(instance=instance, running=3).latest("at")
    assert (sample.prompt_tokens_total, sample.generation_tokens_total, sample.kv_usage) == (1000.0, 500.0, 0.4)
    (row,) = selectors.pool_table(time.time() + 1.0, every=True, pool_ids=[pool.pk])
    assert (row.state, row.running, row.waiting, row.power_w, row.energy_per_token_j) == ("serving", 3, 2, None, None)
    shown = client.get(reverse("pool", args=[pool.pk])).content.decode()
    assert f"<code>{page.url}</code>, registered" in shown
    listed = client.get("/api/v1/instances/", {"pool": pool.pk}).json()
    assert [(i["uid"], i["node"]) for i in listed["results"]] == [(uid, None)]


def test_engine_is_measured_for_gateways_alone_when_the_stream_is_full(
    pool, page, engines, redis_client, monkeypatch, caplog
):
    monkeypatch.setattr(wire, "BATCH_STREAM_MOST", 2)
    register(redis_client, pool, page.url)
    rounds(engines, redis_client, lambda _: "until the stream has room again" in caplog.text)
    for engine in engines._engines.values():
        engine.row = None  # it has said nothing new
    engines._tell(time.time())
    page.text = page_of(running=4, waiting=0, prompt=2000, output=900)
    rounds(engines, redis_client, lambda found: [i for i in found if i.running == 4])
    assert redis_client.xlen(wire.BATCH_STREAM) == 2
    assert caplog.text.count("until the stream has room again") == 1
    redis_client.delete(wire.BATCH_STREAM)
    rounds(engines, redis_client, lambda _: redis_client.xlen(wire.BATCH_STREAM))


def test_plans_leave_it_alone_when_it_serves_beside_own_ones(pool, page, engines, redis_client):
    uid = register(redis_client, pool, page.url)
    rounds(engines, redis_client, lambda found: [i for i in found if i.running is not None])
    ingested(redis_client)
    apply.apply_placement(pool.service, {"loc1-a100"}, {})
    assert apply.finish_drains({}, timezone.now()) == frozenset()
    assert Instance.objects.get(uid=uid).desired == "running"
    desired = desired_messages.desired_nodes(timezone.now(), 1)
    assert all(item.uid != uid for node in desired for item in node.instances)


def test_row_ends_with_the_lease_and_lives_again_with_the_next(pool, page, engines, redis_client):
    uid = register(redis_client, pool, page.url)
    rounds(engines, redis_client, lambda found: found)
    redis_client.delete(wire.worker_key(uid))
    engines.round(time.time() + 60.0)
    ended = Instance.objects.get(uid=uid)
    assert (ended.state, ended.url) == ("stopped", "")
    assert ended.stopped_at > timezone.now() - timedelta(minutes=1)
    register(redis_client, pool, page.url)
    engines.round(time.time() + 61.0)
    again = Instance.objects.get(uid=uid)
    assert (again.state, again.stopped_at, again.url) == ("starting", None, page.url)


def test_what_an_earlier_process_left_ends_when_nobody_is_registered(pool, page, engines, redis_client):
    Instance.objects.create(pool=pool, model_card=pool.service.model_card, gpu_type="A100-80GB", tp=4, state="ready")
    engines.round(time.time())
    assert Instance.objects.get().state == "stopped"


def test_engine_is_asked_ever_less_when_it_does_not_answer(pool, page, engines, redis_client):
    register(redis_client, pool, page.url)
    page.status = 500
    (seen,) = rounds(engines, redis_client, lambda found: [i for i in found if i.state == "failed"])
    assert seen.running is None
    assert "/metrics cannot be read: 127.0.0.1" in seen.detail
    (engine,) = engines._engines.values()
    rounds(engines, redis_client, lambda _: engine.failures >= 3)
    assert engine.due_s > time.time() + 3.0
    page.status = 200
    rounds(engines, redis_client, lambda found: [i for i in found if i.running == 3])
    assert engine.failures == 0


def test_load_is_unknown_and_not_zero_when_the_engine_has_no_metrics(pool, page, engines, redis_client):
    register(redis_client, pool, page.url)
    page.status = 404
    (seen,) = rounds(engines, redis_client, lambda found: [i for i in found if i.detail])
    assert (seen.state, seen.running, seen.kv_usage) == ("ready", None, None)
    assert "answered 404" in seen.detail


def test_others_are_not_held_up_when_one_trickles(pool, page, engines, redis_client):
    with MetricsPage(trickles=True) as slow:
        stuck, uid = register(redis_client, pool, slow.url), register(redis_client, pool, page.url)

        def both(found):
            states = {i.uid: i for i in found}
            return uid in states and states[uid].running == 3 and states[stuck].state == "failed"

        rounds(engines, redis_client, both)
        assert slow.asked == 1
        engines.close()


@pytest.mark.parametrize("url", ["http://8.8.8.8:8000", "http://169.254.169.254:80", "http://example.org:80"])
def test_nobody_is_asked_where_workers_may_not_be(pool, engines, redis_client, url):
    register(redis_client, pool, url)
    engines.round(time.time())
    assert published(redis_client) == []
    assert not Instance.objects.exists()
