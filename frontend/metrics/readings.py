"""The queries behind `/metrics`: of sums and small tables; what grows with time is read by a mark or a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import redis
from django.db.models import Count, Max

from pools import wire
from pools.models import Instance, Job
from scheduler.models import Batch, BatchLine, Decision, Epoch
from telemetry.alerts import alert_settings, slo_minutes, sources
from telemetry.alerts.burn_rates import counted, rates
from telemetry.models import Alert, CarbonFeed, DeadRow, StatementLine
from telemetry.selectors import _sql as sql

RECENT = timedelta(minutes=5)

ENERGY_SQL = """
SELECT s.name AS site, r.kind, sum(r.energy_uj)::float8 / 1e6 AS energy_j, sum(r.carbon_gco2e) AS carbon_g
FROM telemetry_energyrollup r JOIN pools_site s ON s.id = r.site_id WHERE r.step_s = 86400 GROUP BY 1, 2
"""

SETTLED_SQL = """
SELECT s.name AS site, t.currency, sum(l.cost_nano)::float8 / 1e9 AS cost,
       sum(l.embodied_ug)::float8 / 1e6 AS embodied_g
FROM telemetry_statementline l JOIN telemetry_settlement t ON t.id = l.settlement_id
JOIN pools_site s ON s.id = t.site_id
WHERE t.id > %(after)s AND t.id <= %(until)s GROUP BY 1, 2
"""


class Rising:
    """Counters made of sums that may be corrected downwards: they keep what rose since this process began.

    A counter that fell would be taken for one that began anew, and all that it holds for an increase.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], float] = {}
        self._total: dict[tuple[str, ...], float] = defaultdict(float)

    def follow(self, key: tuple[str, ...], value: float) -> float:
        """A sum as it stands now."""
        return self.add(key, value - self._last.get(key, value), value)

    def add(self, key: tuple[str, ...], change: float, now: float = 0.0) -> float:
        self._last[key] = now
        self._total[key] += max(0.0, change)
        return self._total[key]

    def items(self, name: str) -> list[tuple[tuple[str, ...], float]]:
        return [(key[1:], total) for key, total in sorted(self._total.items()) if key[0] == name]


@dataclass(frozen=True, slots=True)
class Attainment:
    judged: int
    within: int
    target: float
    burn: Mapping[float, float | None]


@dataclass(slots=True)
class ScrapeState:
    """Keeps rising sums, and how far settlements are in them, from one scrape to the next. For one thread at a time."""

    rising: Rising = field(default_factory=Rising)
    settled: int | None = None  # the last settlement that is in the sums

    def energy(self) -> list[Any]:
        """Sums by site and kind: joules since the ledger began, and grams, whose rises are followed."""
        rows = sql.rows(ENERGY_SQL, {})
        grams: dict[str, float] = defaultdict(float)
        for row in rows:
            grams[row.site] += row.carbon_g
        for site, carbon_g in grams.items():
            self.rising.follow(("carbon", site), carbon_g)
        return rows

    def settle(self) -> None:
        """Adds what was settled since the last time. Settlements are numbered one after the other, under a lock."""
        newest = StatementLine.objects.aggregate(newest=Max("settlement_id"))["newest"] or 0
        if self.settled is not None and newest > self.settled:
            for row in sql.rows(SETTLED_SQL, {"after": self.settled, "until": newest}):
                self.rising.add(("cost", row.site, row.currency), row.cost)
                self.rising.add(("embodied", row.site), row.embodied_g)
        self.settled = newest


def site_power(now: datetime) -> dict[str, dict[str, float | None]]:
    """By site: watts of the GPUs heard in the last 15 s (None: none was), cap, GPUs there are and were heard."""
    found: dict[str, dict[str, float | None]] = {}
    for row in sql.rows(sources.POWER_SQL, {"now": now}):
        site = found.setdefault(row.site, {"power_w": None, "cap_w": row.cap_w, "gpus": 0, "heard": 0})
        site["gpus"] = (site["gpus"] or 0) + row.gpus
        site["heard"] = (site["heard"] or 0) + row.gpus - row.unheard
        if row.power_w is not None:
            site["power_w"] = (site["power_w"] or 0.0) + row.power_w
    return found


