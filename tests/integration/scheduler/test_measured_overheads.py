"""The Overhead Table as people and plans see it: what starts took, by their rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from core.engine.overhead_table import start_key, wake_key
from pools.models import Instance, Node, Service
from scheduler.control.snapshot import measured_overheads
from tests.fakes.house import start_instance

pytestmark = pytest.mark.django_db
CHANGE = "warm start of Llama3-70B on A100-80GB/TP4"


@pytest.fixture
def service(demo_rows):
    return Service.objects.get()


def started(pool, took_s, ago_s, node="loc1-a100", kind=""):
    """A row of an instance that was ready so long ago, and took so long to be."""
    ready_at = timezone.now() - timedelta(seconds=ago_s)
    made = start_instance(pool, Node.objects.get(name=node), tp=4, state="ready", start_kind=kind)
    Instance.objects.filter(pk=made.pk).update(ready_at=ready_at, created_at=ready_at - timedelta(seconds=took_s))
    made.gpu_holds.all().delete()
    return made


def signed_in():
    found = Client()
    found.force_login(get_user_model().objects.create_user("viewer"))
    return found


def test_page_and_rest_show_what_starts_took(service):
    pool = service.pools.first()
    for took_s, ago_s in ((40.0, 300.0), (50.0, 200.0), (30.0, 100.0)):
        started(pool, took_s, ago_s)
    client = signed_in()
    (row,) = client.get("/api/v1/overheads/", {"model": "Llama3-70B"}).json()["results"]
    assert (row["change"], row["count"]) == (CHANGE, 3)
    assert [row[name] for name in ("least_s", "most_s")] == pytest.approx([30.0, 50.0])
    assert row["mean_s"] == pytest.approx(39.1)  # 40, then 0.3 x 10 s more, then 0.3 x 13 s less
    assert measured_overheads.table(service, timezone.now()).seconds[CHANGE] == pytest.approx(row["mean_s"])
    assert row["published_s"] > 0.0
    assert client.get("/api/v1/overheads/", {"model": "other"}).json()["results"] == []
    page = client.get(reverse("model", args=[service.model_card_id])).content.decode()
    assert CHANGE in page


def test_what_others_run_and_what_is_long_ago_is_no_measurement(service):
    pool = service.pools.first()
    started(pool, 40.0, 8 * 86_400.0)
    Instance.objects.filter(pk=started(pool, 5.0, 100.0).pk).update(node=None)
    assert measured_overheads.rows([service], timezone.now()) == []
    page = signed_in().get(reverse("model", args=[service.model_card_id])).content.decode()
    assert "No instance has become ready yet" in page


def test_cold_start_is_a_row_of_its_own_and_leaves_warm_ones_alone(service):
    pool = service.pools.first()
    for kind, took_s, ago_s in (("", 40.0, 300.0), ("cold", 400.0, 200.0), ("warm", 50.0, 100.0)):
        started(pool, took_s, ago_s, kind=kind)
    now = timezone.now()
    cold, warm = measured_overheads.rows([service], now)
    assert (cold.change, warm.change) == (CHANGE.replace("warm", "cold"), CHANGE)
    assert (cold.count, cold.mean_s) == (1, pytest.approx(400.0))
    assert (warm.count, warm.mean_s) == (2, pytest.approx(43.0)), "of a start of before, nobody knows"
    assert cold.published_s > warm.published_s
    key = start_key("Llama3-70B", "A100-80GB", 4, warm=False)
    assert measured_overheads.table(service, now).get(key, 1.0) == pytest.approx(400.0)


def test_waking_is_a_row_of_its_own_by_the_last_time_that_each_instance_woke(service):
    pool, now = service.pools.first(), timezone.now()
    for took_s, ago_s in ((0.5, 300.0), (1.5, 100.0)):
        woken_at = now - timedelta(seconds=ago_s)
        made = start_instance(pool, Node.objects.get(name="loc1-a100"), tp=4, state="ready")
        made.gpu_holds.all().delete()
        times = {"wake_asked_at": woken_at - timedelta(seconds=took_s), "woken_at": woken_at}
        Instance.objects.filter(pk=made.pk).update(**times)
    (row,) = measured_overheads.rows([service], now)
    assert row.change == wake_key("Llama3-70B", "A100-80GB", 4)
    assert (row.count, row.mean_s) == (2, pytest.approx(0.8))  # 0.5, then 0.3 x 1 s more
    assert row.published_s == pytest.approx(0.1, abs=0.1), "at 30 times the speed"
    Instance.objects.filter(pk=made.pk).update(wake_asked_at=now, woken_at=None)
    (row,) = measured_overheads.rows([service], now)
    assert row.count == 1, "it is asleep again, or not up yet"
