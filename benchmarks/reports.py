"""How long a month's report takes on 1,000 GPUs, with a FOCUS export of a million rows: `python -m benchmarks.reports`.

    python -m benchmarks.reports [--rows 1000000] [--focus-version 1.4] [--json]

The whole of it, as a worker makes it from PostgreSQL: every counter held against the ledger, lines to CSV and Parquet,
checksums, and both files read back. PostgreSQL is its own, started in a throw-away folder with the product's settings.
The month is made up: windows, their sums by the hour as the database keeps them, and a year of each GPU's sums.

The wall clock counts everybody else on the machine; processor seconds of the worker and of its backend do not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from typing import Any

from benchmarks.own_servers import own_servers
from benchmarks.telemetry import cpu_s, fleet

MONTH = "2025-10"
FIRST, LAST = "2025-10-01 00:00Z", "2025-10-31 23:55Z"
HOURS, POOLS, GPUS = 31 * 24, 36, 1_000
LIMIT_S = 30.0
SITES = "(SELECT id FROM pools_site WHERE name LIKE 'bench-%%') AS s (id)"

WINDOWS_SQL = f"""
INSERT INTO telemetry_settlement
    (site_id, start_at, end_at, revision, cause, sources, currency, energy_uj, unattributed_uj, made_at)
SELECT s.id, w, w + interval '5 minutes', 0, 'first', '{{}}', 'USD', 0, 0, w
FROM generate_series(timestamptz '{FIRST}', timestamptz '{LAST}', interval '5 minutes') AS w, {SITES} ORDER BY w, s.id
"""
LINES_SQL = f"""
INSERT INTO telemetry_statementhour
    (site_id, start_at, kind, pool_id, service, tenant_id, currency, lines, energy_uj, prefill_uj, facility_uj, gpu_us,
     carbon_ug, carbon_unknown_uj, cost_nano, cost_unknown_uj, rental_nano, rental_unknown_us, embodied_ug,
     embodied_unknown_us, requests, prompt_tokens, output_tokens)
SELECT p.site_id, h, k.kind, p.id, CASE k.kind WHEN 'serving' THEN v.name ELSE '' END, k.tenant, 'USD', 12, e, e / 7,
       e / 5 * 6, e / 250, e / 9, 0, e / 32000, 0, e / 2000, 0, e / 80000, 0, k.requests, k.requests * 211,
       k.requests * 97
FROM generate_series(timestamptz '{FIRST}', timestamptz '{LAST}', interval '1 hour') AS h
JOIN pools_pool p ON p.site_id IN (SELECT id FROM {SITES}) JOIN pools_service v ON v.id = p.service_id
CROSS JOIN (SELECT 'serving', id, 84 FROM pools_tenant WHERE name LIKE 'bench-%%'
            UNION ALL VALUES ('idle', NULL::bigint, 0), ('transition', NULL, 0)) AS k (kind, tenant, requests)
