"""Fills a database with a small fleet and its last half hour, so that pages have something to show.

Every figure is made up from a seed; nothing here is a measurement.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.conf import settings

from pools import wire
from pools.models import (
    Cluster,
    Gpu,
    Instance,
    InstanceGpu,
    Job,
    ModelCard,
    Node,
    Partition,
    Pool,
    Profile,
    RequestClass,
    Service,
    Site,
    Slo,
    Tenant,
)
from scheduler.models import Decision, Epoch
from telemetry.models import (
    Alert,
    CarbonFeed,
    CarbonPoint,
    EnergyEntry,
    ForecastScore,
    GpuMinute,
    GpuSample,
    InstanceSample,
    MeterMark,
    RequestRecord,
)
from telemetry.storage import time_partitions
from tests.fakes import energy_sums

A100, H100 = "A100-80GB", "H100-SXM-80GB"
SITES = (
    ("location-1", "Location 1", "America/New_York", 410.0, (("n1", A100, 4), ("n2", H100, 4))),
    ("location-2", "Location 2", "America/Chicago", 280.0, (("n3", A100, 8), ("n4", A100, 4))),
    ("location-3", "Location 3", "America/New_York", 620.0, (("n5", A100, 8),)),
)
CLASSES = (("SS", 1.0, 0.4), ("SL", 1.2, 3.0), ("LS", 1.6, 0.5), ("LL", 2.0, 3.2))  # name, prompt, output size
IDLE_W = 70.0  # of a GPU that nobody uses
TENANTS = ("acme", "birch", "cobalt", "dune")


@dataclass
class Seeded:
    now: datetime
    service: Service
    sites: list[Site] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


def fleet(now: datetime | None = None) -> Seeded:
    """Sites, nodes, GPUs, a service with objectives, its partition, pools and instances; nothing that happened."""
    now = now or datetime.now(UTC)
    card = ModelCard.objects.create(name="Llama3-70B", max_model_len=16_384, engine="vllm-v1")
    partition = Partition.objects.create(name="freesh-a")
    service = Service.objects.create(
        name="llama3-70b", model_card=card, partition=partition, policy="greenserve_epochs"
    )
    service.partitions.add(partition)
    for kind, objective_s in (("ttft", 2.0), ("tpot", 0.15), ("e2e", 60.0)):
        Slo.objects.create(service=service, kind=kind, objective_s=objective_s)
    seeded = Seeded(now, service)
    seeded.tenants = [Tenant.objects.create(name=name, label=name.title()) for name in TENANTS]
    classes = [
        RequestClass.objects.create(partition=partition, name=name, rank=rank)
        for rank, (name, _, _) in enumerate(CLASSES)
    ]
    for rank, (name, label, zone, _, nodes) in enumerate(SITES):
        site = Site.objects.create(name=name, label=label, grid_zone=name.upper(), time_zone=zone, rank=rank, pue=1.2)
        seeded.sites.append(site)
        cluster = Cluster.objects.create(site=site, name="main")
        for node_name, gpu_type, count in nodes:
            node = Node.objects.create(cluster=cluster, name=node_name, simulated=True)
            seeded.gpus += [_gpu(node, index, gpu_type) for index in range(count)]
        seeded.pools += [
            Pool.objects.create(service=service, site=site, request_class=request_class) for request_class in classes
        ]
    _instances(seeded)
    return seeded


def _gpu(node: Node, index: int, gpu_type: str) -> Gpu:
    top = 1410.0 if gpu_type == A100 else 1980.0
    return Gpu.objects.create(
        node=node,
        uuid=f"SIM-{node.name}-{index}",
        index=index,
        gpu_type=gpu_type,
        memory_gb=80.0,
        min_mhz=210.0,
        max_mhz=top,
        tdp_w=400.0 if gpu_type == A100 else 700.0,
    )


def _instances(seeded: Seeded) -> None:
    """One instance of four GPUs for each half node, classes in turn; the last site's second half stays idle."""
    by_node: dict[int, list[Gpu]] = {}
    for gpu in seeded.gpus:
        by_node.setdefault(gpu.node_id, []).append(gpu)
    groups = [gpus[i : i + 4] for gpus in by_node.values() for i in range(0, len(gpus), 4)]
    for turn, gpus in enumerate(groups[:-1]):
        site = gpus[0].node.cluster.site
        pool = next(p for p in seeded.pools if p.site_id == site.pk and p.request_class.rank == turn % 4)
        mode = f"{gpus[0].gpu_type}/TP4"
        pool.workers[mode] = pool.workers.get(mode, 0) + 1
        pool.gpu_budget[gpus[0].gpu_type] = pool.gpu_budget.get(gpus[0].gpu_type, 0) + 4
        pool.save()
        instance = Instance.objects.create(
            pool=pool,
            node=gpus[0].node,
            model_card=seeded.service.model_card,
            gpu_type=gpus[0].gpu_type,
            tp=4,
            state="starting" if turn == len(groups) - 2 else "ready",
            ready_at=seeded.now,
        )
        InstanceGpu.objects.bulk_create([InstanceGpu(instance=instance, gpu=gpu) for gpu in gpus])
        seeded.instances.append(instance)


