"""Times every page, fragment, figure and list of a fleet against its budget: `python -m benchmarks.dashboard`.

    python -m benchmarks.dashboard [--fleet usual|large] [--requests N] [--rounds N] [--only NAME] [--browser]

`usual`: 3 sites, 192 GPUs, 12 pools, a month of requests. `large`: 50 sites, 2,000 nodes, 16,000 GPUs, 400 pools, a day
of ten million requests; `--requests` makes it a shorter past, as dense. Both have 1,000 tenants, 40 settled days and
50,000 decisions. Prints for each page the median, the 95th percentile, the CPU time (its own and the database's), what
the first answer takes, which finds nothing in the cache, and the number of queries; with `--browser` also how long the
Overview takes in headless Chromium until its charts are drawn. PostgreSQL and Redis are its own, in a throw-away
folder, or in one that is kept with `--keep`.
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
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.dashboard_fleet import COMING, SIZES, Size, seeded
from benchmarks.own_servers import own_servers

sys.path[0] = str(Path(__file__).parents[1])
BUDGET_MS, OVERVIEW_S, REFRESH_BYTES = 150.0, 1.5, 50_000
LATEST_S = 5.0


@contextmanager
def coming_in(size: Size) -> Iterator[None]:
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
                    connection.execute(sql, {"at": last, "run": f"{began:.0f}", **size.parameters})
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
    from django.urls import reverse

    from frontend.api.resources.series_sources import SERIES
    from frontend.api.urls import router
    from frontend.navigation import GROUPS

    pool, report = parameters["pool"] + 9, parameters["report"]
    site, node, tenant = "/sites/site-01/", "/nodes/site-01-03/", "/tenants/tenant-7/"
    month = f"from={days_ago(30)}&to={days_ago(0)}"
    navigation = {area.label: reverse(area.name) for _, areas in GROUPS for area in areas}
    pages = {
        "Overview, summary": "/overview/summary/",
        "Overview, pools": "/overview/pools/",
        "Overview, tenants": "/tenants/this-month/",
        "Overview, decisions": "/overview/decisions/",
        "Overview, figures": "/overview/figures.json",
        "Overview, figures over 24 h": "/overview/figures.json?range=24h",
        "Overview, figures over 7 d": "/overview/figures.json?range=7d",
        "Overview, figures over 30 d": f"/overview/figures.json?{month}",
        "Site": site,
        "Site, figures over 7 d": f"{site}figures.json?range=7d",
        "Site, figures over 30 d": f"{site}figures.json?{month}",
        "Pools, by power": "/pools/?sort=-power_w",
        "Pool": f"/pools/{pool}/",
        "Pool, figures": f"/pools/{pool}/figures.json",
        "Pool, figures over 30 d": f"/pools/{pool}/figures.json?{month}",
        "Nodes, by power": "/nodes/?sort=-power_w&site=Site+01",
        "Node": node,
        "Node, figures": f"{node}figures.json",
        "Node, figures over 30 d": f"{node}figures.json?{month}",
        "Model": "/models/1/",
        "Model, figures": "/models/1/figures.json",
        "Service": f"/services/{parameters['service']}/",
        "Service, figures over 30 d": f"/services/{parameters['service']}/figures.json?{month}",
        "Feed": "/feeds/1/",
        "Feed, figures": "/feeds/1/figures.json",
        "Tenant": tenant,
        "Tenant, figures": f"{tenant}figures.json",
        "Decision": f"/decisions/{parameters['decision']}/",
        "Decision, figures": f"/decisions/{parameters['decision']}/figures.json",
        "Decisions, found": "/decisions/?q=number+77&kind=shard",
        "Alerts, ended": "/alerts/?state=resolved",
        "Report": f"/reports/{report}/",
        "Report, pivot": f"/reports/{report}/pivot/?rows=tenant",
        "Report, pivot by day": f"/reports/{report}/pivot/?rows=site&rows=day",
        "What-if, new study": "/what-if/new/",
        "What-if, experiments": "/what-if/experiments/",
        "Trials, new": "/trials/new/",
        "Configure, tenants": "/configure/tenants/",
        "Configure, policy": f"/configure/services/{parameters['service_id']}/policy/",
        "Setup": "/setup/",
        "Account": "/account/",
    }
    rest = {f"REST {name}": f"/api/v1/{name}/" for name, view, _ in router.registry if hasattr(view, "list")}
    series = {f"REST series {name}": f"/api/v1/series/{name}/" for name in SERIES}
    series["REST series gpu"] += "?gpu=B-site-01-03-0"
    return navigation | pages | rest | series


def days_ago(days: int) -> str:
    return f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%S}"


def timed(client: Any, path: str, rounds: int) -> dict[str, Any]:
    from django.core.cache import cache
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    cache.clear()
    with CaptureQueriesContext(connection) as queries:
        begun_s = time.process_time()
        answer = client.get(path)
        first_s = time.process_time() - begun_s + sum(float(query["time"]) for query in queries.captured_queries)
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
        "first_ms": round(first_s * 1_000, 1),
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


def made(user: Any) -> dict[str, Any]:
    """A report of the last 30 days, as it is made on one's request; and a decision to open."""
    from scheduler.models import Decision
    from telemetry.models import Report
    from telemetry.reports import report_jobs, report_requests

    report = Report.objects.order_by("pk").first()
    if report is None:
        period = f"{days_ago(30)[:10]}/{days_ago(0)[:10]}"
        report = report_requests.ask({"period": period, "by": ["tenant"], "formats": ["csv"]}, user)
        if not report_jobs.make(report.pk):
            raise SystemExit("the report failed")
    return {"report": report.pk, "decision": Decision.objects.order_by("pk").values_list("pk", flat=True)[0]}


