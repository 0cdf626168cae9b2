"""What the gateway knows of the fleet, held in memory: services, keys, and instances that can take requests.

The snapshot is replaced by `apply`: of the keys only once there is another list of them. `Instance` objects live on,
since they carry the gateway's own counts of what is in flight. Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping

from core.engine import gpu_types
from core.types import Limits
from pools import wire
from pools.measured_engines import put_in_force

from .instance import Instance

log = logging.getLogger(__name__)

FRESH_S = 15.0  # how old a confirmed snapshot may be
STALE_STATE_S = 15.0  # an agent that said nothing for so long is not trusted; clocks of hosts agree within a second


class Service:
    """A service with its instances that are ready. `coming`: others start, or their agents cannot ask them."""

    __slots__ = (
        *("_by_rank", "class_limits", "classes", "coming", "engine_queue", "expected_lengths", "hands_on", "limits"),
        *("max_model_len", "model", "name", "policy", "ranks", "ready", "root", "shares", "tokenizer", "uids"),
    )

    def __init__(self, entry: wire.FleetService, gateways: int = 1) -> None:
        self.name = entry.name
        self.model = entry.model
        self.max_model_len = entry.max_model_len
        self.limits = _limits(entry.objectives)  # what the service promises
        # What requests are to be served within, by class; of a class that is not there: what the service promises.
        self.class_limits: dict[str | None, Limits] = {
            c.name: _limits(c.limits) for c in entry.classes if c.limits is not None
        }
        self.classes = entry.classes
        self.policy = entry.policy
        # What may wait inside an engine is shared out among those that send there, as none sees the others' at once.
        self.engine_queue = max(1, entry.policy.engine_queue // gateways)
        self.expected_lengths = entry.expected_prompt_tokens, entry.expected_output_tokens  # means, as declared
        self.root = entry.hugging_face_id or entry.model  # what clients load a tokenizer by
        self.tokenizer = entry.tokenizer
        self.ranks = {c.name: c.rank for c in entry.classes}
        self.hands_on = _hands_on(entry.classes)
        self.shares = {pool.id: pool.share for pool in entry.pools}
        self.ready: list[Instance] = []
        self.coming = False
        self._by_rank: dict[int, list[Instance]] = {}
        self.uids: dict[str, Instance] = {}  # the same

    def of_rank(self, rank: int) -> list[Instance]:
        """Returns those of `ready` that serve the class of this rank. Ask only once all instances are there."""
        if not self._by_rank:
            for instance in self.ready:
                self._by_rank.setdefault(instance.rank, []).append(instance)
        return self._by_rank.get(rank, [])

    def choosable(self, tried: Collection[str], now_s: float) -> list[Instance]:
        """Returns the instances to choose from: not tried yet, and none that fails at present, unless all do."""
        left = [i for i in self.ready if i.uid not in tried] if tried else self.ready
        return [i for i in left if not i.health.ejections or i.health.usable(now_s)] or left


def _hands_on(classes: Iterable[wire.FleetClass]) -> tuple[float, ...]:
    """Returns the shares by rank; empty: no class hands on anything. A rank that no class has passes all on."""
    shares = {own.rank: own.hands_on for own in classes}
    return tuple(shares.get(rank, 1.0) for rank in range(max(shares) + 1)) if any(shares.values()) else ()


def _limits(sent: wire.LatencyLimits) -> Limits:
    return Limits(ttft_s=sent.ttft_s, tpot_s=sent.tpot_s, e2e_s=sent.e2e_s)


class FleetView:
    """The snapshot in force. `fresh_at_s` is when it was last confirmed (monotonic), None: never.

    `gateways`: how many share the fleet. Each sees what the others have sent only with the agents' next reports.
    """

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.fresh_at_s: float | None = None
        self.version: int | None = None
        self.gateways = 1
        self._listed_keys: list[wire.FleetKey] = []
        self._keys: dict[str, wire.FleetKey] = {}  # the same by their hashes
        self._secrets: dict[bytes, wire.FleetKey] = {}  # those seen since a key changed
        self._instances: dict[str, Instance] = {}
        self._pools: dict[int, tuple[str, wire.FleetPool]] = {}  # every pool there was, with its service
        self._complained: set[str] = set()

    @property
    def known(self) -> bool:
        return self.version is not None

    @property
    def ready_instances(self) -> int:
        return sum(len(service.ready) for service in self.services.values())

    def not_ready(self, now_s: float) -> str:
        """Returns why requests cannot be served at a (monotonic) moment; empty: they can."""
        if self.fresh_at_s is None:
            return "no fleet snapshot has been read yet"
        age_s = now_s - self.fresh_at_s
        if age_s > FRESH_S:
            return f"the fleet snapshot is {age_s:.0f} s old"
        return "" if self.ready_instances else "no instance is ready"

    def key(self, secret: bytes) -> wire.FleetKey | None:
        """Returns the key that a bearer secret belongs to; callers check whether it has expired."""
        key = self._secrets.get(secret)
        if key is None:
            key = self._keys.get(hashlib.sha256(secret).hexdigest())
            if key is not None:
                self._secrets[secret] = key
        return key

    def instances(self) -> Iterable[Instance]:
        return self._instances.values()

    def apply(
        self, fleet: wire.Fleet, states: Mapping[str, wire.AgentState], now_unix_s: float, fresh_at_s: float
    ) -> None:
        """Puts a new snapshot in force. States older than `STALE_STATE_S` count as silent agents.

        Whoever changes `fleet.keys` gives another list: this one is then not looked at again.
        """
        if gpu_types.declare(fleet.gpu_types):
            self._complained.clear()  # of types that were not known
        put_in_force(fleet.measured, fleet.profiles)
        services = {entry.name: Service(entry, self.gateways) for entry in fleet.services}
        # An agent that has not heard yet that its instance was moved reports it in a pool that may be gone.
        self._pools |= {pool.id: (entry.name, pool) for entry in fleet.services for pool in entry.pools}
        instances: dict[str, Instance] = {}
        for state in states.values():
            if now_unix_s - state.at_s > STALE_STATE_S:
                continue
            for reported in state.instances:
                name, pool = self._pools.get(reported.pool_id, ("", None))
                service = services.get(name)
                if service is None or pool is None:
                    continue
                if reported.state != "ready":
                    service.coming |= reported.state != "draining"
                    continue
                rank = service.ranks.get(pool.request_class, len(service.ranks))
                instance = self._refreshed(reported, pool, rank, state)
                if instance is not None:
                    instances[instance.uid] = instance
                    service.ready.append(instance)
                    service.uids[instance.uid] = instance
        busy = {uid: i for uid, i in self._instances.items() if i.in_flight and uid not in instances}
        self._instances = instances | busy  # a draining one keeps its counts until its last request ends
        if fleet.keys is not self._listed_keys:
            self._listed_keys = fleet.keys
            self._keys, self._secrets = {key.key_hash: key for key in fleet.keys}, {}
        self.services = services
        self.version = fleet.version
        self.fresh_at_s = fresh_at_s

    def _refreshed(
        self, reported: wire.InstanceState, pool: wire.FleetPool, rank: int, agent: wire.AgentState
    ) -> Instance | None:
        known = self._instances.get(reported.uid)
        try:
            if known is None:
                return Instance(reported, pool, rank, agent.at_s, self.gateways, agent.node)
            known.update(reported, pool, rank, agent.at_s, self.gateways)
        except ValueError as error:
            if reported.uid not in self._complained:
                self._complained.add(reported.uid)
                log.error("%s; it gets no requests", error)
            return None
        return known
