"""GPU types that operators enter: checked, kept while in use, and planned with; gateways and agents get them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError

from core.engine import gpu_types
from core.engine.engine_params import GPUS
from core.engine.gpu_type_fields import values_of
from core.engine.gpu_types import SHIPPED
from core.types import Loop
from pools import engine_knowledge, wire
from pools.access.audit import Actor
from pools.models import AuditEntry, Gpu, GpuType, Instance, Node, Profile, Service
from scheduler.control import epochs
from scheduler.control.apply import publish
from scheduler.operations.configure import changes, consequences

pytestmark = pytest.mark.django_db
NAME = "Lab-A100"


def lab(**changed: Any) -> GpuType:
    """A type much like the demo's, of a lower TDP."""
    values = values_of(SHIPPED["A100-80GB"]) | {"tdp_w": 300.0, "driver_names": [], "source": "a test", **changed}
    return GpuType(name=changed.pop("name", NAME), **{k: v for k, v in values.items() if k != "name"})


def texts(instance: Any, level: str) -> list[str]:
    return [item.text for item in consequences.of(instance) if item.level == level]


def test_type_is_entered_and_on_record(
    operator: Actor, redis_client: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        made = changes.create(operator, lab())
    assert AuditEntry.objects.get(action="created").label == NAME
    assert GPUS[NAME].tdp_w == 300.0
    made.tdp_w = 250.0
    with django_capture_on_commit_callbacks(execute=True):
        changes.update(operator, made)
    assert GPUS[NAME].tdp_w == 250.0
    with django_capture_on_commit_callbacks(execute=True):
        changes.delete(operator, made)
    assert NAME not in GPUS


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"name": "A100-80GB"}, "name", "shipped"),
        ({"name": "a b"}, "name", "without spaces"),
        ({"like": "H20-96GB"}, "like", "is none of"),
        ({"min_mhz": 9000}, "min_mhz", "above the top clock"),
        ({"tdp_w": None}, "tdp_w", "null"),
        ({"assumed": ["colour"]}, "assumed", "No such fields: colour"),
    ],
)
def test_field_is_named_when_a_type_makes_no_sense(
    operator: Actor, changed: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        changes.create(operator, lab(**changed))
    assert words in " ".join(caught.value.message_dict[field])


def test_type_stays_while_it_is_in_use(service: Service, operator: Actor) -> None:
    made = changes.create(operator, lab())
    node = Node.objects.order_by("name")[0]
    node.gpus.update(gpu_type=NAME)
    Profile.objects.filter(pk=Profile.objects.values("pk")[:1]).update(gpu_type=NAME)
    users = f"GPUs of node {node} and 1 profile"
    assert texts(made, "info")[0] == f"In use by {users}: plans go by these figures from the next epoch on."
    with pytest.raises(ValidationError, match="is in use by GPUs of node"):
        changes.delete(operator, made)
    assert consequences.of_deletion(made)[0].level == "error"
    made.name = "Lab-A100-2"
    with pytest.raises(ValidationError) as caught:
        changes.update(operator, made)
    assert users in caught.value.message_dict["name"][0]


def test_consequences_say_what_does_not_match(service: Service, operator: Actor) -> None:
    assert texts(lab(), "info") == [
        "Until a node with it was profiled, plans take A100-80GB's efficiencies and keep wide margins."
    ]
    assert texts(lab(driver_names=["NVIDIA L40S"]), "warning") == ["NVIDIA L40S is L40S-48GB's as well."]
    Gpu.objects.filter(pk=Gpu.objects.values("pk")[:1]).update(gpu_type=NAME, memory_gb=40.0)
    assert any("has 40 GB" in text for text in texts(lab(), "warning"))
    gpu = Gpu.objects.get(gpu_type=NAME)
    assert any("Enter its data sheet under GPU types" in text for text in texts(gpu, "warning"))
    changes.create(operator, lab())
    engine_knowledge.refresh()
    assert f"{NAME} is known by its data sheet: plans keep wide margins." in texts(gpu, "info")


def test_next_epochs_plan_with_a_type_that_was_added(
    service: Service, operator: Actor, redis_client: Any, now: Any
) -> None:
    Gpu.objects.update(gpu_type=NAME)
    Profile.objects.all().delete()
    epochs.run(service, Loop.CARBON, now)
    assert not Instance.objects.exists()
    changes.create(operator, lab())
    gpu_types.declare(())  # as in another process, which has not heard of it
    found = epochs.run_now(service, now)
    assert {epoch.kind for epoch in found} >= {"carbon", "scale"}
    live = Instance.objects.filter(desired="running")
    assert live.exists()
    assert {instance.gpu_type for instance in live} == {NAME}

    publish.publish(redis_client, now)
    index = wire.decode(redis_client.get(wire.FLEET_INDEX_KEY), wire.FleetIndex)
    assert [one.name for one in index.gpu_types] == [NAME]
    fleet = wire.decode(redis_client.get(wire.FLEET_KEY), wire.Fleet)
    assert fleet.gpu_types == index.gpu_types
    for node in Node.objects.all():
        desired = wire.decode(redis_client.get(wire.desired_key(node.name)), wire.DesiredNode)
        assert desired.gpu_types == index.gpu_types
    Gpu.objects.filter(node=Node.objects.order_by("name")[0]).update(gpu_type="A100-80GB")
    publish.publish(redis_client, now)
    first = wire.decode(redis_client.get(wire.desired_key(Node.objects.order_by("name")[0].name)), wire.DesiredNode)
    assert first.gpu_types == []


def test_other_processes_hear_of_a_type_within_a_second(operator: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    changes.create(operator, lab())
    assert NAME not in GPUS
    engine_knowledge.refresh_if_due()
    assert NAME not in GPUS  # not due
    monkeypatch.setattr(engine_knowledge, "EVERY_S", 0.0)
    engine_knowledge.refresh_if_due()
    assert NAME in GPUS


def test_types_that_their_name_had_planned_at_4_bit_get_a_figure_when_the_database_is_migrated() -> None:
    lab(name="B200-ours", fp8_tflops=4500.0, fp4_tflops=None).save()
    lab(name="H200-ours", fp8_tflops=1979.0, fp4_tflops=None).save()
    importlib.import_module("pools.migrations.0012_gpu_types_at_4_bit").fill(apps, None)
    found = {row.name: (row.fp4_tflops, row.assumed) for row in GpuType.objects.filter(name__endswith="-ours")}
    assert found["B200-ours"] == (9000.0, ["fp4_tflops"])
    assert found["H200-ours"] == (None, [])
    GpuType.objects.get(name="B200-ours").full_clean()
