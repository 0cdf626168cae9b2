"""Times the pages on a large fleet against their budgets: `python -m benchmarks.dashboard [--requests N] [--browser]`.

50 sites, 2,000 nodes, 16,000 GPUs, 400 pools, and request records as dense as ten million a day: `--requests
10000000` is the whole day; fewer are a shorter past, as dense. Prints for each page the median, the 95th percentile,
the CPU time (its own and the database's) and the number of queries; with `--browser` also how long the Overview takes
in headless Chromium until its charts are drawn. PostgreSQL and Redis are its own, in a throw-away folder, or in one
that is kept with `--keep`. All rows are made up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.own_servers import own_servers

sys.path[0] = str(Path(__file__).parents[1])
SITES, NODES_PER_SITE, GPUS_PER_NODE, CLASSES = 50, 40, 8, 8
RPS = 10_000_000 / 86_400
BUDGET_MS, OVERVIEW_S, REFRESH_BYTES = 200.0, 1.5, 50_000
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
FROM pools_pool p, (VALUES ('serving'), ('idle')) k (kind), (VALUES (60, 7), (600, 25), (3600, 336)) s (step, hours),
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
SELECT %(now)s - n * %(each)s * interval '1 second', 'r' || n, %(service)s, 1 + n %% 8, 'completions', true, 'ok', 200,
       500, {LENGTH}, 'C' || n %% 8, 'C' || n %% 8, %(pool)s + n %% 400, 0.2 + random(), 0.04 + random() * 0.02,
       8 + random() * 8, 10, 1, 'least predicted energy', '', true, '', false
FROM generate_series(1, %(requests)s) n""",
    "decisions": """
INSERT INTO scheduler_decision (kind, at, service_id, pool_id, reason, summary, inputs, alternatives, commands,
                                predicted, held)
SELECT (ARRAY['carbon', 'scale', 'shard', 'clock'])[1 + n %% 4], %(now)s - n * interval '3 seconds', %(service_id)s,
       %(pool)s + n %% 400, 'optimal', 'Shard: 1 x TP8 becomes 2 x TP4, number ' || n, '{}', '[]', '[]', '{}', 0
FROM generate_series(1, 50000) n""",
}


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
       s.name, 1 + n %% 8, 'completions', true, 'ok', 200, 500, {LENGTH}, 'C' || n %% 8, 'C' || n %% 8,
       (SELECT min(id) FROM pools_pool) + floor(random() * 400)::int, 0.2 + random(), 0.04 + random() * 0.02, 10, 10,
       1, 'least predicted energy', '', true, '', false
