"""Runs the processes of simulated nodes: those that the database has at the start, and then those that come and go.

The scheduler publishes what each node is to run, and with it the GPUs of a simulated one. So the supervisor hears of
a node that a person adds or removes, and needs no database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import redis

from core.engine.gpu_types import GpuType
from greenserve import env
from greenserve.process import StartError
from greenserve.supervision import preflight, product_processes
from greenserve.supervision.supervisor import Supervisor
from pools import wire

LOOK_EVERY_S = 1.0

Gpus = Mapping[str, Sequence[tuple[str, int]]]  # by node: types and counts


class SimulatedNodes:
    """Two processes for each node: the one that stands in for the machine, and its agent."""

    def __init__(
        self, config: env.Env, supervisor: Supervisor, client: redis.Redis, report: Callable[[str], None]
    ) -> None:
        self._config, self._supervisor, self._client, self._report = config, supervisor, client, report
        self._began_at_s = time.time()
        self._ports: dict[str, int] = {}
        self._wanted: Gpus = {}
        self._types: dict[str, GpuType] = {}  # that operators entered
        self._version: int | None = None
        self._looked_mono_s = float("-inf")

    def follow(self) -> None:
        """Reads what is published, at most once a second, and runs that. Where nothing can be read, all stays."""
        now = time.monotonic()
        if now - self._looked_mono_s < LOOK_EVERY_S:
            return
        self._looked_mono_s = now
        try:
            self._wanted = self._published()
        except redis.RedisError:
            self._client.close()  # it is away, or one of the processes that are down: the next look asks again
        try:
            self.run(self._wanted)
        except StartError as error:
            self._report(f"{error}; tried again each {LOOK_EVERY_S:g} s")

    def know(self, types: Iterable[GpuType]) -> None:
        """Says what GPU types operators entered."""
        self._types = {one.name: one for one in types}

    def run(self, wanted: Gpus) -> None:
        """Starts what is `wanted` and does not run. Asks what is not wanted, or not with these GPUs, to stop; what is
        to run with others starts once the old process has ended. Raises StartError."""
        self._wanted = wanted
        for node in self._ports.keys() - wanted.keys():
            self._dismiss(f"node.{node}", f"simnode.{node}")
        self._ports = preflight.control_ports(self._config.var_dir, wanted, self._ports)
        machines = [
            product_processes.simulated_node(self._config, node, gpus, self._ports[node], self._types)
            for node, gpus in wanted.items()
        ]
        agents = [product_processes.agent(self._config, node, self._ports[node]) for node in wanted]
        for spec in (*machines, *agents):
            slot = self._supervisor.slots.get(spec.name)
            if slot is None:
                self._supervisor.start(spec)
            elif slot.child.spec.argv != spec.argv:
                self._dismiss(spec.name)

    def _dismiss(self, *names: str) -> None:
        for name in names:
            if name in self._supervisor.slots:
                self._supervisor.dismiss(name)

    def _published(self) -> Gpus:
        """Returns the simulated nodes as they were last published; those of now where nothing has been since. What was
        published before this supervisor began may be of another version, or of another state of the database."""
        said: Any = self._client.get(wire.FLEET_INDEX_KEY)
        if said is None:
            return self._wanted
        index = wire.decode(said, wire.FleetIndex)
        if index.version == self._version or index.at_s < self._began_at_s:
            return self._wanted
        texts: Any = self._client.mget([wire.desired_key(node) for node in index.nodes]) if index.nodes else []
        self._version = index.version
        self.know(index.gpu_types)
        nodes = [wire.decode(text, wire.DesiredNode) for text in texts if text is not None]
        return {node.node: node.simulated_gpus for node in nodes if node.simulated_gpus}
