"""What the gateway knows of the fleet, held in memory: services, keys, and instances that can take requests.

The snapshot is replaced as a whole by `apply`; `Instance` objects live on, since they carry the gateway's own counts
of what is in flight. Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import urlsplit

from pools import wire
from scheduler.core.routing import Candidate
from scheduler.core.types import Limits

log = logging.getLogger(__name__)

STALE_STATE_S = 15.0  # an agent that said nothing for so long is not trusted; clocks of hosts agree within a second
COOLING_S = 2.0  # how long an instance that refused a connection is passed over


STREAM_TICKET = 0  # rounds count from 1


class Instance:
    """One engine as routing sees it: what its agent reported, corrected by what this gateway has sent since."""

    __slots__ = (
        "_candidate",
        "_pool",
        "_queued",
        "_queued_tokens",
        "_rank",
        "_round",
        "_state",
        "_unstarted",
        "_unstarted_tokens",
        "address",
        "cooling_until_s",
        "in_flight",
        "netloc",
        "uid",
    )

    def __init__(self, state: wire.InstanceState, pool: wire.FleetPool, rank: int) -> None:
        self.uid = state.uid
        self.in_flight = 0
        self._unstarted = self._unstarted_tokens = 0  # streams without a first byte yet, and their prompts' tokens
        self._queued = self._queued_tokens = 0  # others, since the last report without a queue
        self.cooling_until_s = 0.0
        self._round = 1
        self.update(state, pool, rank)

    def update(self, state: wire.InstanceState, pool: wire.FleetPool, rank: int) -> None:
        """Takes over a newer report. Raises ValueError when its address cannot be used."""
        parts = urlsplit(state.url or "")
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"instance {state.uid} has no usable address: {state.url!r}")
        self.address = (parts.hostname, parts.port)
        self.netloc = parts.netloc.encode()
        self._state, self._pool, self._rank = state, pool, rank
        if not state.waiting:  # nothing queues there: what is no stream has begun, though it answers only at its end
            self._round += 1
            self._queued = self._queued_tokens = 0
        self._candidate: Candidate | None = None

    @property
    def pool_id(self) -> int:
        return self._state.pool_id

    @property
    def unstarted(self) -> int:
        """Requests in flight whose prompt is still to be computed, as far as can be told from here."""
        return self._unstarted + self._queued

    @property
    def queued_prompt_tokens(self) -> int:
        """Their prompts' tokens: what a new request has to wait for."""
        return self._unstarted_tokens + self._queued_tokens

    def dispatched(self, prompt_tokens: int, stream: bool) -> int:
        """Counts a request in; returns a ticket for `started`. A stream's first byte tells when its prompt is done."""
        self.in_flight += 1
        self._candidate = None
        if stream:
            self._unstarted += 1
            self._unstarted_tokens += prompt_tokens
            return STREAM_TICKET
        self._queued += 1
        self._queued_tokens += prompt_tokens
        return self._round

    def started(self, ticket: int, prompt_tokens: int) -> None:
        """A request that was counted in has its first byte, or ended without one."""
        if ticket == STREAM_TICKET:
            self._unstarted -= 1
            self._unstarted_tokens -= prompt_tokens
        elif ticket == self._round:
            self._queued -= 1
            self._queued_tokens -= prompt_tokens
        self._candidate = None

    def ended(self) -> None:
        self.in_flight -= 1
        self._candidate = None

    def candidate(self) -> Candidate:
        """The instance as a candidate; kept until a count or the report changes.

        Load is the larger of what the agent reported and what is in flight from here: a report lags by a second,
        and other clients of the engine are not seen from here.
        """
        if self._candidate is None:
            state, pool = self._state, self._pool
            reported_waiting = state.waiting or 0
            load = max((state.running or 0) + reported_waiting, self.in_flight)
            waiting = min(load, max(reported_waiting, self.unstarted))
            self._candidate = Candidate(
                uid=state.uid,
                pool_id=state.pool_id,
                site=pool.site,
                request_class=pool.request_class,
                class_rank=self._rank,
                model=state.model,
                engine=state.engine,
                gpu=state.gpu_type,
                tp=state.tp,
                mhz=state.sm_clock_mhz or state.max_mhz,
                running=load - waiting,
                waiting=waiting,
                queued_prompt_tokens=self.queued_prompt_tokens,
                kv_usage=state.kv_usage,
                pue=pool.pue,
                intensity_g_per_kwh=pool.intensity_g_per_kwh,
            )
        return self._candidate


