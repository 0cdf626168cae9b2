"""What the gateway knows of the fleet, held in memory: services, keys, and instances that can take requests.

The snapshot is replaced by `apply`: of the keys only once there is another list of them. `Instance` objects live on,
since they carry the gateway's own counts of what is in flight. Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Mapping

from core.engine import gpu_types
from core.types import Limits
from pools import wire
from pools.measured_engines import put_in_force

from .instance import Instance

log = logging.getLogger(__name__)

# When fewer of a class look well, its engines are not to blame so much as whoever looks: what looks dead is sent to as
# well, or the few that are left would break down under the load of all (Envoy: healthy_panic_threshold).
PANIC_SHARE = 0.5
# Of fewer it is likely that they are dead indeed: with one of two left, half of all requests would go to a dead one.
PANIC_LEAST_INSTANCES = 4


class Service:
    """A service with its instances that are ready. `coming`: others start, or their agents cannot ask them."""

    __slots__ = (
        *(
            "_by_rank",
            "_unable",
            "class_limits",
            "classes",
            "coming",
            "declared",
            "engine_queue",
            "expected_lengths",
            "hands_on",
            "images",
            "limits",
        ),
        *(
            "max_loras",
            "max_model_len",
            "model",
            "name",
            "policy",
            "ranks",
            "ready",
            "root",
            "shares",
            "tokenizer",
            "uids",
        ),
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
        self.images = entry.images
        self.declared = {own.name: own.source for own in entry.adapters}  # adapters that its engines can load
        self.max_loras = entry.max_loras
        self.ranks = {c.name: c.rank for c in entry.classes}
        self.hands_on = _hands_on(entry.classes)
        self.shares = {pool.id: pool.share for pool in entry.pools}
        self.ready: list[Instance] = []
        self.coming = False
        self._by_rank: dict[int, list[Instance]] = {}
        self._unable: dict[tuple[str, str], frozenset[str]] = {}
        self.uids: dict[str, Instance] = {}  # the same

    @property
    def wakes(self) -> bool:
        """Says whether a request wakes it: without an instance it sleeps, and is not down."""
        return self.policy.wake_patience_s is not None

    def of_rank(self, rank: int) -> list[Instance]:
        """Returns those of `ready` that serve the class of this rank. Ask only once all instances are there."""
        if not self._by_rank:
            for instance in self.ready:
                self._by_rank.setdefault(instance.rank, []).append(instance)
        return self._by_rank.get(rank, [])

    def unable(self, path: str, adapter: str = "") -> frozenset[str]:
        """Returns those of `ready`, by uid, whose engines have no such path, or not the adapter that is named.

        Ask only once all instances are there.
        """
        found = self._unable.get((path, adapter))
        if found is None:
            found = frozenset(i.uid for i in self.ready if not i.offers(path, adapter))
            self._unable[path, adapter] = found
        return found

    def offers(self, path: str) -> bool:
        """Says whether an engine has the path; while none is ready, it may."""
        return not self.ready or len(self.unable(path)) < len(self.ready)

    def in_rotation(self, rank: int, now_s: float) -> list[Instance]:
        """Returns those of a class that look well; when most do not, all that take connections at least."""
        own = self.of_rank(rank)
        found = [i for i in own if not i.health.ejections or i.health.usable(now_s)]
        if len(found) == len(own) or not _panics(len(found), len(own)):
            return found
        return [i for i in own if not i.health.unreachable or i.health.usable(now_s)]

    def panicking(self, now_s: float) -> list[int]:
        """Returns the ranks of classes of which most instances do not look well."""
        ranks = {i.rank for i in self.ready if i.health.ejections}
        found = []
        for rank in sorted(ranks):
            own = self.of_rank(rank)
            if _panics(sum(i.health.usable(now_s) for i in own), len(own)):
                found.append(rank)
        return found

    def choosable(self, tried: Collection[str], now_s: float) -> list[Instance]:
        """Returns the instances to choose from: not tried yet, and none that is out of rotation, unless all are.

        While any is, those that are suspect, as engines beside one that hangs are, come last.
        """
        left = [i for i in self.ready if i.uid not in tried] if tried else self.ready
        if not any(i.health.ejections for i in left):
            return left
        ranks = {i.rank: None for i in left}
        found = [i for rank in ranks for i in self.in_rotation(rank, now_s) if i.uid not in tried]
        return [i for i in found if not i.suspect] or found or left


def _panics(well: int, of: int) -> bool:
    return of >= PANIC_LEAST_INSTANCES and well < PANIC_SHARE * of


def _hands_on(classes: Iterable[wire.FleetClass]) -> tuple[float, ...]:
    """Returns the shares by rank; empty: no class hands on anything. A rank that no class has passes all on."""
    shares = {own.rank: own.hands_on for own in classes}
    return tuple(shares.get(rank, 1.0) for rank in range(max(shares) + 1)) if any(shares.values()) else ()


def _adapters(services: Iterable[Service]) -> dict[str, Service]:
    """Returns them by name: those declared, then those found; of a name found at several services the first counts."""
    services = list(services)
    found = {name: service for service in services for name in service.declared}
    for service in services:
        for instance in service.ready:
            for name in instance.adapters:
                found.setdefault(name, service)
    return found


def _limits(sent: wire.LatencyLimits) -> Limits:
    return Limits(ttft_s=sent.ttft_s, tpot_s=sent.tpot_s, e2e_s=sent.e2e_s)


class FleetView:
    """The snapshot in force. `fresh_at_s` is when it was last confirmed (monotonic), None: there is none.

    It stays in force however old it is: what serves goes on serving when nobody can be heard (`HealthChecks`).

    `gateways`: how many share the fleet. Each sees what the others have sent only with the agents' next reports.
    """

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.adapters: dict[str, Service] = {}  # by name, those that a service declares or a ready engine has
        self.unloadable: dict[str, str] = {}  # adapters that engines could not load just now: why
        self.fresh_at_s: float | None = None
        self.version: int | None = None
        self.gateways = 1
        self._listed_keys: list[wire.FleetKey] = []
        self._keys: dict[str, wire.FleetKey] = {}  # the same by their hashes
        self._secrets: dict[bytes, wire.FleetKey] = {}  # those seen since a key changed
        self._instances: dict[str, Instance] = {}
        self._pools: dict[int, tuple[str, wire.FleetPool]] = {}  # every pool there was, with its service
        self._complained: set[str] = set()
        self._applied: tuple[wire.Fleet, Mapping[str, wire.AgentState], float, Mapping[str, float]] | None = None

    @property
    def known(self) -> bool:
        return self.version is not None

    @property
    def ready_instances(self) -> int:
        return sum(len(service.ready) for service in self.services.values())

    def not_ready(self) -> str:
        """Returns why requests cannot be served now; empty: they can. The age of the snapshot does not matter."""
        if self.fresh_at_s is None:
            return "no fleet snapshot has been read yet"
        if self.ready_instances or any(service.wakes for service in self.services.values()):
            return ""
        return "no instance is ready"

    def age_s(self, now_s: float) -> float:
        """Returns for how long the snapshot has not been confirmed; not a number: there is none."""
        return math.nan if self.fresh_at_s is None else now_s - self.fresh_at_s

    def ready_report(self, now_s: float) -> dict[str, object]:
        """Returns what `/ready` says, to strangers too, while requests can be served."""
        return {"status": "ready", "snapshot_age_s": round(self.age_s(now_s), 1)}

    def key(self, secret: bytes) -> wire.FleetKey | None:
        """Returns the key that a bearer secret belongs to; callers check whether it has expired."""
        key = self._secrets.get(secret)
        if key is None:
            key = self._keys.get(hashlib.sha256(secret).hexdigest())
            if key is not None:
                self._secrets[secret] = key
        return key

    def holds(self, key: wire.FleetKey) -> bool:
        """Says whether a key of an earlier moment still stands as it was."""
        return self._keys.get(key.key_hash) is key

    def model(self, name: str) -> tuple[Service, str] | None:
        """Returns the service of a model's name, and the adapter if it is one's; names of services go first."""
        service = self.services.get(name)
        if service is not None:
            return service, ""
        service = self.adapters.get(name)
        return None if service is None else (service, name)

    def instances(self) -> Collection[Instance]:
        """Returns those that are ready, or that have requests of this gateway still."""
        return self._instances.values()

    def apply(
        self,
        fleet: wire.Fleet,
        states: Mapping[str, wire.AgentState],
        fresh_at_s: float,
        *,
        heard_at_s: Mapping[str, float] | None = None,
    ) -> None:
        """Puts a new snapshot in force.

        Whoever changes `fleet.keys` gives another list: this one is then not looked at again.

        Args:
            fresh_at_s: When the snapshot was confirmed (monotonic).
            heard_at_s: By key of `states`, when each was received (monotonic). Those missing: with the snapshot.
        """
        heard_at_s = {} if heard_at_s is None else heard_at_s
        self._applied = fleet, states, fresh_at_s, heard_at_s
        if gpu_types.declare(fleet.gpu_types):
            self._complained.clear()  # of types that were not known
        put_in_force(fleet.measured, fleet.profiles)
        services = {entry.name: Service(entry, self.gateways) for entry in fleet.services}
        # An agent that has not heard yet that its instance was moved reports it in a pool that may be gone.
        self._pools |= {pool.id: (entry.name, pool) for entry in fleet.services for pool in entry.pools}
        instances: dict[str, Instance] = {}
        for node, state in states.items():
            for reported in state.instances:
                if self._is_of_another(reported.uid, state.node, states):
                    continue
                name, pool = self._pools.get(reported.pool_id, ("", None))
                service = services.get(name)
                if service is None or pool is None:
                    continue
                if reported.state != "ready":
                    service.coming |= reported.state != "draining"
                    continue
                rank = service.ranks.get(pool.request_class, len(service.ranks))
                instance = self._refreshed(reported, pool, rank, state, heard_at_s.get(node, fresh_at_s))
                if instance is not None:
                    instances[instance.uid] = instance
                    if instance.lost:
                        service.coming = True
                        continue
                    service.ready.append(instance)
                    service.uids[instance.uid] = instance
        busy = {uid: i for uid, i in self._instances.items() if (i.in_flight or i.due) and uid not in instances}
        self._instances = instances | busy  # a draining one keeps its counts until its last request ends
        if fleet.keys is not self._listed_keys:
            self._listed_keys = fleet.keys
            self._keys, self._secrets = {key.key_hash: key for key in fleet.keys}, {}
        self.services = services
        self.adapters = _adapters(services.values())
        self.version = fleet.version
        self.fresh_at_s = fresh_at_s

    def _is_of_another(self, uid: str, node: str, states: Mapping[str, wire.AgentState]) -> bool:
        """Says whether an instance is known to be of another node that still reports: it stays there."""
        known = self._instances.get(uid)
        if known is None or known.node in (None, node) or known.node not in states:
            return False
        if uid not in self._complained:
            self._complained.add(uid)
            log.error("node %s reports instance %s, which is of node %s; it is left out", node, uid, known.node)
        return True

    def recall(self, fleet: wire.Fleet, states: Mapping[str, wire.AgentState], fresh_at_s: float) -> None:
        """Puts a snapshot of an earlier life in force: each instance is lost until its agent or itself is heard."""
        self.apply(fleet, states, fresh_at_s, heard_at_s=dict.fromkeys(states, fresh_at_s))
        for instance in self._instances.values():
            instance.goes_silent()
            instance.lost = True
        self.apply_again()

    def apply_again(self) -> None:
        """Puts the same snapshot in force once more: an instance is lost, or has been found again."""
        if self._applied is not None:
            fleet, states, fresh_at_s, heard_at_s = self._applied
            self.apply(fleet, states, fresh_at_s, heard_at_s=heard_at_s)

    def _refreshed(
        self, reported: wire.InstanceState, pool: wire.FleetPool, rank: int, agent: wire.AgentState, heard_at_s: float
    ) -> Instance | None:
        known = self._instances.get(reported.uid)
        try:
            if known is None:
                return Instance(reported, pool, rank, agent.at_s, self.gateways, agent.node, heard_at_s)
            known.update(reported, pool, rank, agent.at_s, self.gateways, heard_at_s)
        except ValueError as error:
            if reported.uid not in self._complained:
                self._complained.add(reported.uid)
                log.error("%s; it gets no requests", error)
            return None
        return known
