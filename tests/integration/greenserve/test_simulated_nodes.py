"""Simulated nodes that come, change and go while the product runs; real Redis, and a supervisor that starts nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import redis

from core.engine.gpu_types import SHIPPED, GpuType
from greenserve import env
from greenserve.process import Child, Spec, StartError
from greenserve.supervision import simulated_nodes
from greenserve.supervision.simulated_nodes import SimulatedNodes
from greenserve.supervision.supervisor import Slot
from pools import wire

A100 = "A100-80GB"


@dataclass
class RecordingSupervisor:
    """Notes what it is asked for. A child that was dismissed is there until `forget`."""

    slots: dict[str, Slot] = field(default_factory=dict)
    dismissed: set[str] = field(default_factory=set)
    refuses: bool = False

    def start(self, spec: Spec) -> Child:
        if self.refuses:
            raise StartError("no memory")
        self.slots[spec.name] = Slot(Child(spec, Path("/dev/null")))
        return self.slots[spec.name].child

    def dismiss(self, name: str) -> None:
        self.dismissed.add(name)

    def forget(self) -> None:
        for name in self.dismissed:
            del self.slots[name]
        self.dismissed = set()


@dataclass
class World:
    client: redis.Redis
    supervisor: RecordingSupervisor
    nodes: SimulatedNodes
    said: list[str]
    version: int = 0

    def publish(
        self, nodes: dict[str, list[tuple[str, int]]], at_s: float | None = None, types: tuple[GpuType, ...] = ()
    ) -> None:
        self.version += 1
        at_s = time.time() if at_s is None else at_s
        index = wire.FleetIndex(self.version, at_s, sorted(nodes), {}, 0, 0, list(types))
        for node, gpus in nodes.items():
            desired = wire.DesiredNode(node, self.version, at_s, [], wire.ClockPolicy(), simulated_gpus=gpus)
            self.client.set(wire.desired_key(node), wire.encode(desired))
        self.client.set(wire.FLEET_INDEX_KEY, wire.encode(index))
        self.nodes.follow()

    def words(self, name: str) -> tuple[str, ...]:
        return self.supervisor.slots[name].child.spec.argv


@pytest.fixture
def world(redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(simulated_nodes, "LOOK_EVERY_S", 0.0)
    (tmp_path / "run").mkdir()
    supervisor, said = RecordingSupervisor(), list[str]()
    config = env.read({"GREENSERVE_VAR": str(tmp_path)})
    nodes = SimulatedNodes(config, supervisor, redis_client, said.append)  # type: ignore[arg-type]
    return World(redis_client, supervisor, nodes, said)


def test_node_is_started_when_it_is_added_and_ended_when_it_is_removed(world: World) -> None:
    world.nodes.run({"n1": [(A100, 4)]})
    assert set(world.supervisor.slots) == {"simnode.n1", "node.n1"}
    world.publish({"n1": [(A100, 4)], "n2": [(A100, 2)], "real": []})
    assert set(world.supervisor.slots) == {"simnode.n1", "node.n1", "simnode.n2", "node.n2"}
    assert f"{A100}:2" in world.words("simnode.n2")
    port = world.words("simnode.n2")[world.words("simnode.n2").index("--port") + 1]
    assert f"http://127.0.0.1:{port}" in world.words("node.n2")
    assert not world.supervisor.dismissed
    world.publish({"n2": [(A100, 2)]})
    assert world.supervisor.dismissed == {"simnode.n1", "node.n1"}


def test_machine_is_started_anew_and_its_agent_stays_when_its_gpus_change(world: World) -> None:
    world.publish({"n1": [(A100, 1)]})
    world.publish({"n1": [(A100, 4)]})
    assert world.supervisor.dismissed == {"simnode.n1"}
    world.supervisor.forget()
    world.nodes.follow()
    assert f"{A100}:4" in world.words("simnode.n1")


def test_all_stays_when_nothing_newer_is_published(world: World) -> None:
    """What was published before the start may be another version's, which knew no simulated nodes."""
    world.nodes.run({"n1": [(A100, 4)]})
    world.nodes.follow()
    world.publish({"n1": []}, at_s=time.time() - 60)
    world.client.delete(wire.FLEET_INDEX_KEY)
    world.nodes.follow()
    assert set(world.supervisor.slots) == {"simnode.n1", "node.n1"}
    assert not world.supervisor.dismissed


def test_start_is_tried_again_and_said_when_it_fails(world: World) -> None:
    world.supervisor.refuses = True
    world.publish({"n1": [(A100, 1)]})
    assert "no memory" in world.said[0]
    world.supervisor.refuses = False
    world.nodes.follow()
    assert "simnode.n1" in world.supervisor.slots


def test_machine_is_started_with_the_type_of_its_gpus_when_an_operator_entered_it(world: World) -> None:
    own, other = (replace(SHIPPED["L40S-48GB"], name=name) for name in ("L40S-lab", "L40S-other"))
    world.publish({"n1": [("L40S-lab", 2)]}, types=(own, other))
    words = " ".join(world.words("simnode.n1"))
    assert '--gpu-type {"name": "L40S-lab", "peak_tflops": 362.0' in words
    assert "L40S-other" not in words
    world.publish({"n1": [("L40S-lab", 2)]}, types=(replace(own, tdp_w=300.0), other))
    assert world.supervisor.dismissed == {"simnode.n1"}  # it starts anew, with the figures of now
