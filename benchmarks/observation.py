"""What demand costs to keep and to read: `python -m benchmarks.observation [PART ...]`.

Parts: insert; all of them without arguments. Prints JSON, then a small table. PostgreSQL is its own, started in a
throw-away folder with the product's settings, durable. Figures are processor seconds of this process and of its
backend: other work on the machine hardly blurs a ratio.

- insert: request records as the ingester inserts them, with the trigger that keeps sketches of demand over without it,
  taken in turns: in all, and of the backend alone. 20,000 records of 700 requests a second, with the lengths of Azure's
  conversation trace.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np

from benchmarks.telemetry import Spending, cpu_s, measure

TRIGGER = "telemetry_requestrecord_demand_added"


def backend() -> int:
    """The process id of PostgreSQL's side of Django's connection."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def records(rng: np.random.Generator, count: int, rate_rps: float, end_s: float) -> list[Any]:
    """Requests in the order in which they end."""
    from core.simulator.workload.lengths import AZURE_CONV
    from tests.fakes.house import request_row

    prompts, outputs = (tokens.tolist() for tokens in AZURE_CONV.draw(rng, count))
    return [
        request_row(
            end_s - (count - n) / rate_rps - 0.3 - 0.03 * outputs[n],
            prompt_tokens=prompts[n],
            output_tokens=outputs[n],
            predicted_output_tokens=max(1, round(outputs[n] * rng.lognormal(0.0, 0.3))),
            request_class="LL",
            e2e_s=0.3 + 0.03 * outputs[n],
        )
        for n in range(count)
    ]


def insert(rounds: int = 5, count: int = 20_000) -> dict[str, Any]:
    from django.db import connection

    from pools import demo
    from telemetry.ingest import request_records
    from telemetry.models import DemandSketch
    from telemetry.storage import time_partitions

    demo.load()
    end_s = float(int(time.time()))
    time_partitions.ensure({datetime.fromtimestamp(end_s - ago_s, UTC).date() for ago_s in (0.0, 3_600.0)})
    rng, pid, objectives = np.random.default_rng(1), backend(), request_records.Objectives()
    in_all: dict[bool, list[float]] = {True: [], False: []}
    of_backend: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(rounds + 1):  # the first warms up
        for kept in in_all:
            with connection.cursor() as cursor:
                verb = "ENABLE" if kept else "DISABLE"
                cursor.execute(f"ALTER TABLE telemetry_requestrecord {verb} TRIGGER {TRIGGER}")
            rows = records(rng, count, 700.0, end_s)
            before_s = cpu_s(pid)
            with Spending(pid) as one:
                request_records.insert(rows, objectives)
            if turn:
                in_all[kept].append(one.spent.cpu_s)
                of_backend[kept].append(cpu_s(pid) - before_s)
    assert DemandSketch.objects.exists()
    return {
        "us_per_record": round(statistics.median(in_all[True]) / count * 1e6, 1),
        "insert_with_sketch": _ratio(in_all[True], in_all[False]),
        "insert_with_sketch_of_backend": _ratio(of_backend[True], of_backend[False]),
    }


def _ratio(many: list[float], few: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(many, few, strict=True)), 3)


if __name__ == "__main__":
    measure({"insert": insert}, {"insert_with_sketch": (1.35, "below")})
