"""Builds the page in Prometheus' text format, at most once in a few seconds however many ask."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import redis
from django.conf import settings
from django.db import DatabaseError
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from core.units import J_PER_KWH
from frontend import health, loop_health
from pools import redis_address, wire
from telemetry import selectors
from telemetry.selectors.frames import TimeRange

from . import readings
from .readings import ScrapeState

log = logging.getLogger(__name__)

PREFIX = "greenserve_"
KEPT_S = 5.0
REDIS_TIMEOUT_S = 1.0
Labels = tuple[str, ...]
F = TypeVar("F", bound=Metric)


class Page:
    """The page as it was last made. Any thread may ask; one makes it, and the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = ScrapeState()
        self._made_s = float("-inf")
        self._text = b""

    def text(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._made_s >= KEPT_S:
                registry = CollectorRegistry(auto_describe=False)
                registry.register(FleetCollector(self._state))
                self._text = generate_latest(registry)
                self._made_s = time.monotonic()
            return self._text


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def filled(family: F, samples: Iterable[tuple[Labels, float | None]]) -> F:
    """Adds samples to a family; what is not known is left out, never 0."""
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)  # type: ignore[attr-defined]  # all families have it, their base has not
    return family


class FleetCollector(Collector):
    """All families, in groups that are read apart: one that cannot be read leaves the others be, and is counted."""

    def __init__(self, state: ScrapeState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        began_s, now, failed = time.monotonic(), datetime.now(UTC), 0
        for group in (self._health, self._tasks, self._energy, self._service, self._work):
            try:
                yield from list(group(now))
            except (DatabaseError, redis.RedisError) as error:
                log.warning("metrics: %s cannot be read: %s", group.__name__.strip("_"), str(error).strip())
                failed += 1
        took_s = time.monotonic() - began_s
        yield filled(gauge("scrape_duration_seconds", "What reading all of this took."), [((), took_s)])
        yield filled(gauge("scrape_failed_groups", "Groups of figures that could not be read."), [((), failed)])

    def _health(self, now: datetime) -> Iterator[Metric]:
        """Yields metrics of processes, nodes, loops and the ingester, as the Health page judges them."""
        found = health.gather(now)
        yield from _processes(found)
        up = [((n.name,), float(n.state == "reporting")) for n in found.nodes]
        yield filled(gauge("node_up", "Whether the node's agent reports.", "node"), up)
        ages = [((n.name,), n.age_s) for n in found.nodes]
        yield filled(gauge("node_report_age_seconds", "Since the agent's last report, while known.", "node"), ages)
        loops = [((loop.kind, loop.service), float(loop.state in loop_health.WELL)) for loop in found.loops]
        text = (
            "Whether the loop runs on time and finds plans; 1 too while paused or where its policy leaves it no choice."
        )
        yield filled(gauge("loop_up", text, "kind", "service"), loops)
        paused = [((loop.kind, loop.service), float(loop.pause is not None)) for loop in found.loops]
        yield filled(gauge("loop_paused", "Whether somebody has paused the loop.", "kind", "service"), paused)
        solved = [((loop.kind, loop.service), loop.solve_s) for loop in found.loops]
        yield filled(gauge("loop_solve_seconds", "What the newest epoch took to solve.", "kind", "service"), solved)
        ingest = found.ingest
        waiting = [(("samples",), ingest.waiting_batches), (("requests",), ingest.waiting_requests)]
        yield filled(gauge("ingest_waiting_messages", "Messages in Redis not yet stored.", "stream"), waiting)
        requests = ingest.waiting_requests
        share = None if requests is None else requests / wire.REQUEST_STREAM_MOST
        ratios = [(("samples",), ingest.batches_share), (("requests",), share)]
        text = "Messages in Redis not yet stored, of the most that the stream takes."
        yield filled(gauge("ingest_stream_ratio", text, "stream"), ratios)
        text = "Age of the newest sample that is stored."
        yield filled(gauge("ingest_newest_sample_age_seconds", text), [((), ingest.newest_sample_age_s)])
        text = "Messages, or rows of them, that could not be stored and were set aside."
        yield filled(gauge("ingest_dead_messages", text), [((), readings.dead_rows())])

    def _tasks(self, now: datetime) -> Iterator[Metric]:
        """Celery's workers: epochs, simulations, batches, and beat through what it has them do."""
        with _redis() as client:
            found = readings.tasks(client)
        runs = counter("task_runs", "Runs of background tasks, by outcome.", "task", "outcome")
        took = SummaryMetricFamily(
            PREFIX + "task_duration_seconds", "What runs of background tasks took.", labels=["task"]
        )
        for task, sums in sorted(found.items()):
            outcomes = {what: n for what, n in sums.items() if what != "seconds"}
            for outcome, n in sorted(outcomes.items()):
                runs.add_metric((task, outcome), n)
            took.add_metric((task,), int(sum(outcomes.values())), sums.get("seconds", 0.0))
        yield from (runs, took)

    def _energy(self, now: datetime) -> Iterator[Metric]:
        state = self._state
        rows = state.energy()
        state.settle()
        text = "Energy metered at the GPUs since the ledger began, by what they were doing."
        yield filled(counter("energy_joules", text, "site", "kind"), (((r.site, r.kind), r.energy_j) for r in rows))
        for name, unit, text in (
            ("carbon", "carbon_grams", "Location-based gCO2e, PUE included, recorded since this process began."),
            ("embodied", "embodied_carbon_grams", "Embodied gCO2e settled since this process began."),
        ):
            yield filled(counter(unit, text, "site"), state.rising.items(name))
        text = "Electricity's cost settled since this process began, in the label's currency."
        yield filled(counter("electricity_cost", text, "site", "currency"), state.rising.items("cost"))
        yield from _sites(now)
        shares = list(readings.ledger_shares(now))
        for rule, name, text in (
            ("ledger_imbalance", "ledger_imbalance_ratio", "Entries against meters, of two days' energy; 0 is exact."),
            ("energy_unattributed", "ledger_unattributed_ratio", "Share of the last hour's energy that is nobody's."),
        ):
            yield filled(
                gauge(name, text, "site"), (((site,), share) for which, site, share in shares if which == rule)
            )
        ages = [((site, signal, provider), age_s) for site, signal, provider, age_s in readings.feed_ages(now)]
        text = "Since the carbon feed last answered."
        yield filled(gauge("carbon_feed_age_seconds", text, "site", "signal", "provider"), ages)
        text = "Average carbon intensity of the site's grid now, gCO2e for each joule (times 3.6e6: for each kWh)."
        now_g = (((site,), g / J_PER_KWH) for site, g in sorted(readings.intensities(now).items()))
        yield filled(gauge("carbon_intensity_grams_per_joule", text, "site"), now_g)

    def _service(self, now: datetime) -> Iterator[Metric]:
        """Yields objectives, fairness and instances. Attainment is of requests that ended in the last five minutes."""
        found = readings.attainment(now)
        names = ("service", "objective")
        shares = ((key, a.within / a.judged if a.judged else None) for key, a in found.items())
        yield filled(gauge("slo_attainment_ratio", "Share of requests within the objective, 5 min.", *names), shares)
        targets = ((key, a.target) for key, a in found.items())
        yield filled(
            gauge("slo_target_ratio", "Share of requests that is to be within the objective.", *names), targets
        )
        judged = ((key, float(a.judged)) for key, a in found.items())
        yield filled(gauge("slo_judged_requests", "Requests judged by the objective, 5 min.", *names), judged)
        burns = (((*key, f"{window:.0f}"), rate) for key, a in found.items() for window, rate in a.burn.items())
        text = "How many times too fast the error budget burns, over a window of so many seconds."
        yield filled(gauge("slo_burn_rate", text, *names, "window_seconds"), burns)
        jain = selectors.tenant_fairness(TimeRange.last(readings.RECENT.total_seconds(), now.timestamp()))
        yield filled(gauge("tenant_fairness_jain_ratio", "Jain index of tenants, 5 min."), [((), jain)])
        live = ((labels, float(n)) for *labels, n in readings.instances())
        columns = ("service", "site", "request_class", "state")
        yield filled(gauge("instances", "Instances that have not stopped.", *columns), ((tuple(k), n) for k, n in live))

    def _work(self, now: datetime) -> Iterator[Metric]:
        """Yields counts of decisions, epochs, jobs, batches and alerts."""
        for name, text, labels, rows in (
            ("decisions", "Decisions of the last 5 min.", ("kind", "reason"), readings.decisions(now)),
            ("epochs", "Epochs of the last hour.", ("kind", "status"), readings.epochs(now)),
            ("jobs", "Jobs, by state.", ("kind", "state"), readings.jobs()),
            ("alerts", "Alerts that have not ended.", ("rule", "level", "state"), readings.open_alerts()),
        ):
            yield filled(gauge(name, text, *labels), ((tuple(key), float(n)) for *key, n in rows))
        by_status, waiting = readings.batches()
        yield filled(
            gauge("batches", "Batches, by status.", "status"), (((status,), float(n)) for status, n in by_status)
        )
        yield filled(gauge("batch_lines_waiting", "Lines of batches without an answer."), [((), float(waiting))])


def _processes(found: health.Health) -> Iterator[Metric]:
    """Yields what the supervisor reports of each process, and what each reports of itself."""
    columns: tuple[tuple[str, str, Callable[[health.ProcessHealth], Any], Callable[..., Any]], ...] = (
        ("process_up", "Whether it runs, and its loop turns.", lambda p: float(p.state == "running"), gauge),
        ("process_restarts", "Starts after the first, since `greenserve up`.", lambda p: p.restarts, counter),
        ("process_start_time_seconds", "When it was started, Unix time.", lambda p: p.started_at_s, gauge),
        ("process_heartbeat_age_seconds", "Since its last sign of life.", lambda p: p.heartbeat_age_s, gauge),
        ("process_cpu_seconds", "CPU time of it and all it started.", lambda p: p.cpu_s, counter),
        ("process_resident_memory_bytes", "Memory of it and all it started.", lambda p: p.rss_bytes, gauge),
    )
    for name, text, value, kind in columns:
        yield filled(kind(name, text, "process"), (((p.name,), value(p)) for p in found.processes))


def _sites(now: datetime) -> Iterator[Metric]:
    power = readings.site_power(now)
    for name, text, column in (
        ("site_power_watts", "Power of the GPUs heard in the last 15 s.", "power_w"),
        ("site_power_cap_watts", "The site's cap, where it has one.", "cap_w"),
        ("site_gpus", "GPUs in the inventory.", "gpus"),
        ("site_gpus_reporting", "GPUs heard in the last 15 s.", "heard"),
    ):
        yield filled(gauge(name, text, "site"), (((site,), row[column]) for site, row in sorted(power.items())))


def _redis() -> redis.Redis:
    return redis_address.connect(
        settings.REDIS_URL, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
    )


PAGE = Page()