def history(
    seeded: Seeded, *, minutes: int = 30, rps: float = 2.0, seed: int = 7, sampled: range = range(10)
) -> Seeded:
    """The last `minutes`: ledger, samples, requests, carbon points, epochs and decisions; with one silent meter.

    `sampled`: how many seconds before `now` each GPU and instance was sampled.
    """
    rng = random.Random(seed)
    start = seeded.now - timedelta(minutes=minutes)
    time_partitions.ensure([start.date(), seeded.now.date(), (seeded.now - timedelta(days=1)).date()])
    feeds(seeded, start)
    _ledger(seeded, start, rng)
    _samples(seeded, rng, sampled)
    _requests(seeded, start, rps, rng)
    _decisions(seeded, start)
    return seeded


def well(now_s: float | None = None) -> None:
    """All processes alive and all agents reporting, in Redis, as of `now_s`; None: a minute from now, so that they are
    not silent before a slow machine has looked."""
    now_s = time.time() + 60.0 if now_s is None else now_s
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
    nodes = list(Node.objects.values_list("name", flat=True))
    names = ["postgres", "redis", "web", "gateway", "beat", "epochs", "ingester", *(f"node.{node}" for node in nodes)]
    rows = [
        wire.ProcessRow(name, 4_000 + n, "running", now_s - 1_900, 0, f"var/log/{name}.log")
        for n, name in enumerate(names)
    ]
    client.set(wire.PROCESSES_KEY, wire.encode(wire.ProcessTable(now_s, rows)), ex=120)
    for name in names[3:]:
        client.set(wire.alive_key(name), wire.encode(wire.Heartbeat(name, now_s, 2.0)), ex=120)
    for node in nodes:
        client.set(wire.agent_key(node), wire.encode(wire.AgentState(node, "boot", now_s, 1, [])), ex=120)
    client.close()


def everything(now: datetime | None = None, **options: Any) -> Seeded:
    return history(fleet(now), **options)


def _wave(at: datetime, period_s: float, phase: float) -> float:
    return 0.5 + 0.5 * math.sin(2 * math.pi * at.timestamp() / period_s + phase)


def _intensity(rank: int, at: datetime) -> float:
    return SITES[rank][3] * (0.75 + 0.5 * _wave(at, 2_400.0, float(rank)))


def _power_w(site: Site, at: datetime, rng: random.Random) -> float:
    """Of a GPU that serves."""
    return IDLE_W + 230.0 * _wave(at, 1_500.0, site.rank * 1.7) + rng.uniform(-12, 12)


def _tens(at: datetime) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // 10 * 10, UTC)


def feeds(seeded: Seeded, start: datetime) -> None:
    """A feed per site with points each 10 s to now and forecasts 10 min on; the first site's lacks one minute."""
    gap = seeded.now - timedelta(minutes=6), seeded.now - timedelta(minutes=5)
    for site in seeded.sites:
        feed = CarbonFeed.objects.create(
            site=site, provider="static_csv", source=f"Synthetic curve of {site.label}", last_ok_at=seeded.now
        )
        points = []
        at = _tens(start)
        while at < seeded.now + timedelta(minutes=10):
            forecast = at > seeded.now
            unknown = site.rank == 0 and gap[0] <= at < gap[1]
            value = None if unknown else _intensity(site.rank, at)
            points.append(
                CarbonPoint(
                    feed=feed,
                    start_at=at,
                    end_at=at + timedelta(seconds=10),
                    value_g_per_kwh=value,
                    raw_value=value,
                    raw_unit="gCO2e/kWh",
                    forecast=forecast,
                    issued_at=seeded.now if forecast else at,
                )
            )
            at += timedelta(seconds=10)
        CarbonPoint.objects.bulk_create(points)


