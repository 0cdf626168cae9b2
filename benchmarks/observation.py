"""What demand costs to keep and to read: `python -m benchmarks.observation [PART ...]`.

Parts: insert, observe; all of them without arguments. Prints JSON, then a small table. PostgreSQL and Redis are its
own, started in a throw-away folder with the product's settings, durable. Figures are processor seconds of this process
and of its backend: other work on the machine hardly blurs a ratio.

- insert: request records as the ingester inserts them, with the trigger that keeps sketches of demand over without it,
  taken in turns: in all, and of the backend alone. 20,000 records of 700 requests a second, with the lengths of Azure's
  conversation trace.
- observe: what the loops of the demo's service observe in a turn, at 10, 700 and 10,000 requests a second, taken in
  turns: the context, the observations of the carbon and the scale loop, and of a loop that looks each ten seconds. Half
  an hour of sketches with the lengths of the same trace. `demand` is the reading of sketches alone.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np

from benchmarks.telemetry import Spending, cpu_s, measure
from core.observations.demand.class_arrivals import STRETCH_S

RATES_RPS = (10, 700, 10_000)
WINDOW_S = 1_800.0
SKETCH_COLUMNS = (
    *("service", "start_at", "request_class", "prompt_from", "prompt_to", "output_from", "output_to"),
    *("requests", "prompt_tokens", "output_tokens", "context_tokens", "ended"),
)
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


def name_at(rate_rps: int) -> str:
    """A service under whose name there are sketches of that rate."""
    return f"at-{rate_rps}"


def sketches(rng: np.random.Generator, rate_rps: int, start_s: float, stretches: int) -> list[tuple[Any, ...]]:
    """Rows as the trigger would have kept them, in the order of `SKETCH_COLUMNS`."""
    from core.simulator.workload.lengths import AZURE_CONV
    from telemetry.storage.sql import demand_sketches

    prompt_borders = _borders("input", demand_sketches.PROMPT_BORDERS)
    output_borders = _borders("output", demand_sketches.OUTPUT_BORDERS)
    rows = []
    for n in range(stretches):
        prompts, outputs = AZURE_CONV.draw(rng, int(rng.poisson(rate_rps * STRETCH_S)))
        ranges = np.stack(
            [np.searchsorted(prompt_borders, prompts, "right"), np.searchsorted(output_borders, outputs, "right")]
        )
        found, where = np.unique(ranges, axis=1, return_inverse=True)
        sums = (None, prompts, outputs, outputs * (prompts + outputs / 2))
        requests, prompt, output, context = (np.bincount(where.ravel(), weights) for weights in sums)
        start_at = datetime.fromtimestamp(start_s + n * STRETCH_S, UTC)
        for k, (a, b) in enumerate(found.T):
            lengths = (*prompt_borders[a - 1 : a + 1], *output_borders[b - 1 : b + 1])
            counts = (int(requests[k]), int(prompt[k]), int(output[k]), float(context[k]), int(requests[k]))
            rows.append((name_at(rate_rps), start_at, "LL", *lengths, *counts))
    return rows


def _borders(side: str, base: tuple[int, ...]) -> list[int]:
    from pools.models import RequestClass
    from telemetry.storage.sql.demand_sketches import OPEN_END

    own = [end for pair in RequestClass.objects.values_list(f"{side}_min", f"{side}_max") for end in pair]
    return [*sorted({0, *base, *(length for length in own if length is not None)}), OPEN_END]


def observe(rounds: int = 20, warm_up: int = 3) -> dict[str, Any]:
    import redis
    from django.conf import settings
    from django.db import connection
    from django.utils import timezone

    from pools import demo
    from pools.models import Node, Service
    from scheduler.control import epochs, turn_context
    from scheduler.control.snapshot import snapshot
    from scheduler.control.snapshot.offered_nodes import offered_nodes
    from scheduler.control.snapshot.recorded_demand import arrivals
    from scheduler.control.steps import recent_load
    from scheduler.control.steps.policy_steps import LoopTurn
    from telemetry.models import DemandSketch
    from tests.fakes.house import refresh_feeds, report_all, requests_came

    settings.GREENSERVE_LOOPS["carbon"]["period_s"] = settings.GREENSERVE_LOOPS["scale"]["period_s"] = WINDOW_S
    service, now, client = demo.load(), timezone.now(), redis.Redis.from_url(settings.REDIS_URL)
    report_all(client)
    refresh_feeds(now)
    requests_came(now, count=30_000, over_s=300.0)
    epochs.run_now(service, now)  # pools get budgets and workers
    start_s = (now.timestamp() - WINDOW_S) // STRETCH_S * STRETCH_S
    for rate_rps in RATES_RPS:
        rows = sketches(np.random.default_rng(2), rate_rps, start_s, round(WINDOW_S / STRETCH_S))
        columns = ", ".join(SKETCH_COLUMNS)
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {DemandSketch._meta.db_table} ({columns}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")

    def demand() -> None:
        arrivals(service, now, WINDOW_S)

    def turn() -> None:
        context = turn_context.resolve(service, now, nodes)
        snapshot.carbon(context, offered_nodes(context))
        snapshot.scale(context)
        seen = arrivals(service, now, context.times.look_back_s)
        classes = snapshot.classes_now(context, service.partition, seen, 1)
        by_name = {own.request_class.name: own for own in classes}
        recent_load.stretches(LoopTurn(context, {}, False), seen, by_name, WINDOW_S)

    service, nodes, pid = Service.objects.get(), list(Node.objects.values_list("name", flat=True)), backend()
    spent_s = {(what, rate_rps): 0.0 for what in (demand, turn) for rate_rps in RATES_RPS}
    for n in range(warm_up + rounds):
        report_all(client)  # reports are forgotten after a minute
        for what, rate_rps in spent_s:
            service.name = name_at(rate_rps)
            service.save()
            with Spending(pid) as one:
                what()
            if n >= warm_up:
                spent_s[what, rate_rps] += one.spent.cpu_s
    found: dict[str, Any] = {}
    for what, name in ((turn, "turn"), (demand, "demand")):
        own_s = [spent_s[what, rate_rps] for rate_rps in RATES_RPS]
        found[f"{name}_ms"] = {
            str(rate_rps): round(s / rounds * 1e3, 1) for rate_rps, s in zip(RATES_RPS, own_s, strict=True)
        }
        found[f"{name}_10_to_10000"] = round(own_s[2] / own_s[0], 3)
        found[f"{name}_700_to_10000"] = round(own_s[2] / own_s[1], 3)
    return found


if __name__ == "__main__":
    measure(
        {"insert": insert, "observe": observe},
        {
            "insert_with_sketch": (1.35, "below"),
            "turn_10_to_10000": (1.5, "below"),
            "turn_700_to_10000": (1.1, "below"),
        },
    )