def ledger_shares(now: datetime) -> Iterator[tuple[str, str, float]]:
    """(rule, site, share): imbalance, and what is nobody's of the last hour. As the alerts judge them."""
    for reading in sources.LEDGER.read(now, alert_settings.all_rules()):
        if reading.value is not None:
            yield reading.rule, reading.subject, reading.value


def intensities(now: datetime) -> dict[str, float]:
    """Returns grams per kWh of each site now, where it is known."""
    rows = sql.rows(INTENSITY_SQL, {"now": now})
    return {row.site: row.g_per_kwh for row in rows if row.g_per_kwh is not None}


INTENSITY_SQL = """
SELECT DISTINCT ON (s.name) s.name AS site, p.value_g_per_kwh AS g_per_kwh
FROM telemetry_carbonfeed f JOIN pools_site s ON s.id = f.site_id JOIN telemetry_carbonpoint p ON p.feed_id = f.id
WHERE f.signal = 'average' AND NOT p.forecast AND p.start_at <= %(now)s AND p.end_at > %(now)s - interval '15 seconds'
  AND p.start_at > %(now)s - interval '1 day'
ORDER BY s.name, p.start_at DESC, p.issued_at DESC
"""


def feed_ages(now: datetime) -> list[tuple[str, str, str, float | None]]:
    """(site, signal, provider, seconds since it answered); None: it never has."""
    rows = CarbonFeed.objects.values_list("site__name", "signal", "provider", "last_ok_at")
    return [
        (site, signal, provider, None if at is None else max(0.0, (now - at).total_seconds()))
        for site, signal, provider, at in rows
    ]


def attainment(now: datetime) -> dict[tuple[str, str], Attainment]:
    """Returns attainment by (service, kind of objective), of the requests that ended in the last five minutes."""
    minutes = slo_minutes.minutes(now)
    found = {}
    for key, target in slo_minutes.targets().items():
        counts, now_s = minutes.get(key, []), now.timestamp()
        found[key] = Attainment(*counted(counts, now_s, RECENT.total_seconds()), target, rates(counts, target, now_s))
    return found


def instances() -> list[tuple[str, str, str, str, int]]:
    """Returns (service, site, request class, state, count) of the instances that have not stopped."""
    rows = Instance.objects.exclude(state=Instance.State.STOPPED).order_by()
    columns = ("pool__service__name", "pool__site__name", "pool__request_class__name", "state")
    return list(rows.values_list(*columns).annotate(Count("pk")))


def decisions(now: datetime) -> list[tuple[str, str, int]]:
    """Returns (kind, reason, count) of the decisions of the last five minutes."""
    rows = Decision.objects.filter(at__gt=now - RECENT, at__lte=now).order_by()
    return list(rows.values_list("kind", "reason").annotate(Count("pk")))


def epochs(now: datetime) -> list[tuple[str, str, int]]:
    """Returns (kind, status, count) of the epochs of the last hour."""
    rows = Epoch.objects.filter(advisory=False, due_at__gt=now - timedelta(hours=1), due_at__lte=now).order_by()
    return list(rows.values_list("kind", "status").annotate(Count("pk")))


def jobs() -> list[tuple[str, str, int]]:
    return list(Job.objects.order_by().values_list("kind", "state").annotate(Count("pk")))


def batches() -> tuple[list[tuple[str, int]], int]:
    """Counts batches by status, and the lines that wait for an answer."""
    by_status = list(Batch.objects.order_by().values_list("status").annotate(Count("pk")))
    return by_status, BatchLine.objects.filter(result__isnull=True).count()


def open_alerts() -> list[tuple[str, str, str, int]]:
    """Returns (rule, level, state, count) of the alerts that have not ended."""
    rows = Alert.objects.exclude(state=Alert.AlertState.RESOLVED).order_by()
    return list(rows.values_list("rule", "level", "state").annotate(Count("pk")))


def tasks(client: redis.Redis) -> dict[str, dict[str, float]]:
    """Returns by Celery task how often each outcome came, and the total run time as `seconds`."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    answer: Any = client.hgetall(wire.TASKS_KEY)
    for name, value in answer.items():
        task, _, what = name.decode().rpartition("|")
        found[task][what] = float(value)
    return found


def dead_rows() -> int:
    return DeadRow.objects.count()