def _ledger(seeded: Seeded, start: datetime, rng: random.Random) -> None:
    """Whole cells until 20 s ago. The third site's meters are silent for two minutes."""
    held = {h.gpu_id: h.instance for h in InstanceGpu.objects.select_related("instance")}
    silent = seeded.now - timedelta(minutes=12), seeded.now - timedelta(minutes=10)
    until = _tens(seeded.now - timedelta(seconds=20))
    entries = []
    for gpu in seeded.gpus:
        site = gpu.node.cluster.site
        instance = held.get(gpu.pk)
        at, counter_j = _tens(start), 0.0
        while at < until:
            if site.rank == 2 and silent[0] <= at < silent[1]:
                at += timedelta(seconds=10)
                continue
            power = _power_w(site, at, rng) if instance else IDLE_W
            parts = {"serving": power * 10 * 0.8, "idle": power * 10 * 0.2} if instance else {"idle": power * 10}
            intensity = _intensity(site.rank, at)
            for kind, energy_j in parts.items():
                entries.append(
                    EnergyEntry(
                        gpu=gpu,
                        site=site,
                        pool_id=instance.pool_id if instance else None,
                        instance_id=instance.pk if instance else None,
                        start_at=at,
                        end_at=at + timedelta(seconds=10),
                        kind=kind,
                        energy_uj=round(energy_j * 1e6),
                        gpu_us=round(energy_j / sum(parts.values()) * 10e6),
                        intensity_g_per_kwh=intensity,
                        carbon_gco2e=round(energy_j / 3.6e6 * site.pue * intensity, 6),
                    )
                )
                counter_j += energy_j
            at += timedelta(seconds=10)
        MeterMark.objects.create(
            gpu=gpu, at=until, energy_uj=round(counter_j * 1e6), opened_at=start, opened_energy_uj=0
        )
    EnergyEntry.objects.bulk_create(entries, batch_size=2_000)
    energy_sums.roll_up()


def _samples(seeded: Seeded, rng: random.Random, seconds: range) -> None:
    held = {h.gpu_id: h.instance for h in InstanceGpu.objects.select_related("instance")}
    gpus, instances = [], []
    for second in seconds:
        at = seeded.now - timedelta(seconds=second)
        for gpu in seeded.gpus:
            instance = held.get(gpu.pk)
            gpus.append(
                GpuSample(
                    at=at,
                    gpu=gpu,
                    energy_j=1e6 - second * 250,
                    power_w=_power_w(gpu.node.cluster.site, at, rng) if instance else IDLE_W,
                    sm_clock_mhz=1_110.0,
                    utilisation=0.8,
                    temperature_c=52.0 + gpu.index,
                    instance=instance,
                    instance_state=instance.state if instance else None,
                    running=12 if instance else None,
                )
            )
        for n, instance in enumerate(seeded.instances):
            instances.append(
                InstanceSample(
                    at=at,
                    instance=instance,
                    state=instance.state,
                    running=8 + 3 * n,
                    waiting=2 if n == 1 else 0,
                    kv_usage=0.12 * (n + 1),
                    sm_clock_mhz=900.0 + 90 * n,
                )
            )
    GpuSample.objects.bulk_create(gpus)
    InstanceSample.objects.bulk_create(instances)


def _requests(seeded: Seeded, start: datetime, rps: float, rng: random.Random) -> None:
    busy = [p for p in seeded.pools if p.workers]
    span_s = (seeded.now - start).total_seconds()
    records = []
    for n in range(int(span_s * rps)):
        at = start + timedelta(seconds=n / rps)
        pool = rng.choice(busy)
        _, prompt, output = CLASSES[pool.request_class.rank]
        tokens = max(2, int(rng.lognormvariate(4.5, 0.5) * output))
        ttft_s, tpot_s = rng.lognormvariate(-1.2, 0.6) * prompt, rng.lognormvariate(-2.9, 0.25)
        e2e_s = ttft_s + tpot_s * tokens
        if at + timedelta(seconds=e2e_s) > seeded.now:
            continue  # still running
        records.append(_record(seeded, pool, at, n, tokens, ttft_s, tpot_s, e2e_s, rng))
    RequestRecord.objects.bulk_create(records, batch_size=1_000)


