"""Slow loops that run at once, in threads with connections of their own: what one commits the others see."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from core.types import Loop
from pools import demo
from pools.models import Instance, InstanceGpu, Pool, Service
from scheduler import tasks
from scheduler.control import epochs
from scheduler.models import ControllerState, Decision, Epoch
from tests.fakes.house import refresh_feeds, report_all, requests_came

pytestmark = pytest.mark.django_db(transaction=True)


def test_epoch_runs_once_when_two_workers_run_it_at_once(redis_client):
    service, now = demo.load(), datetime.now(UTC)
    report_all(redis_client)
    refresh_feeds(now)
    barrier, ran = threading.Barrier(2), []

    def work():
        try:
            barrier.wait(timeout=10)
            ran.append(epochs.run(Service.objects.get(pk=service.pk), Loop.CARBON, now))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(epoch is None for epoch in ran) == [False, True]
    assert Epoch.objects.count() == 1
    assert Decision.objects.filter(kind="carbon").count() == 1
    assert ControllerState.objects.get(kind="carbon").version == 1
    wanted = sum(sum(pool.workers.values()) for pool in Pool.objects.all())
    assert Instance.objects.count() == wanted


def test_gpus_are_given_once_when_carbon_and_scale_and_settling_run_at_once(redis_client):
    service, now = demo.load(), datetime.now(UTC)
    report_all(redis_client)
    refresh_feeds(now)
    epochs.run(service, Loop.CARBON, now)
    requests_came(now, count=600, over_s=60)
    later = now + timedelta(seconds=60)
    report_all(redis_client, at=later)
    errors = []

    def work(action):
        try:
            action(Service.objects.get(pk=service.pk))
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    actions = [
        lambda s: epochs.run(s, Loop.CARBON, later),
        lambda s: epochs.run(s, Loop.SCALE, later),
        lambda s: tasks.publish(),
    ]
    threads = [threading.Thread(target=work, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    assert set(Epoch.objects.filter(due_at__gt=now).values_list("kind", flat=True)) == {"carbon", "scale"}
    allocated = list(InstanceGpu.objects.filter(released_at__isnull=True).values_list("gpu_id", flat=True))
    assert len(allocated) == len(set(allocated))
