"""Times samples, roll-ups, charts and the ledger against their budgets: `python -m benchmarks.telemetry [PART ...]`.

Parts: ingest, rate, charts, ledger, alerts; all of them without arguments. Prints JSON, then a small table. PostgreSQL
and Redis are its own, started in a throw-away folder with the product's settings, durable; nothing else is touched.

- ingest: agents' encoded batches into tables, as the ingester commits them (decoded, claimed, copied, minutes noted),
  against one binary COPY of the same rows into one table without an index, taken in turns: by the driver from Python
  values that are there already, and of bytes that are laid out already. The ratio is of processor time, client and
  backend together, so that a busy machine does not decide it; the wall clock's stands beside.
- rate: a thousand GPUs at 1 Hz in commits of a fifth of a second, read from Redis, roll-ups included. Processor seconds
  of the ingester and of its PostgreSQL backend for each second of samples.
- charts: thirty days of a thousand GPUs as roll-ups (2.6 billion samples' worth), and what each chart's query takes.
- ledger: a day of a hundred GPUs (8.6 million readings) and three million requests: entered and settled, then held
  against the meters. In processor seconds of a process of its own and of its backend; its peak memory is the figure.
- alerts: rounds of all rules over a thousand GPUs in 125 instances: a quarter of an hour of samples, a day of a million
  requests, three nodes silent, a site at its cap, instances that came up recently. One round is due each 15 s; the
  figure is processor seconds, its process's and its backend's, for each second of that.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_servers import own_servers

sys.path[0] = str(Path(__file__).parents[1])  # this file has the name of the package that it is about
GPUS_PER_NODE = 8
POOLS_PER_SITE = 9
BUDGETS = {
    "ingest_of_raw_copy": (0.5, "at least"),
    "rate_cores": (0.25, "below"),
    "charts_slowest_p95_ms": (150.0, "below"),
    "ledger_s": (180.0, "below"),
    "ledger_peak_mb": (1_000.0, "below"),
    "ledger_imbalance_uj": (0, "exactly"),
    "alerts_cores": (0.05, "below"),
}
TYPES = ["timestamptz", "int8", *["float8"] * 4, "int8", "float8", "int8", "varchar", "int4"]
MINUTE_DAYS = 2  # no chart of more than a day reads minutes
STEPS = (("minute", 60, "gpuminute"), ("hour", 3_600, "gpuhour"), ("day", 86_400, "gpuday"))


def fleet(gpus: int, gpus_per_instance: int = 0) -> list[Any]:
    """GPUs at four sites, with instances on them if asked. Returns the GPUs."""
    from pools import demo
    from pools.models import Cluster, Gpu, Instance, InstanceGpu, Node, Pool, RequestClass, Site

    service = demo.load()
    classes = list(RequestClass.objects.all()[:POOLS_PER_SITE])
    made: list[Any] = []
    for s in range(4):
        site = Site.objects.create(name=f"bench-{s}", label=f"Bench {s}", grid_zone="DE", rank=50 + s)
        cluster = Cluster.objects.create(site=site, name="c")
        pool, *_ = [Pool.objects.create(service=service, site=site, request_class=each) for each in classes]
        while len(made) < gpus * (s + 1) // 4:
            node = Node.objects.create(cluster=cluster, name=f"bench-{s}-{len(made)}", simulated=True)
            kind = {"gpu_type": "A100-80GB", "memory_gb": 80, "min_mhz": 210, "max_mhz": 1410, "tdp_w": 400}
            count = min(GPUS_PER_NODE, gpus * (s + 1) // 4 - len(made))
            own = [Gpu(node=node, uuid=f"B-{node.name}-{i}", index=i, **kind) for i in range(count)]
            Gpu.objects.bulk_create(own)
            made += own
            for at in range(0, count if gpus_per_instance else 0, gpus_per_instance or 1):
                instance = Instance.objects.create(
                    pool=pool, node=node, model_card=service.model_card, gpu_type="A100-80GB", tp=gpus_per_instance
                )
                held = own[at : at + gpus_per_instance]
                InstanceGpu.objects.bulk_create([InstanceGpu(instance=instance, gpu=gpu) for gpu in held])
    return made


def encoded_batches(gpus: list[Any], start_s: float, seconds: int, boot: str) -> list[bytes]:
    """What the agents send: a batch of each node each second."""
    from pools import wire

    rng = np.random.default_rng(7)
    nodes: dict[int, list[Any]] = {}
    for gpu in gpus:
        nodes.setdefault(gpu.node_id, []).append(gpu)
    found = []
    for second in range(seconds):
        for node, own in nodes.items():
            rows = [
                wire.GpuSampleRow(
                    *(start_s + second + 0.013, gpu.uuid, 1e6 + 250.5 * second, 250.0 + float(rng.normal()), 1410.0),
                    *(0.9, 70_000_000_000, 61.0, None, None, None),
                )
                for gpu in own
            ]
            samples = wire.GpuSamples.pack(rows)
            found.append(wire.encode(wire.AgentBatch(f"node-{node}", boot, second, start_s + second, samples)))
    return found


def ingest(rounds: int = 5, seconds: int = 100) -> dict[str, Any]:
    from django.db import connection

    from pools import wire
    from telemetry.ingest import ingester as ingesting
    from telemetry.storage import time_partitions

    gpus = fleet(1_000)
    start_s = float(int(time.time()) // 60 * 60 - 3_000)
    time_partitions.ensure({datetime.fromtimestamp(start_s + n, UTC).date() for n in (0, 3_600)})
    ingester = ingesting.Ingester(None, lambda *_: None)  # type: ignore[arg-type]
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)  # as the ingester's command does
    raw_s: list[Spent] = []
    rows_s: list[Spent] = []
    ours_s: list[Spent] = []
    rows = seconds * len(gpus)
    a_commit = ingesting.READ_COUNT + ingesting.READ_AHEAD  # of a backlog
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
        for turn in range(rounds + 1):  # the first warms up
            sent = encoded_batches(gpus, start_s + turn * seconds, seconds, f"boot-{turn}")
            entries = [ingesting.StreamEntry(wire.BATCH_STREAM, b"1-0", {b"b": body}) for body in sent]
            with Spending(backend) as ours:
                for at in range(0, len(entries), a_commit):
                    ingester.write(entries[at : at + a_commit])
            prepared = exported(start_s + turn * seconds, seconds)
            cursor.execute("CREATE TABLE raw (LIKE telemetry_gpusample)")
            with Spending(backend) as raw, cursor.copy("COPY raw FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(prepared)
            cursor.execute("SELECT count(*) FROM raw")
            assert cursor.fetchone()[0] == rows
            cursor.execute("TRUNCATE raw")
            values = as_values(sent, {gpu.uuid: gpu.pk for gpu in gpus})
            with Spending(backend) as by_row, cursor.copy("COPY raw FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(TYPES)
                for value in values:
                    copy.write_row(value)
            cursor.execute("DROP TABLE raw")
            del values, prepared
            if turn:
                ours_s.append(ours.spent)
                raw_s.append(raw.spent)
                rows_s.append(by_row.spent)
    return {
        "rows": rows,
        "ingest_us_per_row": round(statistics.median(one.cpu_s for one in ours_s) / rows * 1e6, 2),
        "raw_copy_us_per_row": round(statistics.median(one.cpu_s for one in raw_s) / rows * 1e6, 2),
        "ingest_rows_per_s": round(rows / statistics.median(one.wall_s for one in ours_s)),
        "raw_copy_rows_per_s": round(rows / statistics.median(one.wall_s for one in raw_s)),
        "raw_copy_by_row_us_per_row": round(statistics.median(one.cpu_s for one in rows_s) / rows * 1e6, 2),
        "ingest_of_prepared_bytes": ratio(raw_s, ours_s, "cpu_s"),
        "ingest_of_raw_copy_by_wall_clock": ratio(rows_s, ours_s, "wall_s"),
        "ingest_of_raw_copy": ratio(rows_s, ours_s, "cpu_s"),
    }


def as_values(sent: list[bytes], ids: dict[str, int]) -> list[tuple[Any, ...]]:
    """The same rows as Python values, ready for the driver."""
    from pools import wire

    found = []
    for body in sent:
        for r in wire.decode(body, wire.AgentBatch).gpus.unpack():
            at = datetime.fromtimestamp(r.at_s, UTC)
            values = (r.energy_j, r.power_w, r.sm_clock_mhz, r.utilisation, r.memory_used_bytes, r.temperature_c)
            found.append((at, ids[r.gpu_uuid], *values, None, r.instance_state, r.running))
    return found


def ratio(raw: list[Spent], ours: list[Spent], what: str) -> float:
    pairs = zip(raw, ours, strict=True)
    return round(statistics.median(getattr(a, what) / getattr(b, what) for a, b in pairs), 3)


def exported(start_s: float, seconds: int) -> bytes:
    from django.db import connection

    span = [datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(start_s + seconds, UTC)]
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY (SELECT * FROM telemetry_gpusample WHERE at >= %s AND at < %s) TO STDOUT (FORMAT BINARY)", span
        ) as copy,
    ):
        return b"".join(bytes(part) for part in copy)


def rate(seconds: int = 60) -> dict[str, Any]:
    import redis
    from django.conf import settings
    from django.db import connection

    from pools import wire
    from telemetry.ingest import sample_rollups
    from telemetry.ingest.ingester import Ingester
    from telemetry.models import GpuHour, GpuMinute

    gpus = fleet(1_000)
    client = redis.Redis.from_url(settings.REDIS_URL)
    start_s = float(int(time.time()) // 60 * 60 - 3_000)
    sent = encoded_batches(gpus, start_s, seconds, "boot")
    ingester = Ingester(client, lambda *_: None)
    ingester.ensure_groups()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    a_commit = len(sent) // seconds // 5
    used_s = before_s = 0.0
    for turn, at in enumerate(range(0, len(sent), a_commit)):
        turns = sent[at : at + a_commit]
        for body in turns:
            client.xadd(wire.BATCH_STREAM, {"b": body})
        before_s = time.process_time() + cpu_s(backend)
        while ingester.step(block_ms=1) < len(turns):
            pass
        if turn % 75 == 74:  # each fifteen seconds, as beat asks
            sample_rollups.roll_up(datetime.fromtimestamp(start_s + turn / 5, UTC))
        used_s += time.process_time() + cpu_s(backend) - before_s
    before_s = time.process_time() + cpu_s(backend)
    sample_rollups.roll_up(datetime.fromtimestamp(start_s + seconds + 120, UTC))
    used_s += time.process_time() + cpu_s(backend) - before_s
    assert GpuHour.objects.count() >= len(gpus)
    return {
        "gpus": len(gpus),
        "seconds": seconds,
        "rate_cores": round(used_s / seconds, 4),
        "minutes_made": GpuMinute.objects.count(),
    }


@dataclass
class Spent:
    wall_s: float = 0.0
    cpu_s: float = 0.0  # of this process and of its backend: other work on the machine hardly blurs it


class Spending:
    """Measures what is done inside it, by the wall clock and by the processor's."""

    def __init__(self, backend: int) -> None:
        self.spent = Spent()
        self._backend = backend

    def __enter__(self) -> Spending:
        self._began = (time.perf_counter(), time.process_time() + cpu_s(self._backend))
        return self

    def __exit__(self, *_: object) -> None:
        wall_s, used_s = self._began
        self.spent = Spent(time.perf_counter() - wall_s, time.process_time() + cpu_s(self._backend) - used_s)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process, to the kernel's tick (a hundredth)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def charts(days: int = 30, rounds: int = 40) -> dict[str, Any]:
    from django.db import connection

    from telemetry import selectors
    from telemetry.models import MeterMark
    from telemetry.models.rollups import STEPS_S
    from telemetry.selectors.frames import TimeRange
    from telemetry.storage import time_partitions

    gpus = fleet(1_000)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    start = now - timedelta(days=days + 1)
    time_partitions.ensure({start.date() + timedelta(days=n) for n in range(days + 3)}, ("telemetry_gpuminute",))
    MeterMark.objects.bulk_create(
        MeterMark(gpu=gpu, at=now, energy_uj=10**12, opened_at=start, opened_energy_uj=0) for gpu in gpus
    )
    counts = {}
    with connection.cursor() as cursor:
        for unit, step_s, table in STEPS:
            since = max(start, now - timedelta(days=MINUTE_DAYS)) if unit == "minute" else start
            cursor.execute(
                f"INSERT INTO telemetry_{table} SELECT g.id, t, %s, %s, 0, 250 + random() * 50, 390, 1400, 0.9, 7e10, "
                "61 FROM generate_series(date_trunc(%s, %s::timestamptz, 'UTC'), %s, make_interval(secs => %s)) t "
                "CROSS JOIN pools_gpu g WHERE g.uuid LIKE 'B-%%'",
                [step_s, step_s, unit, since, now, step_s],
            )
            counts[table] = cursor.rowcount
        for step_s in STEPS_S:
            since = max(start, now - timedelta(days=MINUTE_DAYS)) if step_s == 60 else start
            counts[f"energy of {step_s} s"] = energy_sums(step_s, since, now)
        connection.connection.autocommit = True
        cursor.execute("VACUUM ANALYZE")
    now_s, one = now.timestamp(), gpus[500]
    queries: dict[str, Callable[[float], object]] = {
        "power and carbon of all sites": lambda range_s: selectors.energy(TimeRange.last(range_s, now_s)),
        "one GPU": lambda range_s: selectors.gpu_series(one.pk, one.uuid, TimeRange.last(range_s, now_s)),
        "gaps of all meters": lambda range_s: selectors.meter_gaps(now_s - range_s + 420, now_s),
        "totals": lambda range_s: selectors.totals(now_s - range_s + 420),
    }
    taken = {}
    for name, query in queries.items():
        for day_count in (1, 7, days):
            times_ms = []
            for _ in range(rounds + 2):
                began = time.perf_counter()
                query(day_count * 86_400.0)
                times_ms.append((time.perf_counter() - began) * 1e3)
            taken[f"{name}, {day_count} d"] = round(float(np.percentile(times_ms[2:], 95)), 1)
    return {"rows": counts, "p95_ms": taken, "charts_slowest_p95_ms": max(taken.values())}


