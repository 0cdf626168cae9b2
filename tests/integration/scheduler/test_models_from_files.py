"""Models that the engine model knows by their config.json alone: planned by the loops, served by simulated nodes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import redis
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import timezone

from core.engine.engine_params import GPUS, MODELS, knows_model
from core.engine.image_rule import ImageRule
from core.types import Loop, Mode
from pools import wire
from pools.access import people
from pools.access.audit import Actor
from pools.model_files import hugging_face, shape_figures
from pools.models import (
    Cluster,
    Gpu,
    Instance,
    ModelCard,
    Node,
    Partition,
    Profile,
    RequestClass,
    Service,
    Site,
    Slo,
    Tenant,
)
from pools.writes import ensure_pools
from scheduler.control import epochs
from scheduler.control.apply import fleet_messages, gpu_memory, publish
from scheduler.control.snapshot import measured_overheads, published_profiles
from scheduler.operations import overrides
from scheduler.operations.configure import consequences
from scheduler.whatif import fleet_scenario, scenario_documents
from scheduler.whatif.scenario_documents import RunSpec
from telemetry.ledger import served_requests
from tests.fakes.agent import NODE, Bench
from tests.fakes.house import published_fleet, report_all
from tests.fakes.hub import LLAMA
from tests.representatives import first
from tests.servers import redis_words

pytestmark = pytest.mark.django_db
CONFIGS = {
    "llama": "meta-llama__Llama-3.3-70B-Instruct",
    "qwen": "Qwen__Qwen3-30B-A3B-Instruct-2507",
    "deepseek": "deepseek-ai__DeepSeek-V3",
    "gpt-oss": "openai__gpt-oss-120b",
    "gemma": "google__gemma-3-27b-it",
    "mistral": "mistralai__Mistral-7B-Instruct-v0.3",
}
H200, H100, L40S = "H200-SXM-141GB", "H100-SXM-80GB", "L40S-48GB"


def service_of(card: ModelCard, gpu_type: str, gpus: int, node: str = "n1") -> Service:
    """A service of one class, with a load that is expected, on one simulated node."""
    site = Site.objects.create(name="oslo", label="Oslo", grid_zone="NO1", time_zone="Europe/Oslo", pue=1.1)
    where = Node.objects.create(cluster=Cluster.objects.create(site=site, name="main"), name=node, simulated=True)
    kind = GPUS[gpu_type]
    for index in range(gpus):
        Gpu.objects.create(
            node=where,
            index=index,
            uuid=f"SIM-{node}-{index}",
            gpu_type=gpu_type,
            memory_gb=kind.mem_gb,
            min_mhz=kind.f_min,
            max_mhz=kind.f_max,
            tdp_w=kind.tdp_w,
        )
    partition = Partition.objects.create(name="one")
    RequestClass.objects.create(partition=partition, name="all", rank=0)
    service = Service.objects.create(
        name=f"{card.name}-service",
        model_card=card,
        partition=partition,
        expected_rps=0.5,
        expected_prompt_tokens=800,
        expected_output_tokens=200,
    )
    service.partitions.add(partition)
    for kind_of, objective_s in (("ttft", 3.0), ("tpot", 0.2)):
        Slo.objects.create(service=service, kind=kind_of, objective_s=objective_s, percentile=95)
    service.pools.create(site=site, request_class=partition.classes.get())
    ensure_pools(service, partition)
    return service


def card_of(test_data: Path, name: str) -> ModelCard:
    config = hugging_face.read(test_data / "model_configs" / CONFIGS[name])
    card = ModelCard(name=f"our-{name}", config=config, max_model_len=8192)
    card.full_clean()
    card.save()
    return card


def llama_card() -> ModelCard:
    card = ModelCard(name="acme-tuned", config=LLAMA, max_model_len=4096)
    card.full_clean()
    card.save()
    assert not knows_model(card.name)
    return card


def planned(service: Service, client: redis.Redis, now: datetime) -> tuple[dict[str, int], str]:
    report_all(client)
    epoch = epochs.run(service, Loop.CARBON, now)
    assert epoch is not None
    assert epoch.status == "applied", epoch.error or epoch.decisions.get(kind="carbon").summary
    (pool,) = service.pools.filter(request_class__partition__active_services=service)
    return pool.workers, epoch.decisions.get(kind="carbon").summary


@pytest.mark.parametrize(
    ("name", "gpu_type"),
    [
        *((name, H200) for name in CONFIGS),
        *first(1, ((name, H100) for name in CONFIGS if name != "deepseek"), "as on larger GPUs"),
        *first(1, ((name, L40S) for name in CONFIGS if name != "deepseek"), "as on larger GPUs"),
    ],
)
def test_models_of_todays_use_are_planned_by_their_configurations(
    test_data: Path, redis_client: redis.Redis, name: str, gpu_type: str
) -> None:
    card = card_of(test_data, name)
    assert card.name not in MODELS
    service = service_of(card, gpu_type, 8)
    workers, summary = planned(service, redis_client, timezone.now())
    assert sum(workers.values()) >= 1, summary
    assert {Mode.parse(mode).gpu for mode in workers} == {gpu_type}
    assert all(instance.model_card == card for instance in Instance.objects.all())
    assert card.shape not in summary  # which people cannot read


@pytest.mark.parametrize("gpu_type", [H100, L40S])
def test_model_too_large_for_a_node_is_refused_with_figures(
    test_data: Path, redis_client: redis.Redis, gpu_type: str
) -> None:
    service = service_of(card_of(test_data, "deepseek"), gpu_type, 8)
    assert published_profiles.offered_modes(service) == []
    room_gb = 8 * (0.9 * GPUS[gpu_type].mem_gb - 2.0)
    reason = f"673 GB of weights, and 8 x {gpu_type} have {room_gb:.0f} of their {8 * GPUS[gpu_type].mem_gb:.0f} GB"
    for row in (service.model_card, service.pools.get()):
        texts = [item.text for item in consequences.of(row) if item.level == "warning"]
        assert any(reason in text for text in texts), texts
    report_all(redis_client)
    epoch = epochs.run(service, Loop.CARBON, timezone.now())
    assert epoch is not None
    assert epoch.status == "infeasible"
    assert f"our-deepseek fits on no node: {reason}" in epoch.decisions.get(kind="carbon").summary
    assert not Instance.objects.exists()


def test_messages_carry_the_shape_beside_the_name(redis_client: redis.Redis) -> None:
    service = service_of(llama_card(), "A100-80GB", 2)
    planned(service, redis_client, timezone.now())
    shape = service.model_card.shape
    (entry,) = published_fleet().services
    assert (entry.model, entry.shape) == ("acme-tuned", shape)
    node = wire.decode(redis_client.get(wire.desired_key("n1")), wire.DesiredNode)
    assert {(one.model, one.shape) for one in node.instances} == {("acme-tuned", shape)}
    older = json.loads(wire.encode(node.instances[0]))
    del older["shape"]
    assert wire.decode(json.dumps(older), wire.DesiredInstance).shape == ""


def test_gateways_hear_how_many_tokens_images_take(test_data: Path) -> None:
    service_of(card_of(test_data, "gemma"), H100, 1)
    (entry,) = fleet_messages.fleet_snapshot(timezone.now(), 1).services
    assert entry.images == ImageRule(fixed_tokens=256)
    assert wire.decode(wire.encode(entry), wire.FleetService) == entry


def test_figures_of_a_shape_are_those_that_the_ledger_and_loops_go_by(redis_client: redis.Redis) -> None:
    card = llama_card()
    service = service_of(card, "A100-80GB", 2)
    planned(service, redis_client, timezone.now())
    instance = Instance.objects.first()
    assert instance is not None
    found = served_requests.token_time(instance)
    assert found.source == f"engine model of acme-tuned on A100-80GB/TP{instance.tp} under vllm-2025"
    Instance.objects.update(ready_at=timezone.now(), state="ready")
    known, now = measured_overheads.table(service, timezone.now()), timezone.now()
    assert [key for key in known.seconds if card.shape in key] == list(known.seconds)
    assert {row.change for row in measured_overheads.rows([service], now)} == {
        key.replace(card.shape, "acme-tuned") for key in known.seconds
    }


def test_study_of_the_fleet_has_the_shape_and_says_whose_it_is() -> None:
    service, now = service_of(llama_card(), "A100-80GB", 2), timezone.now()
    workload = {"generate": "poisson", "rate_rps": 1.0, "duration_s": 4.0, "lengths": "azure-conv"}
    made = fleet_scenario.draft(list(Site.objects.all()), {service.name: workload}, now, None, now)
    assert {group["model"] for group in made.document["fleet"]} == {service.model_card.shape}
    assert f"acme-tuned goes by its shape: {service.model_card.shape}." in made.notes
    document = scenario_documents.for_run(made.document, RunSpec("single_pool", {}))
    with scenario_documents.opened(document, made.files) as scenario:
        assert {one.model for group in scenario.groups for one in group.instances} == {service.model_card.shape}


def test_memory_of_gpus_holds_the_weights_that_a_quantized_card_has() -> None:
    card = llama_card()
    plain = gpu_memory.need_bytes(card, "A100-80GB", 1)
    card.config = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    card.save()
    small = gpu_memory.need_bytes(card, "A100-80GB", 1)
    assert plain is not None
    assert small is not None
    assert plain - small == pytest.approx(8_030_261_248 - 2 * 128_256 * 4096, rel=0.001)


def test_shape_is_made_again_when_the_arguments_of_engines_change() -> None:
    card = llama_card()
    assert not card.shape.endswith("k8")
    card.engine_arguments = ["--kv-cache-dtype", "fp8"]
    card.save(update_fields=["engine_arguments"])
    assert ModelCard.objects.get().shape.endswith("k8")


async def ask(url: str, key: str, service: str) -> tuple[int, dict[str, object]]:
    body = {"model": service, "prompt": [7] * 40, "max_tokens": 12, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        session.post(f"{url}/v1/completions", json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


@pytest.fixture
def bench(redis_client: redis.Redis, tmp_path: Path) -> Iterator[Bench]:
    running = Bench(tmp_path, redis_client, settings.CELERY_BROKER_URL)
    yield running
    running.close()


def test_model_is_served_by_a_simulated_node_under_a_name_that_only_its_card_knows(
    bench: Bench, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """From the card by plan, agent, simulated node and gateway to the answer, all but the scheduler as processes."""
    service = service_of(llama_card(), "A100-80GB", 2, NODE)
    _, secret = people.new_key(Actor(), Tenant.objects.create(name="acme"), "test")
    planned(service, redis_client, timezone.now())
    (instance, *_) = Instance.objects.all()
    reported = bench.ready(str(instance.uid))
    assert (reported.model, reported.shape) == ("acme-tuned", service.model_card.shape)
    publish.publish(redis_client, timezone.now())

    async def answered() -> tuple[int, dict[str, object]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pools.gateway", "--port", "0", *redis_words(tmp_path, settings.REDIS_URL)),
            *("--spool", str(tmp_path / "gateway")),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        line = ""
        while "listening on" not in line:
            line = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
            assert line, "it did not start"
        url = f"http://127.0.0.1:{line.rsplit(':', 1)[1].split('/')[0]}"
        reading = asyncio.create_task(process.stderr.read())
        try:
            for _ in range(40):  # until it has read the fleet
                status, answer = await ask(url, secret, service.name)
                if status == 200:
                    break
                await asyncio.sleep(0.25)
            return status, answer
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 15)
            log = (await reading).decode()
            assert "does not know" not in log, log

    status, answer = asyncio.run(answered())
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 12  # type: ignore[index]


def test_degrees_that_cannot_share_the_heads_are_neither_planned_nor_pinned_nor_entered(
    redis_client: redis.Redis, operator: Actor
) -> None:
    config = LLAMA | {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128}
    card = ModelCard(name="acme-28-heads", config=config, max_model_len=4096)
    card.full_clean()
    card.save()
    service = service_of(card, H100, 8)
    assert {mode.tp for mode in published_profiles.offered_modes(service)} == {1, 2, 4}
    workers, summary = planned(service, redis_client, timezone.now())
    assert {Mode.parse(mode).tp for mode in workers} <= {1, 2, 4}, summary
    assert any("fits on 1 of 1 nodes" in item.text for item in consequences.of(card))
    remedy = "8 GPUs cannot share 28 attention heads and 4 KV heads evenly; choose one of 1, 2, 4"
    until = timezone.now() + timedelta(hours=1)
    pool = service.pools.get(request_class__partition__name="whole")
    with pytest.raises(ValidationError, match=remedy) as refused:
        overrides.pin_workers(operator, pool, {f"{H100}/TP8": 1}, until, "a trial")
    assert "workers" in refused.value.message_dict
    profile = Profile(
        model_card=card,
        request_class=pool.request_class,
        gpu_type=H100,
        tp=8,
        max_rps=1.0,
        power_w=900.0,
        kind="published",
        source="a paper",
    )
    with pytest.raises(ValidationError, match=remedy) as refused:
        profile.full_clean()
    assert list(refused.value.message_dict) == ["tp"]
    (one,) = shape_figures.fits(card.shape, [H100], [8], card.engine)
    assert (one.fits, one.reason) == (False, remedy)
