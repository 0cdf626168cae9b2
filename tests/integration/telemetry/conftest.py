"""A quarter of an hour that was metered and settled, made once for a module's tests."""

from __future__ import annotations

import pytest

from pools.models import Node, Service
from telemetry.ledger import settlement
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import LATER


@pytest.fixture(scope="module")
def metered_rows(demo_rows: None) -> None:
    """An instance on all GPUs of loc1-a100, its meters, its requests and its rates."""
    node = Node.objects.get(name="loc1-a100")
    metering.quarter_hour(start_instance(Service.objects.get().pools.first(), node, tp=4))


@pytest.fixture(scope="module")
def settled_rows(metered_rows: None) -> None:
    assert settlement.settle(moment(LATER)) == 3
