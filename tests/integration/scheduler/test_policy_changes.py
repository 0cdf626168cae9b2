"""What runs is replaced while requests come: an instance of the service serves at every moment."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
import redis

from pools.models import Instance, Node, Service
from scheduler.control import epochs
from tests.fakes.house import refresh_feeds, report, start_instance

pytestmark = pytest.mark.django_db
START_TURNS = 2


class Nodes:
    """Agents whose instances take so many turns to start, and one to drain."""

    def __init__(self, client: redis.Redis, at: datetime) -> None:
        self.client, self.at = client, at
        self._turns: Counter[int] = Counter()

    def turn(self) -> None:
        self.at += timedelta(seconds=5)
        for instance in Instance.objects.filter(desired="running").exclude(state__in=("ready", "stopped")):
            self._turns[instance.pk] += 1
            if self._turns[instance.pk] > START_TURNS:
                Instance.objects.filter(pk=instance.pk).update(state="ready", ready_at=self.at)
        for node in Node.objects.all():
            report(
                self.client, node.name, node.instances.filter(desired="running").exclude(state="stopped"), at=self.at
            )
        refresh_feeds(self.at)
        epochs.settle(self.client, self.at)


def serving() -> dict[int, str]:
    rows = Instance.objects.filter(desired="running", state="ready").order_by("pk")
    return {row.pk: f"{row.node.name} TP{row.tp}" for row in rows}


def test_only_instance_is_replaced_on_its_own_gpus_while_another_serves(
    service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    """All GPUs of its node are its own. Every request was refused from its drain until its replacement was ready."""
    node = Node.objects.get(name="loc1-h100")
    pool = service.pools.filter(site__name="location-1", request_class__partition=service.partition_id).first()
    assert pool is not None
    old = start_instance(pool, node, tp=4)
    pool.workers = {"H100-SXM-80GB/TP2": 1}
    pool.save(update_fields=["workers"])
    nodes, seen = Nodes(redis_client, now), []
    for _ in range(12):
        nodes.turn()
        assert serving(), f"nothing serves after {seen}"
        seen.append(serving())
    assert list(seen[0]) == [old.pk]
    assert list(seen[-1].values()) == ["loc1-h100 TP2"]
    assert len({pk for turn in seen for pk in turn}) == 3