def _record(
    seeded: Seeded,
    pool: Pool,
    at: datetime,
    n: int,
    tokens: int,
    ttft_s: float,
    tpot_s: float,
    e2e_s: float,
    rng: random.Random,
) -> RequestRecord:
    ok = rng.random() > 0.004
    missed = ["ttft"] * (ttft_s > 2.0) + ["tpot"] * (tpot_s > 0.15) + ["e2e"] * (e2e_s > 60.0)
    failed = missed if ok else ["e2e", "tpot", "ttft"]
    return RequestRecord(
        started_at=at,
        request_id=f"seed-{n}",
        service=seeded.service.name,
        tenant=seeded.tenants[n % len(seeded.tenants)],
        endpoint="completions",
        stream=True,
        status="ok" if ok else "upstream_error",
        http_status=200 if ok else 502,
        prompt_tokens=500,
        output_tokens=tokens if ok else None,
        request_class=pool.request_class.name,
        actual_class=pool.request_class.name,
        pool=pool,
        instance_uid=uuid.UUID(int=n),
        ttft_s=ttft_s if ok else None,
        tpot_s=tpot_s if ok else None,
        e2e_s=e2e_s if ok else 0.4,
        timely_tokens=int(tokens * rng.uniform(0.9, 1.0) * min(1.0, (90 / tokens) ** 0.35)) if ok else None,
        attempts=1,
        route_reason="least predicted energy",
        error="" if ok else "engine closed the connection",
        slo_met=ok and not missed,
        slo_failed=",".join(sorted(failed)),
    )


def _decisions(seeded: Seeded, start: datetime) -> None:
    for kind in ("carbon", "scale", "shard"):
        period_s = int(settings.GREENSERVE_LOOPS[kind]["period_s"])
        index = math.ceil(start.timestamp() / period_s)
        while index * period_s <= seeded.now.timestamp():
            due = datetime.fromtimestamp(index * period_s, UTC)
            seeded.decisions.append(_decision(seeded, kind, index, float(period_s), due))
            index += 1
    instance = seeded.instances[0]
    for n in range(12):
        Decision.objects.create(
            kind="clock",
            at=seeded.now - timedelta(seconds=9 * n),
            service=seeded.service,
            pool=instance.pool,
            instance_uid=instance.uid,
            reason="slack" if n % 3 else "congested",
            summary=f"Clock of {str(instance.uid)[:8]}: {1410 - 100 * (n % 3)} MHz to {1310 - 100 * (n % 3)} MHz",
            held=n,
            source_key=f"n1/boot/{n}/0",
        )


def _decision(seeded: Seeded, kind: str, index: int, period_s: float, due: datetime) -> Decision:
    changed = index % 3 != 0
    epoch = Epoch.objects.create(
        kind=kind,
        service=seeded.service,
        index=index,
        period_s=period_s,
        due_at=due,
        started_at=due,
        finished_at=due + timedelta(seconds=0.4),
        status="applied" if changed else "held",
        solve_s=0.31,
    )
    pool = None if kind == "carbon" else seeded.pools[index % 4]
    return Decision.objects.create(
        kind=kind,
        at=due + timedelta(seconds=0.4),
        service=seeded.service,
        epoch=epoch,
        pool=pool,
        reason="optimal" if changed else "no_change",
        summary=f"{kind.title()}: 1 x A100-80GB/TP8 at Location 2 becomes 2 x A100-80GB/TP4"
        if changed
        else f"{kind.title()}: the present plan stays, nothing saves 1 % or more",
        inputs={
            "demand_rps": {"SS": [1.2, 1.3, 1.1], "LL": [0.4, 0.5, 0.5]},
            "intensity_g_per_kwh": {"location-1": [410.0, None, 395.0], "location-2": [280.0, 281.5, 279.0]},
            "forecast_issued_at_s": due.timestamp() - 20,
            "solver": {"status": "optimal", "gap": 0.0, "solve_s": 0.31},
            "objective": "carbon",
        },
        alternatives=[
            {
                "label": "freesh-a: 2 x A100-80GB/TP4",
                "chosen": True,
                "feasible": True,
                "failed": None,
                "power_w": 2_460.0,
                "energy_j": 738_000.0,
                "carbon_gco2e": 57.4,
                "cost_usd": None,
                "ttft_s": 0.12,
                "tpot_s": 0.046,
                "source": "published",
            },
            {
                "label": "freesh-b: 1 x A100-80GB/TP8",
                "chosen": False,
                "feasible": False,
                "failed": "capacity of class LL",
                "power_w": 2_980.0,
                "energy_j": 894_000.0,
                "carbon_gco2e": 69.6,
                "cost_usd": None,
                "ttft_s": 0.23,
                "tpot_s": 0.034,
                "source": "published",
            },
        ],
        commands=[
            {
                "type": "ScaleTo",
                "pool": "location-2/SS",
                "workers": {"A100-80GB/TP4": 2},
            }
        ]
        if changed
        else [],
        predicted={"energy_j": 738_000.0, "carbon_gco2e": 57.4, "mean_power_w": 2_460.0},
        realised={"energy_j": 751_200.0, "carbon_gco2e": 58.9, "mean_power_w": 2_504.0, "requests": 604}
        if due < seeded.now - timedelta(seconds=period_s)
        else None,
    )