CROSS JOIN LATERAL (SELECT 100000000 + (hashtextextended(concat(h, p.id, k), 1) & 68719476735)) AS x (e)
ORDER BY h, p.site_id, p.id
"""
METERS_SQL = f"""
INSERT INTO telemetry_gpuenergy (gpu_id, site_id, step_s, start_at, energy_uj)
SELECT g.id, c.site_id, step_s, h, step_s * 250000000::bigint
FROM pools_gpu g JOIN pools_node n ON n.id = g.node_id JOIN pools_cluster c ON c.id = n.cluster_id
CROSS JOIN (VALUES (3600, timestamptz '{FIRST}'), (86400, timestamptz '2025-01-01 00:00Z')) AS steps (step_s, since)
CROSS JOIN generate_series(since, timestamptz '{LAST}', make_interval(secs => step_s)) AS h WHERE g.uuid LIKE 'B-%%';
INSERT INTO telemetry_metermark (gpu_id, at, energy_uj, opened_at, opened_energy_uj)
SELECT gpu_id, '2025-11-01', sum(energy_uj), '2025-01-01', 0 FROM telemetry_gpuenergy WHERE step_s = 86400 GROUP BY 1
"""


def month(rows: int, formats: list[str], focus_version: str) -> dict[str, Any]:
    """Makes the month and its report, in a process and a database of its own."""
    with own_servers():
        _fill(rows)
        return _report(formats, focus_version)


def _fill(rows: int) -> None:
    from django.db import connection

    from pools.models import Site, Tenant
    from telemetry.models import Tariff

    fleet(GPUS)
    tenants = max(1, round(rows / (HOURS * POOLS)) - 2)
    Tenant.objects.bulk_create(Tenant(name=f"bench-{n}") for n in range(tenants))
    since = datetime(2025, 1, 1, tzinfo=UTC)
    for site in Site.objects.filter(name__startswith="bench-"):
        Tariff.objects.create(
            site=site, currency=site.currency, price_per_kwh=0.1, valid_from=since, source="made up", version="1"
        )
    with connection.cursor() as cursor:
        for sql in (WINDOWS_SQL, LINES_SQL, METERS_SQL):
            cursor.execute(sql.replace("%%", "%"))
        cursor.execute("ANALYZE")


def _report(formats: list[str], focus_version: str) -> dict[str, Any]:
    from django.db import connection

    from pools.models import Job, JobState, Site
    from telemetry.models import Report
    from telemetry.report_values.basis import Basis
    from telemetry.report_values.report_request import ReportRequest
    from telemetry.reports import ledger_source, report_jobs, report_requests, settled_lines
    from telemetry.reports.ledger_source import Scope

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    sites = tuple(Site.objects.filter(name__startswith="bench-").values_list("pk", flat=True))
    scope = Scope(ReportRequest(MONTH).span(), ledger_source.newest_version() or 0, sites)
    meters_s, meters_cpu_s, _ = _timed(backend, lambda: ledger_source.meters(scope))
    before_mib = _peak_mib()
    report = report_requests.ask({"period": MONTH, "formats": formats, "focus_version": focus_version})
    total_s, cpu, backend_cpu = _timed(backend, lambda: report_jobs.make(report.pk))
    job = Job.objects.get(pk=report.job_id)
    if job.state != JobState.DONE:
        raise RuntimeError(job.error)
    report = Report.objects.get(pk=report.pk)
    reconciliation = json.loads(
        report_requests.path_of(report.files.get(format="reconciliation")).read_text(encoding="utf-8")
    )
    basis = Basis.from_json(report.basis)
    read_s, read_cpu_s, read_backend_s = _timed(
        backend, lambda: sum(block.height for block in settled_lines.blocks(scope, basis))
    )
    return {
        "total_s": round(total_s, 2),
        "cpu_s": round(cpu + backend_cpu, 2),  # what the wall clock shows on a machine of one's own, at most
        "worker_cpu_s": round(cpu, 2),
        "backend_cpu_s": round(backend_cpu, 2),
        "limit_s": LIMIT_S,
        "reading_lines_s": round(read_s, 2),
        "reading_lines_cpu_s": round(read_cpu_s + read_backend_s, 2),
        "meters_s": round(meters_s, 2),
        "meters_cpu_s": round(meters_cpu_s, 2),
        "meters": len(reconciliation["meters"]),
        "meters_off": sum(meter["difference_j"] != "0" for meter in reconciliation["meters"]),
        "peak_mib": round(_peak_mib()),
        "peak_before_mib": round(before_mib),
        "files": {f.format: {"rows": f.rows, "mib": round(f.size_bytes / 2**20, 1)} for f in report.files.all()},
    }


def _timed(backend: int, work: Any) -> tuple[float, float, float]:
    """Seconds on the wall, of this process's processors, and of the backend's."""
    began, own, theirs = time.perf_counter(), time.process_time(), cpu_s(backend)
    work()
    return time.perf_counter() - began, time.process_time() - own, cpu_s(backend) - theirs


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", default=["focus-csv", "focus-parquet"])
    parser.add_argument("--focus-version", default="1.4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(month, options.rows, options.formats, options.focus_version).result(timeout=3_600)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
