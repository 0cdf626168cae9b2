"""The state of each process, loop, node and feed, judged from messages and rows.

`gather` reads Redis and the database; the `judge_...` functions are pure and say what counts as late or dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.algorithms.fleet.sharing import Shortage
from pools import agent_states, agent_versions, redis_address, server_states, wire
from pools.leader import Leader
from pools.models import Node, Service
from pools.server_states import ServerState
from scheduler import selectors as scheduler_selectors
from scheduler.control import shortages
from telemetry import selectors
from telemetry.selectors.frames import FeedState
from telemetry.selectors.length_errors import LengthSourceError

from . import loop_health, split_health
from .loop_health import LoopHealth

REDIS_TIMEOUT_S = 1.0
LATE_PERIODS = 3.0  # a heartbeat is late after this many of its own periods
START_S = 30.0  # what a process may take before its first heartbeat
AGENT_SILENT_S = float(wire.AGENT_STATE_TTL_S)
NODES_SHOWN = 50
NODE_STATES = ("reporting", "silent", "off")
BEATING = frozenset({"gateway", "picker", "ingester", "beat", "epochs"})  # and node.<name>; gateway.<number>
M = TypeVar("M", bound=wire.Message)


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """state: running | restarting | late | dead."""

    name: str
    state: str
    pid: int | None
    started_at_s: float | None
    restarts: int
    heartbeat_age_s: float | None
    heartbeat_period_s: float | None
    detail: str
    log: str
    cpu_s: float | None = None
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """state: reporting | silent | off, by plan. `notes`: what it cannot do or measure, which is no fault.

    `server`: what is being switched, for people; empty: nothing.

    `unreachable`: the instances here that gateways do not reach, by uid: why, in words.
    """

    name: str
    state: str
    age_s: float | None
    instances: dict[str, int]
    failed: tuple[str, ...]
    error: str
    notes: str = ""
    unreachable: dict[str, str] = field(default_factory=dict)
    server: str = ""

    @property
    def calm(self) -> bool:
        return self.state != "silent" and not (self.error or self.failed or self.unreachable)


@dataclass(frozen=True, slots=True)
class FeedHealth:
    """state: fresh | stale | failing | no value | never."""

    feed: FeedState
    state: str


@dataclass(frozen=True, slots=True)
class Ingest:
    waiting_batches: int | None
    waiting_requests: int | None
    newest_sample_age_s: float | None
    batches_share: float | None = None  # as of Messages


@dataclass(frozen=True, slots=True)
class Health:
    at_s: float
    redis_error: str
    table_missing: bool
    processes: tuple[ProcessHealth, ...] = ()
    loops: tuple[LoopHealth, ...] = ()
    nodes: tuple[NodeHealth, ...] = ()
    feeds: tuple[FeedHealth, ...] = ()
    ingest: Ingest = field(default_factory=lambda: Ingest(None, None, None))
    instances: dict[str, int] = field(default_factory=dict)
    unsplit: dict[str, str] = field(default_factory=dict)  # why requests that a policy splits are not, by service
    short: dict[str, Shortage] = field(default_factory=dict)  # what GPUs a service lacks, by its name
    lengths: tuple[LengthSourceError, ...] = ()  # errors of predicted lengths; empty also where nobody asked
    leader: Leader | None = None  # the control plane that sends periodic tasks; None: none does, or nobody asked

    @property
    def nodes_first(self) -> tuple[NodeHealth, ...]:
        """The nodes that a page shows, those with an error before the others."""
        return tuple(sorted(self.nodes, key=lambda node: node.calm)[:NODES_SHOWN])

    @property
    def unsplit_remedy(self) -> str:
        return split_health.REMEDY

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Messages:
    """What Redis held: all of it may be missing."""

    table: wire.ProcessTable | None = None
    beats: Mapping[str, wire.Heartbeat] = field(default_factory=dict)
    agents: Mapping[str, wire.AgentState] = field(default_factory=dict)
    waiting_batches: int | None = None
    batches_share: float | None = None  # of what the fullest stream of samples takes
    waiting_requests: int | None = None
    error: str = ""


@lru_cache(maxsize=4)
def _client(url: str) -> redis.Redis:
    """Returns a client: one pool of connections per process; a call fails within its time-out and is not repeated."""
    return redis_address.connect(
        url,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def ping() -> None:
    """Raises redis.RedisError when Redis does not answer in time."""
    _client(settings.REDIS_URL).ping()


def read_messages(nodes: Sequence[str]) -> Messages:
    """Reads what processes report of themselves. Blocks for the Redis time-out at most; never raises."""
    client = _client(settings.REDIS_URL)
    try:
        table = read_table(client)
        names = {wire.ALIVE_PREFIX + row.name for row in table.processes} if table else set()
        names |= {key.decode() for key in client.scan_iter(match=wire.ALIVE_PREFIX + "*", count=1_000)}
        keys = sorted(names)
        beats = [_decode(value, wire.Heartbeat) for value in client.mget(keys)] if keys else []
        agent_keys = [wire.agent_key(node) for node in nodes]
        agents = [_decode(value, wire.AgentState) for value in client.mget(agent_keys)] if agent_keys else []
        waiting = agent_states.waiting_batches(client, nodes)
        return Messages(
            table=table,
            beats={
                beat.process: beat
                for key, beat in zip(keys, beats, strict=True)
                if beat and wire.alive_key(beat.process) == key  # a node writes its own key, and may name another
            },
            agents={node: agent for node, agent in zip(nodes, agents, strict=False) if agent and agent.node == node},
            waiting_batches=waiting.count,
            batches_share=waiting.share,
            waiting_requests=client.xlen(wire.REQUEST_STREAM),
        )
    except redis.RedisError as error:
        return Messages(error=f"{type(error).__name__}: {error}")


def read_table(client: redis.Redis) -> wire.ProcessTable | None:
    """Returns the processes of all control planes; None: no supervisor says anything. Raises RedisError."""
    keys = sorted(client.scan_iter(match=wire.PROCESSES_KEY + "*", count=1_000))
    tables = [table for data in (client.mget(keys) if keys else ()) if (table := _decode(data, wire.ProcessTable))]
    rows = [row for table in tables for row in table.processes]
    return wire.ProcessTable(min(table.at_s for table in tables), rows) if tables else None


def _decode(data: bytes | str | None, kind: type[M]) -> M | None:
    """A message that cannot be read counts as not there: its sender is then shown as late, which it is to us."""
    try:
        return None if data is None else wire.decode(data, kind)
    except msgspec.DecodeError:
        return None


def gather(now: datetime) -> Health:
    """Returns the state of everything. Makes twelve queries and a few Redis calls, however many processes there are.

    Who leads is not asked here (`pools.leader`), nor how well lengths are predicted (`selectors.length_errors`).
    """
    now_s = now.timestamp()
    nodes = list(Node.objects.values_list("name", flat=True))
    services = list(shortages.with_shortages(Service.objects.all()))
    messages = read_messages(nodes)
    newest_s = selectors.newest_sample_s(now_s)
    instances = scheduler_selectors.instance_counts()
    return Health(
        at_s=now_s,
        redis_error=messages.error,
        table_missing=messages.table is None and not messages.error,
        processes=judge_processes(messages.table, messages.beats, now_s),
        loops=loop_health.gather(now_s),
        nodes=tuple(judge_nodes(nodes, messages, now_s, server_states.switched())),
        feeds=tuple(
            FeedHealth(feed, judge_feed(feed, feed.refresh_s or settings.GREENSERVE_CARBON_REFRESH_S, now_s))
            for feed in selectors.feeds(now_s)
        ),
        ingest=Ingest(
            messages.waiting_batches,
            messages.waiting_requests,
            max(0.0, now_s - newest_s) if newest_s is not None else None,
            messages.batches_share,
        ),
        instances=instances,
        unsplit=split_health.judge(split_health.splitting_pools(services), messages.agents.values()),
        short={own.name: short for own in services if (short := shortages.shown(own)) is not None},
    )


def judge_processes(
    table: wire.ProcessTable | None, beats: Mapping[str, wire.Heartbeat], now_s: float
) -> tuple[ProcessHealth, ...]:
    """The supervisor says whether a process lives; its heartbeat, whether its loop turns. Both must be well."""
    rows = list(table.processes) if table else []
    listed = {row.name for row in rows}
    found = [_judge_process(row, beats.get(row.name), now_s) for row in rows]
    for name in sorted(set(beats) - listed):
        row = wire.ProcessRow(name=name, pid=None, state="running", started_at_s=None, restarts=0, log="")
        found.append(_judge_process(row, beats[name], now_s))
    return tuple(found)


def _judge_process(row: wire.ProcessRow, beat: wire.Heartbeat | None, now_s: float) -> ProcessHealth:
    age_s = max(0.0, now_s - beat.at_s) if beat else None
    if row.state == "restarting":
        state = "restarting"
    elif row.state != "running":
        state = "dead"
    elif _is_late(row, beat, now_s):
        state = "late"
    else:
        state = "running"
    return ProcessHealth(
        name=row.name,
        state=state,
        pid=row.pid,
        started_at_s=row.started_at_s,
        restarts=row.restarts,
        heartbeat_age_s=age_s,
        heartbeat_period_s=beat.period_s if beat else None,
        detail=(beat.detail if beat else "") or row.last_exit,
        log=row.log,
        cpu_s=row.cpu_s,
        rss_bytes=row.rss_bytes,
    )


def _is_late(row: wire.ProcessRow, beat: wire.Heartbeat | None, now_s: float) -> bool:
    if beat is not None:
        return now_s - beat.at_s > LATE_PERIODS * beat.period_s
    own, *more = row.name.split(".")  # the control plane's name may stand before the process's
    must_beat = own == "node" or own in BEATING or (own != "simnode" and bool(more) and more[0] in BEATING)
    return must_beat and now_s - (row.started_at_s or 0.0) > START_S


def judge_nodes(
    names: Sequence[str], messages: Messages, now_s: float, servers: Mapping[str, ServerState]
) -> Iterator[NodeHealth]:
    """Yields the nodes of these names, by what agents and gateways report. `servers`: those that are switched."""
    unreachable = unreachable_by_node(messages.beats, now_s)
    for name in names:
        found = judge_node(name, messages.agents.get(name), now_s, unreachable.get(name, {}))
        yield by_plan(found, servers.get(name), now_s)


def by_plan(node: NodeHealth, server: ServerState | None, now_s: float) -> NodeHealth:
    """Returns a node as off, not silent, where that is by plan; one that is late to boot is silent."""
    if server is None:
        return node
    now = datetime.fromtimestamp(now_s, UTC)
    off = node.state == "silent" and server.by_plan and not server.late(now)
    return replace(node, state="off" if off else node.state, server=server.words(now))


def unreachable_by_node(beats: Mapping[str, wire.Heartbeat], now_s: float) -> dict[str, dict[str, str]]:
    """Returns by node and instance why gateways do not reach it. A gateway that is late says nothing of now."""
    found: dict[str, dict[str, str]] = {}
    for name, beat in sorted(beats.items()):
        if now_s - beat.at_s > LATE_PERIODS * beat.period_s:
            continue
        for one in beat.unreachable:
            words = f"{name} does not reach {one.url}: {one.why}, for {max(0.0, now_s - one.since_s):.0f} s"
            known = found.setdefault(one.node, {})
            known[one.uid] = f"{known[one.uid]}; {words}" if one.uid in known else words
    return found


def judge_node(
    name: str, agent: wire.AgentState | None, now_s: float, unreachable: Mapping[str, str] | None = None
) -> NodeHealth:
    """A node whose agent has not spoken for ten seconds is silent: nothing new is known of it."""
    lost = dict(unreachable or {})
    if agent is None:
        return NodeHealth(name, "silent", None, {}, (), "", unreachable=lost)
    age_s = max(0.0, now_s - agent.at_s)
    states: dict[str, int] = {}
    for instance in agent.instances:
        states[instance.state] = states.get(instance.state, 0) + 1
    failed = tuple(f"{i.uid[:8]}: {i.detail or 'no detail'}" for i in agent.instances if i.state == "failed")
    only = f"measure only: {agent.measure_only}" if agent.measure_only else ""
    notes = "; ".join(filter(None, (only, *agent.notices)))
    state = "silent" if age_s > AGENT_SILENT_S else "reporting"
    error = "; ".join(filter(None, (agent_versions.too_old(agent), agent.error)))
    return NodeHealth(name, state, age_s, states, failed, error, notes, lost)


def judge_feed(feed: FeedState, refresh_s: float, now_s: float) -> str:
    """Stale: three refreshes without an answer. No value: it answers, but knows nothing of the present."""
    if feed.last_ok_s is None:
        return "failing" if feed.last_error else "never"
    if feed.last_error and (feed.last_error_s or 0.0) > feed.last_ok_s:
        return "failing"
    if now_s - feed.last_ok_s > LATE_PERIODS * refresh_s + 5.0:
        return "stale"
    if feed.known_until_s is None or feed.known_until_s < now_s - max(60.0, 2 * refresh_s):
        return "no value"
    return "fresh"
