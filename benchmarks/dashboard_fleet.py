"""The fleets of `benchmarks.dashboard`, with their past, filled in by SQL. All rows are made up."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How large a fleet is. `rps`: its requests a second; `requests`: how many of them are on record, up to now.

    Each tenant has used one pool in each hour of the last 40 days; `busy` of them have sent the requests on record.
    """

    sites: int
    nodes_per_site: int
    classes: int
    tenants: int
    busy: int
    rps: float
    requests: int

    @property
    def pools(self) -> int:
        return self.sites * self.classes

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "pools": self.pools,
            "classes": self.classes,
            "busy": self.busy,
            "rps": self.rps,
            "each": 1 / self.rps,
            "requests": self.requests,
        }


SIZES = {
    "large": Size(50, 40, 8, 1_000, 8, 10_000_000 / 86_400, 10_000_000),
    "usual": Size(3, 8, 4, 1_000, 50, 0.4, 1_000_000),
}
MODES = {"gpu_type": "A100-80GB", "memory_gb": 80.0, "min_mhz": 210.0, "max_mhz": 1410.0, "tdp_w": 400.0}


LENGTH = "10 + floor(900 * random() * random())::int"  # of answers, in tokens

SEEDS = {
    "samples": """
INSERT INTO telemetry_gpusample (at, gpu_id, energy_j, power_w, sm_clock_mhz, utilisation, memory_used_bytes,
                                 temperature_c, instance_id, instance_state, running)
SELECT %(now)s - s * interval '1 second', h.gpu_id, 1e6, 200 + random() * 90, 1110, 0.8, 6e10, 55, h.instance_id,
       'ready', 9
FROM pools_instancegpu h, generate_series(0, 29) s""",
    "engines": """
INSERT INTO telemetry_instancesample (at, instance_id, state, running, waiting, kv_usage, sm_clock_mhz)
SELECT %(now)s - s * interval '1 second', id, 'ready', 9, 0, random() * 0.6, 1110
FROM pools_instance, generate_series(0, 29) s""",
    "minutes": """
INSERT INTO telemetry_gpuminute (gpu_id, start_at, samples, heard_s, gaps, power_w, power_max_w, sm_clock_mhz,
                                 utilisation, memory_max_bytes, temperature_max_c)
SELECT id, date_trunc('minute', %(now)s::timestamptz) - m * interval '1 minute', 60, 60, 0, 240, 300, 1110, 0.8, 6e10,
       55
FROM pools_gpu, generate_series(1, 20) m""",
    "engine minutes": """
INSERT INTO telemetry_engineminute (instance_id, start_at, samples, running, waiting, kv_usage_max, sm_clock_mhz)
SELECT id, date_trunc('minute', %(now)s::timestamptz) - m * interval '1 minute', 60, 9, 0, random() * 0.6, 1110
FROM pools_instance, generate_series(1, 60) m""",
    "entries": """
INSERT INTO telemetry_energyentry (gpu_id, site_id, pool_id, instance_id, start_at, end_at, kind, energy_uj, gpu_us,
                                   intensity_g_per_kwh, carbon_gco2e, posted_at)
SELECT h.gpu_id, p.site_id, p.id, i.id, at, at + interval '10 seconds', 'serving', 24e8, 1e7, 300, 0.2, at
FROM pools_instancegpu h JOIN pools_instance i ON i.id = h.instance_id JOIN pools_pool p ON p.id = i.pool_id,
     generate_series(to_timestamp(floor(extract(epoch FROM %(now)s::timestamptz) / 10) * 10) - interval '16 minutes',
                     %(now)s::timestamptz - interval '30 seconds', interval '10 seconds') at
WHERE at > %(since)s""",
    "meters": """
INSERT INTO telemetry_metermark (gpu_id, at, energy_uj, opened_at, opened_energy_uj)
SELECT id, %(now)s, 1, %(now)s::timestamptz - interval '30 days', 0 FROM pools_gpu
ON CONFLICT (gpu_id) DO UPDATE SET at = excluded.at""",
    "rollups": """
INSERT INTO telemetry_energyrollup (step_s, start_at, site_id, pool_id, kind, energy_uj, gpu_us, carbon_gco2e,
                                    unknown_uj, until)
SELECT step, at, p.site_id, p.id, kind, 9.6e9 * step, 4e7 * step, 0.8 * step, 0, at + step * interval '1 second'
FROM pools_pool p, (VALUES ('serving'), ('idle')) k (kind), (VALUES (60, 7), (600, 25), (3600, 744)) s (step, hours),
     generate_series(date_trunc('hour', %(now)s::timestamptz) - hours * interval '1 hour',
                     %(now)s::timestamptz - step * interval '1 second', step * interval '1 second') at
WHERE at > %(since)s - step * interval '2 seconds' ON CONFLICT DO NOTHING""",
    "points": """
INSERT INTO telemetry_carbonpoint (feed_id, start_at, end_at, value_g_per_kwh, raw_value, raw_unit, factor, forecast,
                                   model, estimated, provider, zone, issued_at, received_at, currency)
SELECT f.id, at, at + interval '5 minutes', 200 + 100 * random(), 1, 'g', 'lifecycle', at > %(now)s, '', false,
       'static_csv', '', least(at, %(now)s), at, ''
FROM telemetry_carbonfeed f,
     generate_series(date_trunc('hour', %(now)s::timestamptz) - interval '2 days',
                     date_trunc('hour', %(now)s::timestamptz) + interval '1 day', interval '5 minutes') at
WHERE at > %(since)s""",
    "requests": f"""
INSERT INTO telemetry_requestrecord (started_at, request_id, service, tenant_id, endpoint, stream, status, http_status,
    prompt_tokens, output_tokens, request_class, actual_class, pool_id, ttft_s, tpot_s, e2e_s, timely_tokens, attempts,
    route_reason, error, slo_met, slo_failed, lost)
SELECT %(now)s - n * %(each)s * interval '1 second', 'r' || n, %(service)s, 1 + n %% %(busy)s, 'completions', true,
       'ok', 200, 500, {LENGTH}, 'C' || n %% %(classes)s, 'C' || n %% %(classes)s, %(pool)s + n %% %(pools)s,
       0.2 + random(), 0.04 + random() * 0.02, 8 + random() * 8, 10, 1, 'least predicted energy', '', true, '', false
FROM generate_series(1, %(requests)s) n""",
    "decisions": """
INSERT INTO scheduler_decision (kind, at, service_id, pool_id, reason, summary, inputs, alternatives, commands,
                                predicted, held)
SELECT (ARRAY['carbon', 'scale', 'shard', 'clock'])[1 + n %% 4], %(now)s - n * interval '3 seconds', %(service_id)s,
       %(pool)s + n %% %(pools)s, 'optimal', 'Shard: 1 x TP8 becomes 2 x TP4, number ' || n, '{}', '[]', '[]', '{}', 0
FROM generate_series(1, 50000) n""",
    "settlements": """
INSERT INTO telemetry_settlement (site_id, start_at, end_at, revision, cause, sources, currency, energy_uj,
                                  unattributed_uj, made_at)
SELECT s.id, w, w + interval '5 minutes', 0, 'first', '{}', 'USD', 0, 0, w
FROM pools_site s, generate_series(date_trunc('hour', %(now)s::timestamptz) - interval '40 days',
                                   date_trunc('hour', %(now)s::timestamptz) - interval '5 minutes',
                                   interval '5 minutes') w
ORDER BY w, s.id""",
    "settled hours": """
INSERT INTO telemetry_statementhour
    (site_id, start_at, kind, pool_id, service, tenant_id, currency, lines, energy_uj, prefill_uj, facility_uj, gpu_us,
     carbon_ug, carbon_unknown_uj, cost_nano, cost_unknown_uj, rental_nano, rental_unknown_us, embodied_ug,
     embodied_unknown_us, requests, prompt_tokens, output_tokens)
SELECT p.site_id, h, 'serving', p.id, %(service)s, t.id, 'USD', 12, e, e / 7, e / 5 * 6, e / 250, e / 9, 0, e / 32000,
       0, e / 2000, 0, e / 80000, 0, 84, 84 * 211, 84 * 97
FROM generate_series(date_trunc('hour', %(now)s::timestamptz) - interval '40 days',
                     date_trunc('hour', %(now)s::timestamptz) - interval '1 hour', interval '1 hour') h
CROSS JOIN pools_tenant t JOIN pools_pool p ON p.id = %(pool)s + t.id %% %(pools)s
CROSS JOIN LATERAL (SELECT 100000000 + (hashtextextended(concat(h, t.id), 1) & 68719476735)) AS x (e)
ORDER BY h, p.site_id, p.id""",
    "audit trail": """
INSERT INTO pools_auditentry (at, user_id, who, key, channel, action, kind, object_key, label, before, after,
                              request_id)
SELECT %(now)s - n * interval '7 minutes', 1, 'somebody', '', 'page', 'update', 'site', n %% 20, 'Site', '{"pue": 1.1}',
       '{"pue": 1.2}', ''
FROM generate_series(1, 10000) n""",
    "alerts": """
INSERT INTO telemetry_alert (rule, subject, state, level, summary, step, value, threshold, unit, since, opened_at,
                             last_seen_at, resolved_at)
SELECT 'queue_long', 'pool ' || n, CASE WHEN n > 10 THEN 'resolved' ELSE 'open' END, 'warn', 'Requests wait', 'Look',
       1, 2, 's', %(now)s, %(now)s, %(now)s, CASE WHEN n > 10 THEN %(now)s::timestamptz END
FROM generate_series(1, 1000) n""",
}
ONCE = ("decisions", "settlements", "settled hours", "audit trail", "alerts")