def measure(size: Size, parameters: dict[str, Any], rounds: int, browser: bool, only: str) -> dict[str, Any]:
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.test import Client

    from greenserve import asgi  # noqa: F401 - loads and settles what the server does, before it takes requests

    client = Client(SERVER_NAME="localhost")
    users = get_user_model().objects
    user = users.filter(username="benchmark").first() or users.create_superuser("benchmark")
    client.force_login(user)
    parameters |= made(user)
    found: dict[str, Any] = {}
    with coming_in(size):
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
    parser.add_argument("--fleet", choices=SIZES, default="usual", help="how large a fleet")
    parser.add_argument("--requests", type=int, help="request records, as dense as the fleet's are")
    parser.add_argument("--rounds", type=int, default=20, help="how often each page is asked for")
    parser.add_argument("--browser", action="store_true", help="open the Overview in headless Chromium too")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the database there, and use the one kept there"
    )
    parser.add_argument("--only", default="", help="only the pages whose name has this in it")
    options = parser.parse_args()
    size = SIZES[options.fleet]
    size = replace(size, requests=options.requests or size.requests)
    with own_servers(durable=False, keep=options.keep):
        result = measure(size, seeded(size), options.rounds, options.browser, options.only)
    print(json.dumps(result, indent=1))
    for name, row in result["pages"].items():
        mark = "" if row["p95_ms"] < BUDGET_MS else "  OVER"
        print(
            f"{name:20} median {row['median_ms']:7.1f}  p95 {row['p95_ms']:7.1f} ms  CPU {row['cpu_ms']:7.1f} ms"
            f"  first {row['first_ms']:7.1f} ms"
            f"  {row['queries']:3} queries  {row['kb']:6.1f} KB{mark}"
        )
    print(f"refresh of the charts {result['refresh_kb']} KB (budget {REFRESH_BYTES / 1_000:g})")
    if "overview" in result:
        seen = result["overview"]
        print(f"Overview in Chromium {seen['first_s']} s, then {seen['next_s']} s (budget {OVERVIEW_S})")


if __name__ == "__main__":
    main()