class Service:
    """A service with its instances that are ready."""

    __slots__ = ("classes", "limits", "max_model_len", "model", "name", "ranks", "ready")

    def __init__(self, entry: wire.FleetService) -> None:
        self.name = entry.name
        self.model = entry.model
        self.max_model_len = entry.max_model_len
        slo = entry.objectives
        self.limits = Limits(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, e2e_s=slo.e2e_s)
        self.classes = entry.classes
        self.ranks = {c.name: c.rank for c in entry.classes}
        self.ready: list[Instance] = []

    def choosable(self, tried: Collection[str], now_s: float) -> list[Instance]:
        """Instances to choose from: not tried yet, and rather none that has just refused a connection."""
        left = [i for i in self.ready if i.uid not in tried] if tried else self.ready
        return [i for i in left if i.cooling_until_s <= now_s] or left


class FleetView:
    """The snapshot in force. `fresh_at_s` is when it was last confirmed (monotonic), None: never."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.fresh_at_s: float | None = None
        self.version: int | None = None
        self._keys: dict[str, wire.FleetKey] = {}
        self._instances: dict[str, Instance] = {}
        self._complained: set[str] = set()

    @property
    def known(self) -> bool:
        return self.version is not None

    @property
    def ready_instances(self) -> int:
        return sum(len(service.ready) for service in self.services.values())

    def key(self, secret: bytes) -> wire.FleetKey | None:
        """The key that a bearer secret belongs to; expiry is the caller's to check."""
        return self._keys.get(hashlib.sha256(secret).hexdigest())

    def instances(self) -> Iterable[Instance]:
        return self._instances.values()

    def apply(
        self, fleet: wire.Fleet, states: Mapping[str, wire.AgentState], now_unix_s: float, fresh_at_s: float
    ) -> None:
        """Puts a new snapshot in force. States older than `STALE_STATE_S` count as silent agents."""
        services = {entry.name: Service(entry) for entry in fleet.services}
        by_pool = {
            pool.id: (services[entry.name], pool) for entry in fleet.services for pool in entry.pools
        }  # a pool belongs to one service
        instances: dict[str, Instance] = {}
        for state in states.values():
            if now_unix_s - state.at_s > STALE_STATE_S:
                continue
            for reported in state.instances:
                place = by_pool.get(reported.pool_id)
                if reported.state != "ready" or place is None:
                    continue
                service, pool = place
                rank = service.ranks.get(pool.request_class, len(service.ranks))
                instance = self._refreshed(reported, pool, rank)
                if instance is not None:
                    instances[instance.uid] = instance
                    service.ready.append(instance)
        busy = {uid: i for uid, i in self._instances.items() if i.in_flight and uid not in instances}
        self._instances = instances | busy  # a draining one keeps its counts until its last request ends
        self._keys = {key.key_hash: key for key in fleet.keys}
        self.services = services
        self.version = fleet.version
        self.fresh_at_s = fresh_at_s

    def _refreshed(self, reported: wire.InstanceState, pool: wire.FleetPool, rank: int) -> Instance | None:
        known = self._instances.get(reported.uid)
        try:
            if known is None:
                return Instance(reported, pool, rank)
            known.update(reported, pool, rank)
        except ValueError as error:
            if reported.uid not in self._complained:
                self._complained.add(reported.uid)
                log.error("%s; it gets no requests", error)
            return None
        return known