COMING = {
    "samples": """
INSERT INTO telemetry_gpusample (at, gpu_id, energy_j, power_w, sm_clock_mhz, utilisation, memory_used_bytes,
                                 temperature_c, instance_id, instance_state, running)
SELECT %(at)s::timestamptz, gpu_id, 1e6, 200 + random() * 90, 1110, 0.8, 6e10, 55, instance_id, 'ready', 9
FROM pools_instancegpu""",
    "engines": """
INSERT INTO telemetry_instancesample (at, instance_id, state, running, waiting, kv_usage, sm_clock_mhz)
SELECT %(at)s::timestamptz, id, 'ready', 9, 0, random() * 0.6, 1110 FROM pools_instance""",
    "requests": f"""
INSERT INTO telemetry_requestrecord (started_at, request_id, service, tenant_id, endpoint, stream, status, http_status,
    prompt_tokens, output_tokens, request_class, actual_class, pool_id, ttft_s, tpot_s, e2e_s, timely_tokens, attempts,
    route_reason, error, slo_met, slo_failed, lost)
SELECT %(at)s::timestamptz - (8 + random() * 8) * interval '1 second', %(run)s || '-' || %(at)s::timestamptz || n,
       s.name, 1 + n %% %(busy)s, 'completions', true, 'ok', 200, 500, {LENGTH}, 'C' || n %% %(classes)s,
       'C' || n %% %(classes)s, (SELECT min(id) FROM pools_pool) + floor(random() * %(pools)s)::int, 0.2 + random(),
       0.04 + random() * 0.02, 10, 10, 1, 'least predicted energy', '', true, '', false
FROM pools_service s, generate_series(1, %(rps)s::int) n""",
}


