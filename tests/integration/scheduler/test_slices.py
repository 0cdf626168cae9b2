"""A GPU that is cut into slices: services that share it, what plans count, and what may not be changed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import redis
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from core.types import Mode
from pools import wire
from pools.models import Instance, InstanceGpu, Node, Service
from scheduler.control.apply import desired_messages
from scheduler.control.snapshot import published_profiles
from scheduler.control.snapshot.free_gpus import free_gpus
from scheduler.operations import overrides
from scheduler.operations.configure import consequences
from scheduler.whatif import fleet_scenario
from telemetry.models import GpuRate
from tests.fakes.house import clean_redis, report_all, requests_came, second_service
from tests.integration.scheduler.test_sharing import set_policy, turns

pytestmark = pytest.mark.django_db
NODE, HALF = "loc1-a100", "A100-80GB/2"


@pytest.fixture(scope="module")
def planned_rows(fed_rows: None) -> None:
    """One GPU, cut in two, and nothing else; two services of a small model with an instance each on it."""
    Node.objects.exclude(name=NODE).update(schedulable=False)
    node = Node.objects.get(name=NODE)
    node.gpus.exclude(index=0).delete()
    node.gpu_slices = 2
    node.save()
    service, second = Service.objects.get(), second_service("greenserve")
    service.model_card = second.model_card
    service.save()
    set_policy(service, "greenserve")
    now = timezone.now()
    for name in ("llama3-70b", "llama3-8b"):
        requests_came(now, count=60, over_s=60, prompt_tokens=500, output_tokens=130, service=name)
    with clean_redis() as client:
        report_all(client, at=now)
        turns(client, now, 3)


@pytest.fixture
def halves(planned_rows: None) -> Node:
    return Node.objects.get(name=NODE)


@pytest.fixture
def both(planned_rows: None, redis_client: redis.Redis) -> list[Service]:
    report_all(redis_client)
    return [Service.objects.get(name=name) for name in ("llama3-70b", "llama3-8b")]


def test_two_services_have_an_instance_each_on_one_gpu(both: list[Service], halves: Node) -> None:
    rows = Instance.objects.exclude(state="stopped").order_by("pool__service")
    assert [(row.pool.service_id, row.gpu_type, row.tp) for row in rows] == [(own.pk, HALF, 1) for own in both]
    held = InstanceGpu.objects.filter(released_at__isnull=True).order_by("slice")
    assert [(hold.gpu, hold.slice) for hold in held] == [(halves.gpus.get(), 0), (halves.gpus.get(), 1)]
    assert not list(free_gpus([NODE]))


def test_message_to_the_agent_has_the_slices(both: list[Service], halves: Node, now: datetime) -> None:
    Node.objects.update(slicing="mps")
    (message,) = (one for one in desired_messages.desired_nodes(now, 1) if one.node == NODE)
    assert [(own.gpu_uuids, own.gpu_slices, own.mps) for own in message.instances] == [
        ([halves.gpus.get().uuid], 2, True)
    ] * 2
    assert wire.decode(wire.encode(message), wire.DesiredNode) == message


def test_slices_go_back_one_by_one(both: list[Service], halves: Node, now: datetime) -> None:
    gone = Instance.objects.filter(pool__service=both[1])
    InstanceGpu.objects.filter(instance__in=gone).update(released_at=now)
    (free,) = free_gpus([NODE])
    assert (free.gpu, free.count) == (HALF, 1)
    taken = InstanceGpu.objects.get(released_at__isnull=True)
    other = Instance.objects.create(
        pool=gone.get().pool, node=halves, model_card=both[1].model_card, gpu_type=HALF, tp=1
    )
    with pytest.raises(IntegrityError, match="gpu_held_once"), transaction.atomic():
        InstanceGpu.objects.create(instance=other, gpu=taken.gpu, slice=taken.slice)
    InstanceGpu.objects.create(instance=other, gpu=taken.gpu, slice=1 - taken.slice)


def test_modes_are_those_of_slices_with_one_engine_each(both: list[Service], halves: Node, now: datetime) -> None:
    assert published_profiles.offered_modes(both[0]) == [Mode(HALF, 1)]
    pool, until = Instance.objects.get(pool__service=both[0]).pool, now + timedelta(hours=1)
    with pytest.raises(ValidationError, match="has 2 A100-80GB/2, not 3"):
        overrides.pin_workers(None, pool, {f"{HALF}/TP1": 3}, until, "test")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"has one of them: TP is 1"):
        overrides.pin_workers(None, pool, {f"{HALF}/TP2": 1}, until, "test")  # type: ignore[arg-type]


def test_scenario_of_the_fleet_has_slices(both: list[Service], halves: Node, now: datetime) -> None:
    load = {"kind": "poisson", "rps": 1.0, "duration_s": 60.0, "prompt_tokens": 500, "output_tokens": 130}
    GpuRate.objects.create(
        site=halves.cluster.site,
        gpu_type="A100-80GB",
        rate_per_gpu_hour=3.0,
        currency="USD",
        source="test",
        valid_from=now - timedelta(days=1),
    )
    made = fleet_scenario.draft([halves.cluster.site], {own.name: load for own in both}, now, None, now).document
    assert [(group["gpu"], group["tp"]) for group in made["fleet"]] == [(HALF, 1)] * 2
    (site,) = made["sites"].values()
    assert (site["gpus"], site["usd_per_gpu_hour"]) == ({HALF: 2}, 1.5)


def test_slices_are_not_changed_under_instances(both: list[Service], halves: Node) -> None:
    halves.gpu_slices = 1
    (found,) = (one for one in consequences.of(halves) if one.field == "gpu_slices")
    assert found.level == "error"
    assert "schedulable" in found.text
    Instance.objects.update(state="stopped")
    assert not [one for one in consequences.of(halves) if one.field == "gpu_slices"]
