"""Studies of a fleet with GPU types that operators entered."""

from __future__ import annotations

from typing import Any

import pytest

from core.engine import gpu_types
from core.engine.gpu_type_fields import values_of
from core.engine.gpu_types import SHIPPED
from pools.access.audit import Actor
from pools.models import Gpu, GpuType
from scheduler.whatif import study_requests, study_worker
from tests.fakes import seed

pytestmark = pytest.mark.django_db
NAME = "Lab-A100"


def test_scenario_of_the_fleet_brings_the_types_that_it_uses(operator: Actor, redis_client: Any) -> None:
    seeded = seed.everything(minutes=6)
    for name in (NAME, "Unused"):
        GpuType.objects.create(name=name, **(values_of(SHIPPED["A100-80GB"]) | {"tdp_w": 300.0}))
    Gpu.objects.filter(node__cluster__site__name="location-2").update(gpu_type=NAME)
    study = study_requests.ask(
        {"base": "fleet", "changes": {"duration_s": 20}, "runs": ["least_loaded"]}, operator.user
    )
    assert list(study.scenario["gpu_types"]) == [NAME]
    assert study.scenario["gpu_types"][NAME]["tdp_w"] == 300.0
    assert NAME in study.scenario["sites"]["location-2"]["gpus"]
    GpuType.objects.all().delete()
    gpu_types.declare(())  # as in a worker, after the type was deleted
    assert study_worker.run(study.pk), list(study.runs.values_list("error", flat=True))
    assert study.runs.get().figures["energy_wh"] > 0
    assert gpu_types.declared() == ()
    assert seeded.service.name in study.scenario["services"]
