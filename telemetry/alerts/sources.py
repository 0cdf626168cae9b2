"""The sources of what the rules judge, read from PostgreSQL and Redis. Settings name the sources by dotted path.

A source reads a handful of rows, whatever the fleet's size, or sums that the database makes. It may raise
`redis.RedisError` or `django.db.DatabaseError`: then nothing is known of its rules this time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from pools import agent_versions, redis_address, server_states, wire
from pools.models import Instance, Node, Pool
from telemetry.carbon import feeds
from telemetry.models import CarbonFeed
from telemetry.selectors import _sql as sql

from . import slo_minutes
from .alert_rules import feed_late_after_s
from .alert_state_machine import Level, Reading, Rule
from .burn_rates import WINDOWS, burning
from .queues import PARTS, SPAN_S, growth

REDIS_TIMEOUT_S = 2.0
CRASH_SPAN = timedelta(minutes=15)
UNATTRIBUTED_SPAN = timedelta(hours=1)
Rules = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class Source:
    """`read` yields a reading for every subject that there is; one it does not name is gone."""

    rules: tuple[str, ...]
    read: Callable[[datetime, Rules], Iterator[Reading]]


def _slo_burn(now: datetime, rules: Rules) -> Iterator[Reading]:
    slo_minutes.refresh(now)
    counts = slo_minutes.minutes(now)
    for (service, kind), target in slo_minutes.targets().items():
        for window in WINDOWS:
            rate = burning(window, counts.get((service, kind), ()), target, now.timestamp())
            said = "" if rate is None else f": {rate:.1f} times too fast over {_span(window.short_s)}"
            words = f"{kind.upper()} of {service} burns its error budget{said} and {_span(window.long_s)}"
            yield Reading(window.rule, f"{service}/{kind}", rate, words)


def _span(seconds: float) -> str:
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s"


def age(seconds: float) -> str:
    """Returns the age in whole units, of which there are at least two: `90 s`, `12 min`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _feeds(now: datetime, rules: Rules) -> Iterator[Reading]:
    """The rule's seconds are those of a feed that is asked as often as most; one with a period of its own is late in
    proportion: twice the period, half the age.
    """
    usual_s = feed_late_after_s(settings.GREENSERVE_CARBON_REFRESH_S)
    for feed in CarbonFeed.objects.select_related("site"):
        name = f"The {feed.signal} carbon feed of {feed.site} ({feed.provider})"
        why = f": {feed.last_error}" if feed.last_error else ""
        if feed.last_ok_at is None:
            value, words = rules["feed_stale"].threshold, f"{name} has never answered{why}"
        else:
            age_s = (now - feed.last_ok_at).total_seconds()
            value = age_s * usual_s / feed_late_after_s(feeds.refresh_s(feed))
            words = f"{name} has not answered for {age(age_s)}{why}"
        yield Reading("feed_stale", f"{feed.site.name}/{feed.signal}", value, words)


NEWEST_SAMPLE_SQL = """
SELECT n.name, extract(epoch FROM max(s.at)) AS at_s
FROM telemetry_gpusample s JOIN pools_gpu g ON g.id = s.gpu_id JOIN pools_node n ON n.id = g.node_id
WHERE s.at > %(since)s AND n.name = ANY (%(nodes)s) GROUP BY 1
"""


def _nodes(now: datetime, rules: Rules) -> Iterator[Reading]:
    """An agent's state is in Redis for ten seconds; how long ago that was is known from its samples."""
    now_s = now.timestamp()
    switched = server_states.switched()  # their agents are silent by plan; `server_power` says what is wrong with them
    names = [name for name in Node.objects.values_list("name", flat=True) if name not in switched]
    heard = _agents_heard(names)
    last_s = {name: agent.at_s for name, agent in heard.items()}
    silent = [name for name in names if name not in last_s]
    if silent:
        rows = sql.rows(NEWEST_SAMPLE_SQL, {"since": now - timedelta(hours=1), "nodes": silent})
        last_s |= {row.name: float(row.at_s) for row in rows}
    for name in names:
        if name in last_s:
            age_s = max(0.0, now_s - last_s[name])
            yield Reading("node_silent", name, age_s, f"Node {name} has been silent for {age(age_s)}")
        else:
            yield Reading("node_silent", name, rules["node_silent"].threshold, f"Node {name} is silent")
    for name, agent in heard.items():
        old = agent_versions.too_old(agent)
        yield Reading(
            "agent_too_old", name, float(bool(old)), f"Node {name}: {old}" if old else f"Node {name} is new enough"
        )