def ledger(gpus: int = 100, requests: int = 3_000_000) -> dict[str, Any]:
    own = fleet(gpus, gpus_per_instance=4)
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    day_of_samples(own, start)
    day_of_requests(start, requests)
    from django.db import connection

    connection.close()
    return in_own_process(_enter_day, start, gpus)


def day_of_samples(gpus: list[Any], start: datetime, seconds: int = 86_400 + 30) -> None:
    """Instances that serve in waves; each GPU misses a sample now and then, and one GPU has a gap of ten minutes."""
    from pools.models import InstanceGpu
    from telemetry.storage import copying, time_partitions

    time_partitions.ensure({(start + timedelta(days=n)).date() for n in range(-1, 3)})
    held = dict(InstanceGpu.objects.values_list("gpu_id", "instance_id"))
    rng = np.random.default_rng(3)
    at_us = round(start.timestamp() * 1e6) + np.arange(seconds) * 1_000_000 + 7_000
    for n, gpu in enumerate(gpus):
        busy = np.sin(np.arange(seconds) / 3_000 + n // 4) > -0.6
        power_w = np.where(busy, 310.0, 75.0) + rng.normal(size=seconds)
        keep = rng.random(seconds) > 0.001
        if n == 7:
            keep[40_000:40_600] = False
        count = int(keep.sum())
        copying.write(
            "telemetry_gpusample",
            [
                copying.moments("at", at_us[keep]),
                copying.Column("gpu_id", copying.BIGINT, np.full(count, gpu.pk)),
                copying.Column("energy_j", copying.DOUBLE, 5e7 + np.cumsum(power_w)[keep]),
                copying.Column("power_w", copying.DOUBLE, power_w[keep]),
                copying.Column("instance_id", copying.BIGINT, np.full(count, held[gpu.pk])),
                copying.words("instance_state", ["ready"] * count),
                copying.Column("running", copying.INTEGER, np.where(busy, 9, 0)[keep]),
            ],
        )


def energy_sums(step_s: int, since: datetime, now: datetime) -> int:
    """Roll-ups of one step for all pools. Returns how many."""
    from django.db import connection

    first = datetime.fromtimestamp(since.timestamp() // step_s * step_s, UTC)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_energyrollup (step_s, start_at, site_id, pool_id, kind, energy_uj, gpu_us, "
            "carbon_gco2e, unknown_uj, until) "
            "SELECT %s, t, p.site_id, p.id, kind, 250e6 * %s, 250e6 * %s / 4, %s * 25.0, 0, t "
            "FROM generate_series(%s::timestamptz, %s, make_interval(secs => %s)) t "
            "CROSS JOIN pools_pool p CROSS JOIN unnest(ARRAY['serving','idle','transition','unattributed']) kind "
            "WHERE p.site_id IN (SELECT id FROM pools_site WHERE name LIKE 'bench-%%')",
            [step_s, step_s, step_s, step_s, first, now, step_s],
        )
        return int(cursor.rowcount)


def alerts(rounds: int = 40) -> dict[str, Any]:
    import redis
    from django.conf import settings
    from django.db import connection

    from pools import wire
    from pools.models import Instance, Node, Site
    from telemetry.alerts import evaluation
    from telemetry.models import Alert, MeterMark
    from telemetry.storage import time_partitions

    gpus = fleet(1_000, GPUS_PER_NODE)
    now = datetime.now(UTC).replace(microsecond=0)
    time_partitions.ensure({(now + timedelta(days=n)).date() for n in range(-2, 2)})
    MeterMark.objects.bulk_create(
        MeterMark(gpu=gpu, at=now, energy_uj=10**12, opened_at=now, opened_energy_uj=0) for gpu in gpus
    )
    Site.objects.filter(name="bench-0").update(power_cap_w=250 * 75.0)
    up = Instance.objects.filter(gpu_type="A100-80GB")
    up.update(state=Instance.State.READY, desired=Instance.State.READY, ready_at=now - timedelta(days=1))
    Instance.objects.filter(pk__in=up.order_by("pk")[:25]).update(ready_at=now - timedelta(minutes=5))
    for step_s in (60, 86_400):
        energy_sums(step_s, now - timedelta(days=2), now)
    day_of_requests(now - timedelta(days=1), 1_000_000)
    with connection.cursor() as cursor:
        span = {"start": now - timedelta(minutes=15), "end": now}
        cursor.execute(
            "INSERT INTO telemetry_gpusample (at, gpu_id, energy_j, power_w) SELECT t, g.id, 1e6, 250 "
            "FROM generate_series(%(start)s::timestamptz, %(end)s, '1 second') t "
            "CROSS JOIN pools_gpu g WHERE g.uuid LIKE 'B-%%'",
            span,
        )
        cursor.execute(
            "INSERT INTO telemetry_instancesample (at, instance_id, state, running, waiting) "
            "SELECT t, i.id, 'ready', 20, i.id %% 7 "
            "FROM generate_series(%(start)s::timestamptz, %(end)s, '1 second') t "
            "CROSS JOIN pools_instance i WHERE i.gpu_type = 'A100-80GB'",
            span,
        )
        connection.connection.autocommit = True
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    names = list(Node.objects.values_list("name", flat=True))
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        for name in names[3:]:
            state = wire.AgentState(name, "boot", now.timestamp(), 1, [])
            client.set(wire.agent_key(name), wire.encode(state), ex=600)
    spent = []
    for turn in range(rounds):
        with Spending(backend) as one:
            evaluation.run(now - timedelta(milliseconds=10 * (rounds - turn)))
        spent.append(one.spent)
    return {
        "gpus": len(gpus),
        "nodes": len(names),
        "alerts_open": Alert.objects.filter(state=Alert.AlertState.OPEN).count(),
        "alerts_first_round_ms": round(spent[0].wall_s * 1e3, 1),
        "alerts_round_p50_ms": round(float(np.percentile([one.wall_s for one in spent[1:]], 50)) * 1e3, 1),
        "alerts_round_p95_ms": round(float(np.percentile([one.wall_s for one in spent[1:]], 95)) * 1e3, 1),
        "alerts_cores": round(sum(one.cpu_s for one in spent[1:]) / (15.0 * (rounds - 1)), 4),
    }


def day_of_requests(start: datetime, count: int) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO telemetry_requestrecord (started_at, request_id, service, tenant_id, endpoint, stream, status,
                http_status, prompt_tokens, output_tokens, pool_id, instance_uid, ttft_s, tpot_s, e2e_s, queue_s,
                attempts, route_reason, error, slo_failed, lost)
            SELECT %s + make_interval(secs => n * 86400.0 / %s), 'request-' || n, s.name, 1 + n %% 20, 'chat', true,
                'ok', 200, 100 + n %% 3000, 20 + n %% 400, i.pool_id, i.uid, 0.3, 0.03,
                0.3 + 0.03 * (20 + n %% 400), 0.01, 1, '', '', '', false
            FROM generate_series(0, %s - 1) n
            JOIN (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS all_of_them
                  FROM pools_instance WHERE gpu_type = 'A100-80GB' AND node_id IN
                  (SELECT id FROM pools_node WHERE name LIKE 'bench-%%')) i ON i.place = n %% i.all_of_them
            JOIN pools_pool p ON p.id = i.pool_id JOIN pools_service s ON s.id = p.service_id
            """,
            [start, count, count],
        )


def _enter_day(start: datetime, gpus: int) -> dict[str, Any]:
    import django

    django.setup()
    from django.db import connection
    from django.db.models import Sum

    from pools.models import Gpu
    from telemetry.ledger import posting as ledger
    from telemetry.ledger import settlement
    from telemetry.models import EnergyEntry, RequestShare, Settlement, StatementLine
    from tests.oracles.meter_balance import balance

    idle_mb = peak_mb()
    end = start + timedelta(days=1)
    with connection.cursor() as cursor:
        # The marks stand where the day begins, as if the ledger had been away for a day.
        cursor.execute(
            "INSERT INTO telemetry_metermark (gpu_id, at, energy_uj, opened_at, opened_energy_uj) "
            "SELECT DISTINCT ON (gpu_id) gpu_id, at, round(energy_j * 1e6), at, round(energy_j * 1e6) "
            "FROM telemetry_gpusample WHERE at < %s::timestamptz + interval '30 seconds' ORDER BY gpu_id, at",
            [start],
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    with Spending(backend) as posting:
        while ledger.post(end + timedelta(seconds=25)):
            pass
    with Spending(backend) as settling:
        windows = settlement.settle(end + timedelta(seconds=961))
    posted, settled = posting.spent, settling.spent
    own = Gpu.objects.filter(uuid__startswith="B-")
    balances = [balance(gpu) for gpu in own]
    lines = StatementLine.objects.aggregate(uj=Sum("energy_uj"), requests=Sum("requests"))
    serving = StatementLine.objects.filter(kind="serving").aggregate(uj=Sum("energy_uj"))["uj"]
    shares = RequestShare.objects.aggregate(p=Sum("prefill_uj"), d=Sum("decode_uj"))
    entered = EnergyEntry.objects.filter(start_at__lt=Settlement.objects.latest("start_at").end_at)
    entries_uj = entered.aggregate(uj=Sum("energy_uj"))["uj"]
    off = [sum(abs(b.difference_uj) for b in balances), abs(lines["uj"] - entries_uj)]
    off.append(abs(serving - shares["p"] - shares["d"]))
    unattributed = Settlement.objects.aggregate(uj=Sum("unattributed_uj"))["uj"]
    return {
        "gpus": gpus,
        "requests": lines["requests"],
        "entries": EnergyEntry.objects.count(),
        "windows": windows,
        "posted_cpu_s": round(posted.cpu_s, 1),
        "settled_cpu_s": round(settled.cpu_s, 1),
        "ledger_wall_s": round(posted.wall_s + settled.wall_s, 1),
        "ledger_s": round(posted.cpu_s + settled.cpu_s, 1),
        "ledger_peak_mb": round(peak_mb()),
        "idle_mb": round(idle_mb),
        "metered_j": round(sum(b.metered_uj for b in balances) / 1e6, 6),
        "ledger_imbalance_uj": sum(off),
        "unattributed_share": round(unattributed / lines["uj"], 6),
    }


def in_own_process(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result(timeout=3_600)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024.0


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "ingest": ingest,
    "rate": rate,
    "charts": charts,
    "ledger": ledger,
    "alerts": alerts,
}


def run(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """In a database of its own."""
    with own_servers():
        return part()


def measure(parts: Mapping[str, Callable[[], dict[str, Any]]], budgets: Mapping[str, tuple[float, str]]) -> None:
    """Runs the parts that the command line names and prints what they found, and whether budgets were kept."""
    wanted = sys.argv[1:] or list(parts)
    if strange := set(wanted) - set(parts):
        sys.exit(f"no such part: {', '.join(sorted(strange))}; there are {', '.join(parts)}")
    # A database for each, and Django is set up for one only.
    found = {part: in_own_process(run, parts[part]) for part in wanted}
    print(json.dumps(found, indent=2))
    print()
    for part in wanted:
        for name, (budget, words) in budgets.items():
            if name in found[part]:
                value = found[part][name]
                kept = {"at least": value >= budget, "below": value < budget, "exactly": value == budget}[words]
                print(f"{name:24} {value:>10}  {words} {budget:g}  {'kept' if kept else 'MISSED'}")


if __name__ == "__main__":
    measure(PARTS, BUDGETS)