FROM pools_service s, generate_series(1, %(rps)s::int) n""",
}
LATEST_S = 5.0


def fleet() -> dict[str, Any]:
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

    card = ModelCard.objects.create(name="Llama3-70B", max_model_len=16_384)
    partition = Partition.objects.create(name="eight")
    classes = [RequestClass.objects.create(partition=partition, name=f"C{n}", rank=n) for n in range(CLASSES)]
    service = Service.objects.create(name="llama3-70b", model_card=card, partition=partition)
    service.partitions.add(partition)
    for kind, objective_s in (("ttft", 2.0), ("tpot", 0.15)):
        Slo.objects.create(service=service, kind=kind, objective_s=objective_s)
    Tenant.objects.bulk_create(Tenant(name=f"tenant-{n}") for n in range(8))
    sites = Site.objects.bulk_create(
        Site(name=f"site-{n:02}", label=f"Site {n:02}", grid_zone="DE", rank=n, colour=n, power_cap_w=2e5)
        for n in range(SITES)
    )
    clusters = Cluster.objects.bulk_create(Cluster(site=site, name="main") for site in sites)
    nodes = Node.objects.bulk_create(
        Node(cluster=cluster, name=f"{cluster.site.name}-{n:02}", simulated=True)
        for cluster in clusters
        for n in range(NODES_PER_SITE)
    )
    gpus = Gpu.objects.bulk_create(
        (Gpu(node=node, uuid=f"B-{node.name}-{n}", index=n, **MODES) for node in nodes for n in range(GPUS_PER_NODE)),
        batch_size=4_000,
    )
    workers = {"A100-80GB/TP4": NODES_PER_SITE * GPUS_PER_NODE // 4 // CLASSES}
    pools = Pool.objects.bulk_create(
        Pool(service=service, site=site, request_class=each, workers=workers) for site in sites for each in classes
    )
    instances = Instance.objects.bulk_create(
        Instance(
            pool=pools[n // NODES_PER_SITE * CLASSES + (2 * n + half) % CLASSES],
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


def seeded(requests: int) -> dict[str, Any]:
    """A fleet with its past. One that was kept goes on where it ended; its samples are made anew."""
    from django.db import connection

    from pools.models import Pool
    from telemetry.storage import time_partitions
    from telemetry.storage.sql import length_rollups, request_rollups, site_energy

    now, since = datetime.now(UTC), datetime.fromtimestamp(0, UTC)
    pool = Pool.objects.order_by("pk").select_related("service").first()
    if pool is None:
        parameters = fleet()
    else:
        parameters = {"service": pool.service.name, "service_id": pool.service_id, "pool": pool.pk}
        since = _newest_request()
        requests = min(requests, int((now - since).total_seconds() * RPS))
    parameters |= {"now": now, "since": since, "requests": requests, "each": 1 / RPS}
    days = int(requests / RPS // 86_400) + 2
    time_partitions.ensure([(now - timedelta(days=n)).date() for n in range(days)])
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # rows that are consistent need no triggers
        cursor.execute(f"TRUNCATE {', '.join(ANEW)}")
        for name, sql in SEEDS.items():
            if pool is not None and name == "decisions":
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


@contextmanager
def coming_in() -> Iterator[None]:
    """While pages are timed samples and request records come in as they do on such a fleet, each second's at once."""
    import psycopg

    from telemetry.ingest.ingester import HEARTBEAT_S
    from telemetry.storage.brin_summaries import Summaries

    stop, began = threading.Event(), time.time()

    def write() -> None:
        sums, summed_up = Summaries(), 0.0
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            written = connection.execute("SELECT max(at) FROM telemetry_gpusample").fetchone()
            last = written[0] if written else datetime.now(UTC)
            while not stop.wait(max(0.0, last.timestamp() + 1.0 - time.time())):
                last += timedelta(seconds=1)
                if last.timestamp() < time.time() - LATEST_S:
                    last = datetime.now(UTC)  # it cannot keep up, as an ingester that was away could not
                for sql in COMING.values():
                    connection.execute(sql, {"at": last, "rps": RPS, "run": f"{began:.0f}"})
                if time.time() > summed_up + HEARTBEAT_S:  # as the ingester does
                    summed_up = time.time()
                    sums.keep_up(datetime.now(UTC))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=30)


def paths(parameters: dict[str, Any]) -> dict[str, str]:
    from frontend.api.resources.series_sources import SERIES
    from frontend.api.urls import router

    pages = {
        "overview": "/",
        "overview summary": "/overview/summary/",
        "overview pools": "/overview/pools/",
        "overview figures": "/overview/figures.json",
        "power over 24 h": "/overview/figures.json?range=24h&charts=power,carbon",
        "power over 7 d": "/overview/figures.json?range=7d&charts=power,carbon",
        "sites": "/sites/",
        "site": "/sites/site-07/",
        "pools": "/pools/",
        "pools, by power": "/pools/?sort=-power_w",
        "pool": f"/pools/{parameters['pool'] + 9}/",
        "pool figures": f"/pools/{parameters['pool'] + 9}/figures.json",
        "nodes": "/nodes/",
        "nodes, by power": "/nodes/?sort=-power_w&site=Site+07",
        "node": "/nodes/site-07-11/",
        "node figures": "/nodes/site-07-11/figures.json",
        "models": "/models/",
        "services": "/services/",
        "feeds": "/feeds/",
        "decisions": "/decisions/",
        "decisions, found": "/decisions/?q=number+77&kind=shard",
        "jobs": "/jobs/",
        "alerts": "/alerts/",
        "health": "/health/",
    }
    rest = {f"REST {name}": f"/api/v1/{name}/" for name, view, _ in router.registry if hasattr(view, "list")}
    series = {f"REST series {name}": f"/api/v1/series/{name}/" for name in SERIES}
    series["REST series gpu"] += "?gpu=B-site-07-11-0"
    return pages | rest | series


