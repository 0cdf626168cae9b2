"""The ledger when two processes post at once, in threads with connections of their own."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from pools import demo
from pools.models import Gpu
from telemetry.models import EnergyEntry
from tests.fakes.house import moment, sample

from .test_posting import START, balanced, post


@pytest.mark.django_db(transaction=True)
def test_nothing_is_entered_twice_when_two_processes_post_at_once():
    demo.load()
    gpus = list(Gpu.objects.all()[:6])
    for second in range(44):
        for each in gpus:
            sample(each, START + second, 10.0 * second)
    barrier, entered = threading.Barrier(2), []

    def work():
        try:
            barrier.wait(timeout=10)
            entered.append(post(START + 46))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sum(entered) == EnergyEntry.objects.count() == 4 * len(gpus)
    assert all(balanced(each) for each in gpus)
    assert EnergyEntry.objects.filter(posted_at__lte=moment(START) + timedelta(days=36500)).exists()
