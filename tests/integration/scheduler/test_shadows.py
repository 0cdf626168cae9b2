"""A shadow on the GPUs of the engine that it replaces: when memory allows it, and which GPUs each has meanwhile."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from pools import wire
from pools.models import Instance, InstanceGpu, ModelCard, Node, Service
from scheduler.control.apply import apply
from scheduler.control.apply.gpu_memory import fits_two
from tests.fakes.house import start_instance

pytestmark = pytest.mark.django_db
HALF = ["--gpu-memory-utilization", "0.46"]
NODE = "loc1-a100"


@pytest.fixture
def pool(demo_rows):
    """Of a small model under a policy with shadows, on a node that is not simulated and has no GPU left."""
    service = Service.objects.get()
    service.model_card = ModelCard.objects.create(
        name="Llama3-8B", engine="vllm-v1", max_model_len=8192, engine_arguments=HALF
    )
    service.knobs = {"shadow": True}
    service.save()
    Node.objects.filter(name=NODE).update(simulated=False)
    return service.pools.filter(site__name="location-1", request_class__partition=service.partition).last()


def placed(pool, workers):
    pool.workers = workers
    pool.save(update_fields=["workers"])
    apply.apply_placement(pool.service, {NODE}, {})
    return list(Instance.objects.order_by("pk"))


def test_shadow_holds_gpus_beside_the_old_one_and_has_them_alone_when_that_has_gone(pool):
    start_instance(pool, Node.objects.get(name=NODE), tp=4)
    old, new = placed(pool, {"A100-80GB/TP2": 1})
    assert (new.tp, new.replaces, old.desired) == (2, [str(old.uid)], "running")
    both = {one.gpu_id for one in new.gpu_holds.all()}
    assert both < {one.gpu_id for one in old.gpu_holds.all()}
    assert all(one.beside for one in new.gpu_holds.all())
    third = Instance.objects.create(pool=pool, node=new.node, model_card=new.model_card, gpu_type=new.gpu_type, tp=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        InstanceGpu.objects.create(instance=third, gpu_id=min(both), beside=True)
    third.delete()
    Instance.objects.filter(pk=new.pk).update(state="ready")
    apply.apply_placement(pool.service, {NODE}, {})
    old.refresh_from_db()
    assert old.desired == "draining"
    apply.finish_drains({NODE: wire.AgentState(NODE, "b", 0.0, None, [])}, timezone.now())
    allocated = InstanceGpu.objects.filter(released_at=None)
    assert {(one.instance_id, one.beside) for one in allocated} == {(new.pk, False)}


def test_old_one_drains_first_when_its_card_gives_it_all_memory(pool):
    pool.service.model_card.engine_arguments = []
    pool.service.model_card.save()
    start_instance(pool, Node.objects.get(name=NODE), tp=4)
    (old,) = placed(pool, {"A100-80GB/TP2": 1})
    assert old.desired == "draining"


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"engine_arguments": []}, False),
        ({"engine_arguments": ["--gpu-memory-utilization=0.5"]}, False),
        ({"engine_arguments": ["--gpu-memory-utilization=0.1"]}, False),
        ({"name": "Llama3-70B"}, False),
        ({"name": "nobody-knows"}, False),
        ({"max_model_len": 10**9}, False),
    ],
)
def test_memory_fits_two_by_card_and_gpu(pool, changes, fits):
    instance = start_instance(pool, Node.objects.get(name=NODE), tp=1)
    card = pool.service.model_card
    for name, value in changes.items():
        setattr(card, name, value)
    assert fits_two(card, 1, list(instance.gpu_holds.all())) is fits


def test_simulated_nodes_keep_gpus_apart(pool):
    Node.objects.filter(name=NODE).update(simulated=True)
    instance = start_instance(pool, Node.objects.get(name=NODE), tp=1)
    assert not fits_two(pool.service.model_card, 1, list(instance.gpu_holds.all()))
