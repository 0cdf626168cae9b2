"""The warm pool against the database: who sleeps, who is woken, who gives way."""

from __future__ import annotations

import time

import pytest
from django.utils import timezone

from pools.models import Instance, InstanceGpu, Node, Service
from scheduler.control.apply import apply, desired_messages
from telemetry import selectors
from tests.fakes.house import start_instance

pytestmark = pytest.mark.django_db
MODE, NODE = "A100-80GB/TP2", "loc1-a100"


@pytest.fixture
def pool(demo_rows):
    service = Service.objects.get()
    found = service.pools.filter(site__name="location-1", request_class__partition=service.partition).last()
    found.warm = 1
    found.save()
    return found


def want(pool, count):
    pool.workers = {MODE: count} if count else {}
    pool.save(update_fields=["workers"])
    apply.apply_placement(pool.service, {NODE}, {})
    return sorted(Instance.objects.exclude(state="stopped").values_list("desired", flat=True))


def become(state):
    for instance in Instance.objects.exclude(state="stopped"):
        asleep = instance.desired == "sleeping"
        Instance.objects.filter(pk=instance.pk).update(state="sleeping" if asleep else state)


def test_one_more_is_started_to_sleep_and_is_woken_before_another_starts(pool):
    assert want(pool, 1) == ["running", "sleeping"]
    become("ready")
    sleeper = Instance.objects.get(desired="sleeping")
    (desired,) = (node for node in desired_messages.desired_nodes(timezone.now(), 1) if node.node == NODE)
    assert {item.uid: item.state for item in desired.instances}[str(sleeper.uid)] == "sleeping"
    (row,) = selectors.pool_rows(time.time(), pool_ids=[pool.pk])
    assert (row.state, row.instances_words) == ("serving", f"1 \u00d7 {MODE}")
    assert want(pool, 2) == ["running", "running"], "all four GPUs are taken"
    sleeper.refresh_from_db()
    assert sleeper.desired == "running"
    assert Instance.objects.count() == 2


def test_surplus_engine_sleeps_and_gives_its_gpus_up_when_they_are_needed(pool):
    for _ in range(2):
        start_instance(pool, Node.objects.get(name=NODE), tp=2)
    assert want(pool, 1) == ["running", "sleeping"]
    assert want(pool, 0) == ["draining", "sleeping"], "one is kept, the other has nothing to do"
    pool.warm = 0
    pool.save()
    assert want(pool, 0) == ["draining", "draining"]
    assert InstanceGpu.objects.filter(released_at=None).count() == 4


def test_nothing_sleeps_when_no_pool_asks_for_it(pool):
    pool.warm = 0
    pool.save()
    assert want(pool, 1) == ["running"]
    become("ready")
    assert want(pool, 0) in (["draining"], ["running"])