def more(seeded: Seeded) -> None:
    """What pages beside the Overview show: profiles, jobs, an alert, a forecast's record, minutes of the GPUs."""
    _profiles(seeded)
    _minutes(seeded)
    _foretold(seeded)
    _jobs(seeded)
    Alert.objects.create(
        rule="power_cap",
        subject=seeded.sites[0].name,
        level="bad",
        summary=f"{seeded.sites[0].label} draws 104 % of its cap",
        step="See its pools; the next carbon epoch moves load",
        value=104_000.0,
        threshold=100_000.0,
        unit="W",
        since=seeded.now - timedelta(minutes=3),
        opened_at=seeded.now - timedelta(minutes=2),
        last_seen_at=seeded.now,
    )


def _profiles(seeded: Seeded) -> None:
    modes = ((A100, 4, 2_900.0, 1.4), (A100, 8, 4_300.0, 1.1), (H100, 4, 3_900.0, 2.4), (H100, 8, 6_200.0, 2.0))
    for n, pool in enumerate(seeded.pools[:4]):
        for gpu_type, tp, power_w, speed in modes:
            Profile.objects.create(
                model_card=seeded.service.model_card,
                request_class=pool.request_class,
                gpu_type=gpu_type,
                tp=tp,
                max_rps=speed * tp / (2.0 + n),
                power_w=power_w,
                e2e_s=(6.0 + 4.0 * n) / (speed * tp / 4),
                tpot_s=0.11 / (speed * tp / 4),
                ttft_s=0.3 / speed,
                kind="published" if gpu_type == A100 else "modelled",
                source="made up for tests",
            )


def _minutes(seeded: Seeded) -> None:
    whole = seeded.now.replace(second=0, microsecond=0)
    held = {h.gpu_id for h in InstanceGpu.objects.all()}
    GpuMinute.objects.bulk_create(
        GpuMinute(
            gpu=gpu,
            start_at=whole - timedelta(minutes=n),
            samples=60,
            heard_s=60.0 if n != 9 else 20.0,
            gaps=int(n == 9),
            power_w=(240.0 + 40.0 * _wave(whole - timedelta(minutes=n), 1_500.0, gpu.index))
            if gpu.pk in held
            else 70.0,
            power_max_w=310.0,
            sm_clock_mhz=1_110.0,
            utilisation=0.8,
            memory_max_bytes=60 * 2**30,
            temperature_max_c=54.0 + gpu.index,
        )
        for gpu in seeded.gpus
        for n in range(1, 30)
    )


def _foretold(seeded: Seeded) -> None:
    """What had been said of the last half hour ten minutes before, and two models' record."""
    for feed in CarbonFeed.objects.select_related("site"):
        start = _tens(seeded.now - timedelta(minutes=30))
        CarbonPoint.objects.bulk_create(
            CarbonPoint(
                feed=feed,
                start_at=(at := start + timedelta(seconds=10 * n)),
                end_at=at + timedelta(seconds=10),
                value_g_per_kwh=_intensity(feed.site.rank, at - timedelta(minutes=1)),
                raw_unit="gCO2e/kWh",
                forecast=True,
                issued_at=at - timedelta(minutes=10),
            )
            for n in range(180)
        )
        for model, pinball in (("seasonal", 14.2), ("persistence", 21.7)):
            ForecastScore.objects.create(
                feed=feed,
                model=model,
                scored_at=seeded.now - timedelta(hours=2),
                step_s=3_600.0,
                steps=24,
                origins=14,
                samples=336,
                quantile=0.5,
                pinball=pinball,
                mape=pinball / 300,
                coverage=0.78,
                regret=pinball / 5,
                chosen=model == "seasonal",
            )


def _jobs(seeded: Seeded) -> None:
    log = "".join(f"12:0{n}:00 step {n} of 5\n" for n in range(1, 4))
    for state, progress in (("done", 1.0), ("running", 0.42), ("queued", 0.0), ("failed", 0.2)):
        Job.objects.create(
            kind="report" if state == "done" else "what_if",
            state=state,
            progress=progress,
            parameters={"period": "2026-10", "by": ["site", "service"]},
            result={"energy_j": 7.4e9} if state == "done" else None,
            log="" if state == "queued" else log,
            error="the scenario names no site" if state == "failed" else "",
            started_at=None if state == "queued" else seeded.now - timedelta(minutes=4),
            finished_at=seeded.now if state in ("done", "failed") else None,
        )
