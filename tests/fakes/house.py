"""Rows and messages that several integration tests need: the demo fleet, agents that report, requests that came."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import redis
from django.conf import settings

from pools import wire
from pools.gateway.fleet.snapshot_reader import SnapshotReader
from pools.models import Gpu, Instance, InstanceGpu, ModelCard, Node, Pool, Service
from scheduler.control.service_policy import engine_limits
from telemetry.carbon.feeds import refresh_feed
from telemetry.models import CarbonFeed, GpuSample, RequestRecord
from telemetry.storage import time_partitions


def moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


@contextmanager
def clean_redis() -> Iterator[redis.Redis]:
    """The tests' Redis, without our keys before and after."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)

    def clear() -> None:
        for pattern in ("greenserve:*", "node.*", "_kombu*", "epochs"):
            keys = list(client.scan_iter(pattern))
            if keys:
                client.delete(*keys)

    clear()
    yield client
    clear()
    client.close()


def published_fleet() -> wire.Fleet:
    """The fleet as a gateway that has just started reads it."""

    async def read() -> wire.Fleet | None:
        async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
            return await SnapshotReader(client).read()

    fleet = asyncio.run(read())
    assert fleet is not None, "nothing has been published"
    return fleet


def refresh_feeds(at: datetime) -> None:
    """Asks the provider of each carbon feed, as of `at`."""
    for feed in CarbonFeed.objects.select_related("site"):
        refresh_feed(feed, at)


def gpu_row(uuid: str, at_s: float, energy_j: float | None = 100.0, **values: object) -> wire.GpuSampleRow:
    blank = dict.fromkeys(
        [
            "power_w",
            "sm_clock_mhz",
            "utilisation",
            "memory_used_bytes",
            "temperature_c",
            "instance_uid",
            "instance_state",
            "running",
        ]
    )
    return wire.GpuSampleRow(**{**blank, "at_s": at_s, "gpu_uuid": uuid, "energy_j": energy_j, **values})  # type: ignore[arg-type]


def instance_row(uid: str, at_s: float, state: str = "ready", **values: object) -> wire.InstanceSampleRow:
    blank = dict.fromkeys(
        [
            "running",
            "waiting",
            "kv_usage",
            "prompt_tokens_total",
            "generation_tokens_total",
            "ttft_s",
            "tpot_s",
            "sm_clock_mhz",
        ]
    )
    return wire.InstanceSampleRow(**{**blank, "at_s": at_s, "instance_uid": uid, "state": state, **values})  # type: ignore[arg-type]


def request_row(at_s: float | None = None, **values: object) -> wire.RequestRow:
    usual = {
        "request_id": uuid.uuid4().hex,
        "started_at_s": time.time() if at_s is None else at_s,
        "service": "llama3-70b",
        "tenant_id": None,
        "key_id": None,
        "endpoint": "completions",
        "stream": True,
        "status": "ok",
        "http_status": 200,
        "prompt_tokens": 1000,
        "output_tokens": 130,
        "ttft_s": 0.2,
        "tpot_s": 0.03,
        "e2e_s": 4.0,
    }
    return wire.RequestRow(**{**usual, **values})  # type: ignore[arg-type]


def batch(
    seq: int,
    gpus: Iterable[wire.GpuSampleRow] = (),
    instances: Iterable[wire.InstanceSampleRow] = (),
    clocks: Iterable[wire.ClockDecision] = (),
    boot: str = "boot-1",
) -> wire.AgentBatch:
    samples = wire.GpuSamples.pack(list(gpus))
    return wire.AgentBatch("loc1-a100", boot, seq, time.time(), samples, list(instances), list(clocks))


def send(client: redis.Redis, stream: str, message: wire.Message) -> None:
    client.xadd(stream, {"b": wire.encode(message)})