def connect() -> redis.Redis:
    """Returns a client whose calls fail within their time-out and are not repeated."""
    return redis_address.connect(
        settings.REDIS_URL,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def _agents_heard(names: Sequence[str]) -> dict[str, wire.AgentState]:
    """Returns by node what its agent reported last, as far as Redis still knows."""
    if not names:
        return {}
    with connect() as client:
        answers: Any = client.mget([wire.agent_key(name) for name in names])
    found = {}
    for name, data in zip(names, answers, strict=True):
        if data is None:
            continue
        try:
            found[name] = wire.decode(data, wire.AgentState)
        except msgspec.DecodeError:
            continue  # what cannot be read was not said
    return found


# Energy by the sums that postings keep, against how far the GPUs' watermarks have moved. Both move in one transaction,
# and both are read by one statement: they differ only when the ledger is wrong.
IMBALANCE_SQL = """
WITH watermarks AS (
    SELECT c.site_id, sum(m.energy_uj - m.opened_energy_uj) AS metered_uj
    FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id
    JOIN pools_node n ON n.id = g.node_id JOIN pools_cluster c ON c.id = n.cluster_id GROUP BY 1
), entered AS (
    SELECT site_id, sum(energy_uj) AS entered_uj, sum(energy_uj) FILTER (WHERE start_at > %(day)s) AS recent_uj
    FROM telemetry_energyrollup WHERE step_s = 86400 GROUP BY 1
)
SELECT s.name, s.label, coalesce(recent_uj, 0) AS recent_uj,
       coalesce(metered_uj, 0) - coalesce(entered_uj, 0) AS missing_uj
FROM pools_site s LEFT JOIN watermarks ON watermarks.site_id = s.id LEFT JOIN entered ON entered.site_id = s.id
WHERE metered_uj IS NOT NULL OR entered_uj IS NOT NULL
"""

UNATTRIBUTED_SQL = """
SELECT s.name, s.label, sum(r.energy_uj) AS energy_uj,
       sum(r.energy_uj) FILTER (WHERE r.kind = 'unattributed') AS nobody_uj
FROM telemetry_energyrollup r JOIN pools_site s ON s.id = r.site_id
WHERE r.step_s = 60 AND r.start_at >= %(since)s GROUP BY 1, 2
"""


def _ledger(now: datetime, rules: Rules) -> Iterator[Reading]:
    for row in sql.rows(IMBALANCE_SQL, {"day": now - timedelta(days=2)}):
        site, missing_uj, recent_uj = row.label or row.name, abs(int(row.missing_uj)), int(row.recent_uj)
        share = missing_uj / recent_uj if recent_uj else (1.0 if missing_uj else 0.0)
        words = (
            f"Ledger of {site}: entries and meters differ by {missing_uj / 1e6:.0f} J, {share:.2%} of two days' energy"
        )
        yield Reading("ledger_imbalance", row.name, share, words)
    for row in sql.rows(UNATTRIBUTED_SQL, {"since": now - UNATTRIBUTED_SPAN}):
        nobody = float(row.nobody_uj or 0) / float(row.energy_uj) if row.energy_uj else None
        said = "" if nobody is None else f"{nobody:.1%} of the last hour's energy is nobody's"
        yield Reading("energy_unattributed", row.name, nobody, f"{row.label or row.name}: {said}")


POWER_SQL = """
WITH newest AS (
    SELECT DISTINCT ON (gpu_id) gpu_id, power_w FROM telemetry_gpusample
    WHERE at > %(now)s - interval '15 seconds' AND at <= %(now)s ORDER BY gpu_id, at DESC
)
SELECT n.name AS node, s.name AS site, s.label, s.power_cap_w AS cap_w, sum(g.tdp_w) AS tdp_w,
       sum(newest.power_w) AS power_w, count(*) AS gpus, count(*) - count(newest.power_w) AS unheard
FROM pools_gpu g JOIN pools_node n ON n.id = g.node_id JOIN pools_cluster c ON c.id = n.cluster_id
JOIN pools_site s ON s.id = c.site_id LEFT JOIN newest ON newest.gpu_id = g.id
GROUP BY 1, 2, 3, 4
"""


def _power(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Sites against their caps; nodes of sites without one against what their GPUs are built for.

    A site with a GPU that is not heard draws at least what the others do: enough to raise an alert, not to end one.
    """
    rows = sql.rows(POWER_SQL, {"now": now})
    capped: dict[str, list[Any]] = {}
    for row in rows:
        if row.cap_w is not None:
            capped.setdefault(row.site, []).append(row)
            continue
        share = None if row.power_w is None or row.unheard else row.power_w / row.tdp_w
        drawn = "unknown" if row.power_w is None else f"{row.power_w:.0f} W"
        words = f"Node {row.node} draws {drawn} of the {row.tdp_w:.0f} W that its GPUs are built for"
        yield Reading("node_power_near_limit", row.node, share, words)
    for site, nodes in capped.items():
        known = [row.power_w for row in nodes if row.power_w is not None]
        power_w, cap_w = sum(known), nodes[0].cap_w
        unheard = sum(row.unheard for row in nodes)
        share = power_w / cap_w if known else None
        if share is not None and unheard and share < rules["power_near_cap"].threshold:
            share = None
        words = f"{nodes[0].label or site} draws {power_w / 1e3:.1f} kW of its cap of {cap_w / 1e3:.1f} kW"
        level = Level.BAD if share is not None and share >= 1.0 else None
        yield Reading("power_near_cap", site, share, words, level)


WAITING_SQL = """
SELECT pool_id, part, sum(waiting) AS waiting FROM (
    SELECT i.pool_id, s.instance_id, avg(s.waiting) AS waiting,
           least(%(last)s, floor(extract(epoch FROM s.at - %(start)s) / %(part_s)s))::int AS part
    FROM telemetry_instancesample s JOIN pools_instance i ON i.id = s.instance_id
    WHERE s.at > %(start)s AND s.at <= %(now)s AND s.waiting IS NOT NULL GROUP BY 1, 2, 4
) each_instance GROUP BY 1, 2
"""


def _queues(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Requests that wait inside a pool's engines."""
    params = {"now": now, "start": now - timedelta(seconds=SPAN_S), "part_s": SPAN_S / PARTS, "last": PARTS - 1}
    waiting: dict[int, list[float | None]] = {}
    for row in sql.rows(WAITING_SQL, params):
        waiting.setdefault(row.pool_id, [None] * PARTS)[row.part] = float(row.waiting)
    pools = Pool.objects.filter(pk__in=waiting).select_related("service", "site", "request_class")
    for pool in pools:
        means = waiting[pool.pk]
        words = (
            f"Pool {pool} of {pool.service}: {means[-1] or 0.0:.0f} requests wait, and ever more for {_span(SPAN_S)}"
        )
        subject = f"{pool.service.name}/{pool.site.name}/{pool.request_class.name}"
        yield Reading("queue_growing", subject, growth(means), words)


FALLS_SQL = """
SELECT instance_id, count(*) AS falls FROM (
    SELECT instance_id, state, lag(state) OVER (PARTITION BY instance_id ORDER BY at) AS before
    FROM telemetry_instancesample WHERE at > %(since)s AND at <= %(now)s AND instance_id = ANY (%(instances)s)
) each_sample WHERE state = 'failed' AND before IS DISTINCT FROM 'failed' GROUP BY 1
"""


def _crashes(now: datetime, rules: Rules) -> Iterator[Reading]:
    """Counts how often each instance failed within CRASH_SPAN, of those failed, starting or ready since then."""
    since = now - CRASH_SPAN
    live = Instance.objects.exclude(state=Instance.State.STOPPED).select_related("node", "pool__site")
    suspects = {
        instance.pk: instance
        for instance in live
        if instance.state in (Instance.State.FAILED, Instance.State.STARTING)
        or (instance.ready_at is not None and instance.ready_at >= since)
    }
    if not suspects:
        return
    params = {"since": since, "now": now, "instances": list(suspects)}
    falls = {row.instance_id: int(row.falls) for row in sql.rows(FALLS_SQL, params)}
    for pk, instance in suspects.items():
        times = falls.get(pk, 0)
        where, span = instance.node or instance.url, _span(CRASH_SPAN.total_seconds())
        words = f"Instance {instance} on {where} fell over {times} times in {span}"
        said = f": {instance.detail}" if instance.detail else ""
        yield Reading("crash_loop", str(instance.uid), float(times), words + said)


SLO_BURN = Source(tuple(window.rule for window in WINDOWS), _slo_burn)
FEEDS = Source(("feed_stale",), _feeds)
NODES = Source(("node_silent", "agent_too_old"), _nodes)
LEDGER = Source(("ledger_imbalance", "energy_unattributed"), _ledger)
POWER = Source(("power_near_cap", "node_power_near_limit"), _power)
QUEUES = Source(("queue_growing",), _queues)
CRASHES = Source(("crash_loop",), _crashes)