def timed(client: Any, path: str, rounds: int) -> dict[str, Any]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        answer = client.get(path)
    if answer.status_code != 200:
        raise SystemExit(f"{path} answered {answer.status_code}")
    slowest = max(queries.captured_queries, key=lambda q: float(q["time"]), default={"time": "0", "sql": ""})
    count, spans, worked = len(queries), [], []  # of the first: what is captured is gone with the next request
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    for _ in range(rounds):
        begun, busy_s = time.perf_counter(), time.process_time() + _cpu_s(backend)
        client.get(path)
        spans.append((time.perf_counter() - begun) * 1_000)
        worked.append((time.process_time() + _cpu_s(backend) - busy_s) * 1_000)
    ordered = sorted(spans)
    return {
        "cpu_ms": round(statistics.median(worked), 1),
        "median_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], 1),
        "queries": count,
        "kb": round(len(answer.content) / 1_000, 1),
        "slowest_query_ms": round(float(slowest["time"]) * 1_000),
        "slowest": " ".join(slowest["sql"].split())[:90],
    }


def _cpu_s(pid: int) -> float:
    """Of a process so far. Beside what is computing at the same time it says what a page costs, as waiting does not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(cookie: tuple[str, str]) -> dict[str, Any]:
    """The Overview in Chromium, from the click to drawn charts, on a server of Django's own."""
    from pytest_django.live_server_helper import LiveServer

    from tests.e2e import browser as chrome

    live = LiveServer("localhost")
    live._live_server_modified_settings.enable()
    spans = []
    try:
        with chrome.launched() as chromium:
            context = chromium.new_context(base_url=str(live.url))
            context.add_cookies([{"name": cookie[0], "value": cookie[1], "url": str(live.url)}])
            for _ in range(4):
                page = context.new_page()
                begun = time.perf_counter()
                page.goto("/", wait_until="domcontentloaded")
                chrome.wait_for_charts(page)
                spans.append(time.perf_counter() - begun)
                page.close()
    finally:
        live.stop()
    return {"first_s": round(spans[0], 2), "next_s": round(statistics.median(spans[1:]), 2)}


def measure(parameters: dict[str, Any], rounds: int, browser: bool, only: str) -> dict[str, Any]:
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.test import Client

    from greenserve import asgi  # noqa: F401 - loads and settles what the server does, before it takes requests

    client = Client(SERVER_NAME="localhost")
    users = get_user_model().objects
    user = users.filter(username="benchmark").first() or users.create_superuser("benchmark")
    client.force_login(user)
    found: dict[str, Any] = {}
    with coming_in():
        for name, path in paths(parameters).items():
            if only not in name:
                continue
            row = found[name] = timed(client, path, rounds)
            print(f"{name}: p95 {row['p95_ms']} ms, {row['queries']} queries, {row['slowest']}", file=sys.stderr)
    refresh = client.get("/overview/figures.json?range=1h", headers={"accept-encoding": "gzip"})
    result: dict[str, Any] = {"pages": found, "refresh_kb": round(len(refresh.content) / 1_000, 1)}
    if browser:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's loop is in this thread
        result["overview"] = opened((settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000_000, help="request records, at ten million a day")
    parser.add_argument("--rounds", type=int, default=20, help="how often each page is asked for")
    parser.add_argument("--browser", action="store_true", help="open the Overview in headless Chromium too")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the database there, and use the one kept there"
    )
    parser.add_argument("--only", default="", help="only the pages whose name has this in it")
    options = parser.parse_args()
    with own_servers(durable=False, keep=options.keep):
        result = measure(seeded(options.requests), options.rounds, options.browser, options.only)
    print(json.dumps(result, indent=1))
    for name, row in result["pages"].items():
        mark = "" if row["p95_ms"] < BUDGET_MS else "  OVER"
        print(
            f"{name:20} median {row['median_ms']:7.1f}  p95 {row['p95_ms']:7.1f} ms  CPU {row['cpu_ms']:7.1f} ms"
            f"  {row['queries']:3} queries  {row['kb']:6.1f} KB{mark}"
        )
    print(f"refresh of the charts {result['refresh_kb']} KB (budget {REFRESH_BYTES / 1_000:g})")
    if "overview" in result:
        seen = result["overview"]
        print(f"Overview in Chromium {seen['first_s']} s, then {seen['next_s']} s (budget {OVERVIEW_S})")


if __name__ == "__main__":
    main()