def start_instance(
    pool: Pool, node: Node, tp: int, state: str = "ready", gpu_type: str | None = None, start_kind: str = ""
) -> Instance:
    """An instance on the node's first free GPUs."""
    held = InstanceGpu.objects.filter(released_at__isnull=True).values("gpu")
    gpus = list(Gpu.objects.filter(node=node).exclude(pk__in=held)[:tp])
    instance = Instance.objects.create(
        pool=pool,
        node=node,
        model_card=pool.service.model_card,
        gpu_type=gpu_type or gpus[0].gpu_type,
        tp=tp,
        state=state,
        start_kind=start_kind,
    )
    for gpu in gpus:
        InstanceGpu.objects.create(instance=instance, gpu=gpu)
    return instance


def report(
    client: redis.Redis,
    node: str,
    instances: Iterable[Instance] = (),
    error: str = "",
    at: datetime | None = None,
    running: int | None = None,
    waiting: int | None = None,
    memory_free_bytes: int | None = None,
) -> None:
    """The agent of `node` says what it runs, as it is to, and how many requests each instance has."""
    states = [
        wire.InstanceState(
            uid=str(instance.uid),
            pool_id=instance.pool_id,
            url="http://127.0.0.1:1",
            state=instance.state,
            model="Llama3-70B",
            engine="vllm-v1",
            gpu_type=instance.gpu_type,
            tp=instance.tp,
            sm_clock_mhz=1410.0,
            min_mhz=210.0,
            max_mhz=1410.0,
            running=running,
            waiting=waiting,
            engine_limits=engine_limits(policy.knobs, policy.tuning, [instance.pool.service.limits()]),
            asleep=instance.state == "sleeping",
        )
        for instance, policy in ((instance, instance.pool.service.own_policy()) for instance in instances)
    ]
    at_s = at.timestamp() if at else time.time()
    state = wire.AgentState(node, "boot-1", at_s, None, states, error, memory_free_bytes=memory_free_bytes)
    client.set(wire.agent_key(node), wire.encode(state), ex=60)


def report_all(client: redis.Redis, at: datetime | None = None, memory_free_bytes: int | None = None) -> None:
    """Every agent reports, and runs what it is to run: its instances are ready or sleep, those to drain are gone."""
    for instance in Instance.objects.filter(desired="running").exclude(state="stopped"):
        Instance.objects.filter(pk=instance.pk).update(state="ready", ready_at=datetime.now(UTC))
    for node in Node.objects.all():
        live = node.instances.filter(desired__in=("running", "sleeping")).exclude(state="stopped")
        report(client, node.name, live, at=at, memory_free_bytes=memory_free_bytes)


def sample(gpu: Gpu, at_s: float, energy_j: float | None, instance: Instance | None = None, **values: object) -> None:
    time_partitions.ensure([moment(at_s).date()])
    GpuSample.objects.create(
        at=moment(at_s),
        gpu=gpu,
        energy_j=energy_j,
        instance=instance,
        instance_state=instance.state if instance else None,
        **values,
    )


def second_service(policy: str) -> Service:
    """A service of a small model beside the demo's, on its sites and with its partitions."""
    first = Service.objects.get()
    card = ModelCard.objects.create(name="Llama3-8B", max_model_len=16_384, engine="vllm-v1")
    service = Service.objects.create(name="llama3-8b", model_card=card, partition=first.partition, policy=policy)
    service.partitions.set(first.partitions.all())
    for slo in first.slos.all():
        service.slos.create(kind=slo.kind, objective_s=slo.objective_s, percentile=slo.percentile)
    for pool in first.pools.all():
        service.pools.create(site=pool.site, request_class=pool.request_class)
    return service


def requests_came(
    now: datetime,
    count: int,
    over_s: float,
    prompt_tokens: int = 1000,
    output_tokens: int = 130,
    service: str = "llama3-70b",
) -> None:
    """`count` answered requests, evenly over the last `over_s` seconds."""
    time_partitions.ensure({(now - timedelta(seconds=over_s)).date(), now.date()})
    RequestRecord.objects.bulk_create(
        RequestRecord(
            started_at=now - timedelta(seconds=over_s * (number + 0.5) / count),
            request_id=uuid.uuid4().hex,
            service=service,
            endpoint="completions",
            stream=True,
            status="ok",
            http_status=200,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            attempts=1,
            route_reason="",
            error="",
            slo_failed="",
        )
        for number in range(count)
    )
