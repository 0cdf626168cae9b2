"""What agents and gateways hear of a service's LoRA adapters."""

from __future__ import annotations

import pytest
from django.utils import timezone

from pools import wire
from pools.models import Adapter, Service
from scheduler.control.apply.desired_messages import desired_nodes
from scheduler.control.apply.fleet_messages import fleet_snapshot
from tests.fakes import seed

pytestmark = pytest.mark.django_db


def launches() -> set[tuple[int, int]]:
    instances = [one for node in desired_nodes(timezone.now(), 1) for one in node.instances]
    assert instances
    return {(one.launch.max_lora_rank, one.launch.max_loras) for one in instances}


def test_agents_start_engines_for_the_highest_rank_and_gateways_know_what_to_load() -> None:
    service = seed.fleet().service
    assert launches() == {(0, service.max_loras)}
    for name, rank in (("legal", 16), ("medical", 40)):
        Adapter.objects.create(service=service, name=name, source=f"acme/{name}", rank=rank)
    Service.objects.filter(pk=service.pk).update(max_loras=2)
    assert launches() == {(40, 2)}
    (found,) = fleet_snapshot(timezone.now(), 1).services
    assert found.adapters == [wire.FleetAdapter("legal", "acme/legal"), wire.FleetAdapter("medical", "acme/medical")]
    assert found.max_loras == 2