def fleet(size: Size) -> dict[str, Any]:
    """Sites to instances, by the ORM in bulk. Returns the parameters of the seeds' SQL."""
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
        RequestClass,
        Service,
        Site,
        Slo,
        Tenant,
    )
    from telemetry.models import CarbonFeed

    card = ModelCard.objects.create(name="Llama3-70B", max_model_len=16_384, engine="vllm-v1")
    partition = Partition.objects.create(name="eight")
    classes = [RequestClass.objects.create(partition=partition, name=f"C{n}", rank=n) for n in range(size.classes)]
    service = Service.objects.create(name="llama3-70b", model_card=card, partition=partition)
    service.partitions.add(partition)
    for kind, objective_s in (("ttft", 2.0), ("tpot", 0.15)):
        Slo.objects.create(service=service, kind=kind, objective_s=objective_s)
    Tenant.objects.bulk_create(Tenant(name=f"tenant-{n}") for n in range(size.tenants))
    sites = Site.objects.bulk_create(
        Site(name=f"site-{n:02}", label=f"Site {n:02}", grid_zone="DE", rank=n, colour=n, power_cap_w=2e5)
        for n in range(size.sites)
    )
    clusters = Cluster.objects.bulk_create(Cluster(site=site, name="main") for site in sites)
    nodes = Node.objects.bulk_create(
        Node(cluster=cluster, name=f"{cluster.site.name}-{n:02}", simulated=True)
        for cluster in clusters
        for n in range(size.nodes_per_site)
    )
    gpus = Gpu.objects.bulk_create(
        (Gpu(node=node, uuid=f"B-{node.name}-{n}", index=n, **MODES) for node in nodes for n in range(GPUS_PER_NODE)),
        batch_size=4_000,
    )
    workers = {"A100-80GB/TP4": size.nodes_per_site * GPUS_PER_NODE // 4 // size.classes}
    pools = Pool.objects.bulk_create(
        Pool(service=service, site=site, request_class=each, workers=workers) for site in sites for each in classes
    )
    instances = Instance.objects.bulk_create(
        Instance(
            pool=pools[n // size.nodes_per_site * size.classes + (2 * n + half) % size.classes],
            node=node,
            model_card=card,
            gpu_type="A100-80GB",
            tp=4,
            state="ready",
        )
        for n, node in enumerate(nodes)
        for half in range(2)
    )
    InstanceGpu.objects.bulk_create(
        (InstanceGpu(instance=instances[n // 4], gpu=gpu) for n, gpu in enumerate(gpus)), batch_size=4_000
    )
    CarbonFeed.objects.bulk_create(CarbonFeed(site=site, provider="static_csv", source="made up") for site in sites)
    Job.objects.bulk_create(Job(kind="report", state="done", progress=1.0, log="x" * 4_000) for _ in range(2_000))
    return {"service": service.name, "service_id": service.pk, "pool": pools[0].pk}


ANEW = ("telemetry_gpusample", "telemetry_instancesample", "telemetry_gpuminute", "telemetry_engineminute")
SUMMED_UP = ("telemetry_slorollup", "telemetry_tenantrollup", "telemetry_lengthrollup", "telemetry_siteenergy")


def seeded(size: Size) -> dict[str, Any]:
    """A fleet with its past. One that was kept goes on where it ended; its samples are made anew."""
    from django.db import connection

    from pools.models import Pool
    from telemetry.storage import time_partitions
    from telemetry.storage.sql import length_rollups, request_rollups, site_energy

    now, since, requests = datetime.now(UTC), datetime.fromtimestamp(0, UTC), size.requests
    pool = Pool.objects.order_by("pk").select_related("service").first()
    if pool is None:
        parameters = fleet(size)
    else:
        parameters = {"service": pool.service.name, "service_id": pool.service_id, "pool": pool.pk}
        since = _newest_request()
        requests = min(requests, int((now - since).total_seconds() * size.rps))
    parameters |= size.parameters | {"now": now, "since": since, "requests": requests}
    days = int(requests / size.rps // 86_400) + 2
    time_partitions.ensure([(now - timedelta(days=n)).date() for n in range(days)])
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # rows that are consistent need no triggers
        cursor.execute(f"TRUNCATE {', '.join(ANEW)}")
        for name, sql in SEEDS.items():
            if pool is not None and name in ONCE:
                continue
            begun = time.perf_counter()
            cursor.execute(sql, {**parameters})
            print(f"seeded {name}: {cursor.rowcount} rows in {time.perf_counter() - begun:.1f} s", file=sys.stderr)
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute(f"TRUNCATE {', '.join(SUMMED_UP)}")
        for fill in (request_rollups.FILL, length_rollups.FILL, site_energy.FILL):
            cursor.execute(fill)
        cursor.execute("VACUUM ANALYZE")
    report_agents(now)
    return parameters


def report_agents(now: datetime) -> None:
    """Every node's agent speaks, and as of an hour from now: so none falls silent while pages are timed."""
    import redis
    from django.conf import settings

    from pools import wire
    from pools.models import Instance, Node

    live: dict[str, list[wire.InstanceState]] = {name: [] for name in Node.objects.values_list("name", flat=True)}
    for name, uid, pool_id in Instance.objects.values_list("node__name", "uid", "pool_id"):
        url, model = f"http://{name}:8000", "Llama3-70B"
        live[name].append(
            wire.InstanceState(
                str(uid), pool_id, url, "ready", model, "vllm", "A100-80GB", 4, 1_110.0, 210.0, 1_410.0, running=9
            )
        )
    at_s = now.timestamp() + 3_600.0
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=30) as client:
        client.mset(
            {
                wire.agent_key(name): wire.encode(wire.AgentState(name, "boot", at_s, 1, instances))
                for name, instances in live.items()
            }
        )


def _newest_request() -> datetime:
    from telemetry.models import RequestRecord

    newest: datetime = RequestRecord.objects.order_by("-started_at").values_list("started_at", flat=True)[0]
    return newest
