"""A fleet in memory: the snapshot that a gateway would have read from Redis."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from core.engine.image_rule import ImageRule
from core.ports import EngineLimits
from pools import wire

SECRET = "gs-secret-of-acme"
OTHER_SECRET = "gs-secret-of-birch"
EXPIRED_SECRET = "gs-secret-expired"
MODEL = "llama3-70b"
ENGINE_MODEL = "Llama3-70B"
MAX_MODEL_LEN = 16384

_CLASSES = [
    wire.FleetClass("SS", 0, 0, 184, 0, 25),
    wire.FleetClass("SL", 1, 0, 184, 25, None),
    wire.FleetClass("LS", 2, 184, None, 0, 25),
    wire.FleetClass("LL", 3, 184, None, 25, None),
]


def key(secret: str, key_id: int, services: Sequence[str] = (), expires_at_s: float | None = None) -> wire.FleetKey:
    hashed = hashlib.sha256(secret.encode()).hexdigest()
    return wire.FleetKey(hashed, key_id, f"tenant-{key_id}", key_id, list(services), expires_at_s)


@dataclass
class FakeFleet:
    """Instances at the given addresses, one pool for each class; `source.read` gives the snapshot (FleetSource)."""

    urls: list[str]
    state: str = "ready"
    age_s: float = 0.0
    waiting: int = 0
    request_class: str = "LL"
    engine_model: str = ENGINE_MODEL
    fails: bool = False
    kv_connector: str = "simulated"
    kv_addresses: list[str] = field(default_factory=list)  # where instances take caches
    tp: int = 4
    tps: dict[int, int] = field(default_factory=dict)  # of instances whose degree is not `tp`
    weights: dict[str, float] = field(default_factory=dict)  # in routing, by mode
    shares: dict[int, float] = field(default_factory=dict)  # of the carbon plan, by pool
    policy: wire.RequestPolicy = field(default_factory=wire.RequestPolicy)
    objectives: wire.LatencyLimits = field(default_factory=lambda: wire.LatencyLimits(2.0, 0.15, 60.0))
    limits: dict[str, wire.LatencyLimits] = field(default_factory=dict)  # of classes that have their own
    hands_on: dict[str, float] = field(default_factory=dict)  # shares by class
    request_classes: dict[int, str] = field(default_factory=dict)  # of instances that are not of `request_class`
    nodes: list[str] = field(default_factory=lambda: ["node-1"])
    engine_limits: EngineLimits | None = None
    engine_key: str = ""
    adapters: dict[int, list[str]] = field(default_factory=dict)  # that instances have loaded
    declared: list[str] = field(default_factory=list)  # adapters of the service
    max_loras: int = 1
    images: ImageRule | None = None  # of the service's model
    paths: dict[int, list[str]] = field(default_factory=dict)  # of instances that are known to have no others

    def fleet(self) -> wire.Fleet:
        pools = [
            wire.FleetPool(n, "location-1", c.name, 1.2, 300.0, self.shares.get(n), weights=self.weights)
            for n, c in enumerate(_CLASSES, start=1)
        ]
        classes = [
            msgspec.structs.replace(c, limits=self.limits.get(c.name), hands_on=self.hands_on.get(c.name, 0.0))
            for c in _CLASSES
        ]
        service = wire.FleetService(
            MODEL,
            self.engine_model,
            "vllm-v1",
            MAX_MODEL_LEN,
            self.objectives,
            "freesh-a",
            classes,
            pools,
            self.policy,
            images=self.images,
            adapters=[wire.FleetAdapter(name, f"acme/{name}") for name in self.declared],
            max_loras=self.max_loras,
        )
        other = wire.FleetService(
            "other-model", "Other", "vllm-v1", 2048, wire.LatencyLimits(), "freesh-a", _CLASSES, []
        )
        keys = [
            key(SECRET, 1, [MODEL]),
            key(OTHER_SECRET, 2),
            key(EXPIRED_SECRET, 3, expires_at_s=time.time() - 1),
        ]
        return wire.Fleet(1, time.time(), [service, other], keys, self.nodes)

    def instance(self, url: str, n: int) -> wire.InstanceState:
        pool = 1 + [c.name for c in _CLASSES].index(self.request_classes.get(n, self.request_class))
        return wire.InstanceState(
            uid=f"00000000-0000-4000-8000-{n:012d}",
            pool_id=pool,
            url=url,
            state=self.state,
            model=ENGINE_MODEL,
            engine="vllm-v1",
            gpu_type="A100-80GB",
            tp=self.tps.get(n, self.tp),
            sm_clock_mhz=1410.0,
            min_mhz=210.0,
            max_mhz=1410.0,
            running=0,
            waiting=self.waiting,
            kv_usage=0.0,
            kv_connector=self.kv_connector,
            kv_address=self.kv_addresses[n] if self.kv_addresses else "",
            engine_limits=self.engine_limits,
            engine_key=self.engine_key,
            paths=self.paths.get(n),
            adapters=self.adapters.get(n, []),
        )

    def states(self) -> dict[str, wire.AgentState]:
        instances = [self.instance(url, n) for n, url in enumerate(self.urls)]
        return {"node-1": wire.AgentState("node-1", "boot", time.time() - self.age_s, 1, instances)}

    async def read(self) -> tuple[wire.Fleet, dict[str, wire.AgentState]]:
        if self.fails:
            raise ConnectionError("no source today")
        return self.fleet(), self.states()
