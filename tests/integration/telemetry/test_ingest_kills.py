"""The ingester's process, killed while messages pour in."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from pools import demo, wire
from telemetry.models import GpuSample, IngestedBatches
from tests.fakes.house import batch, gpu_row, send
from tests.fakes.nursery import Nursery, nursery
from tests.fakes.simnode import eventually

GPU = "SIM-loc1-a100-0"


@pytest.fixture(scope="module")
def ingesters(django_db_setup) -> Iterator[Nursery]:
    """`manage.py ingest` on the tests' database, as often as it is started."""
    name = connection.settings_dict["NAME"]
    url = os.environ["DATABASE_URL"].rsplit("/", 1)[0] + f"/{name}"
    with nursery(
        "from django.core.management import call_command; call_command('ingest')",
        {**os.environ, "DATABASE_URL": url, "GREENSERVE_DEBUG": "0"},
    ) as opened:
        yield opened


@pytest.mark.slow("processes that are killed")
@pytest.mark.django_db(transaction=True)
def test_batch_is_written_once_when_the_process_is_killed_again_and_again(redis_client, ingesters):
    """The ingester under kill -9 while messages pour in: every sample once, and SIGTERM ends it cleanly."""
    demo.load()
    now, seq = time.time() - 100, 0
    entered = GpuSample.objects.count
    ingesters.start()
    for _ in range(3):
        before, deadline = entered(), time.monotonic() + 30
        while entered() < before + 40:
            assert time.monotonic() < deadline
            for _ in range(10):
                seq += 1
                send(redis_client, wire.BATCH_STREAM, batch(seq, [gpu_row(GPU, now + seq / 100)]))
                time.sleep(0.002)
        assert ingesters.end(signal.SIGKILL) == -signal.SIGKILL
        ingesters.start()
    eventually(lambda: entered() >= seq, 30.0, f"{seq} samples")
    assert ingesters.end(signal.SIGTERM) == 0
    assert GpuSample.objects.count() == seq
    ((numbers,),) = IngestedBatches.objects.values_list("seqs")
    assert [(one.lower, one.upper) for one in numbers] == [(1, seq + 1)]
    assert GpuSample.objects.values("at").distinct().count() == seq
    assert GpuSample.objects.filter(at__lte=timezone.now() + timedelta(days=1)).count() == seq
