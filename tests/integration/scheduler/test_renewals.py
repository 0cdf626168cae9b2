"""The first LoRA adapter of a service: its engines are started anew one by one, and as many serve as before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
import redis

from pools.models import Adapter, Instance, Node, Service
from scheduler.control import epochs
from scheduler.control.apply.desired_messages import desired_nodes
from tests.fakes.house import report_all

pytestmark = pytest.mark.django_db
NODE, WORKERS = "loc1-a100", {"A100-80GB/TP1": 2}


@pytest.fixture
def turn(service: Service, redis_client: redis.Redis, now: datetime) -> Callable[[], list[Instance]]:
    """Makes a turn: agents of simulated nodes carry out what was published, and placements are settled."""

    def made() -> list[Instance]:
        report_all(redis_client, at=now)
        epochs.settle(redis_client, now)
        return list(Instance.objects.filter(desired="running").exclude(state="stopped").order_by("pk"))

    Node.objects.exclude(name=NODE).update(schedulable=False)
    pool = service.pools.filter(site__name="location-1", request_class__partition=service.partition).last()
    assert pool is not None
    service.pools.update(workers={})
    type(pool).objects.filter(pk=pool.pk).update(workers=WORKERS)
    made()
    return made


def ranks(instances: list[Instance]) -> list[int | None]:
    return [one.max_lora_rank for one in instances]


def test_engines_are_replaced_one_by_one_once_their_service_has_an_adapter(
    service: Service, turn: Callable[[], list[Instance]], now: datetime
) -> None:
    assert ranks(turn()) == [0, 0]
    Adapter.objects.create(service=service, name="legal", source="acme/legal", rank=16)
    seen = []
    for _ in range(8):
        turn()
        ready = Instance.objects.filter(desired="running", state="ready").count()
        running = list(Instance.objects.filter(desired="running").exclude(state="stopped").order_by("pk"))
        seen.append((ready, sorted(one.max_lora_rank or 0 for one in running)))
    assert all(ready >= 2 for ready, _ in seen), seen
    assert all(len(of) <= 3 for _, of in seen), seen
    assert seen[-1] == (2, [16, 16])
    started = {uid for node in desired_nodes(now, 1) for one in node.instances for uid in [one.launch.max_lora_rank]}
    assert started == {16}


def test_one_is_replaced_once_the_warm_pool_has_its_gpus(service: Service, turn: Callable[[], list[Instance]]) -> None:
    assert ranks(turn()) == [0, 0]
    service.pools.exclude(workers={}).update(warm=1)
    Adapter.objects.create(service=service, name="legal", source="acme/legal", rank=16)
    turn()
    assert list(Instance.objects.filter(desired="sleeping").values_list("max_lora_rank", flat=True)) == [16]
    Instance.objects.filter(desired="sleeping").update(state="sleeping")
    assert ranks(turn()) == [0, 0, 16]


def test_engines_stay_where_it_is_not_known_what_they_were_started_for(
    service: Service, turn: Callable[[], list[Instance]]
) -> None:
    Instance.objects.update(max_lora_rank=None, max_loras=None)
    Adapter.objects.create(service=service, name="legal", source="acme/legal", rank=16)
    assert ranks(turn()) == ranks(turn()) == [None, None]


def test_lower_rank_or_fewer_at_once_restart_nothing(service: Service, turn: Callable[[], list[Instance]]) -> None:
    Instance.objects.update(max_lora_rank=64, max_loras=8)
    Adapter.objects.create(service=service, name="legal", source="acme/legal", rank=16)
    assert ranks(turn()) == [64, 64]
