"""An agent whose node has no right to set clocks: it measures, says so, and decides nothing that it could not do."""

from __future__ import annotations

import importlib.metadata

import pytest

from core.ports import PermanentError
from pools.agent.loop import AgentLoop
from pools.agent.real_node import MeasuredNode
from pools.agent.redis_link import LinkError
from pools.wire import AgentState
from tests.fakes.node import (
    FakeEngineMetrics,
    FakeFrequencyActuator,
    FakeGpuMeter,
    FakeInstanceRuntime,
    FakeLink,
    desired_instance,
    desired_node,
)


class FakeReport:
    def __init__(self) -> None:
        self.why = "no clock actuator"

    def measure_only(self) -> str:
        return self.why

    def prepare(self, launches: object) -> None: ...

    def finds(self) -> None: ...

    def memory_free_bytes(self) -> int:
        return 64_000_000_000

    def notices(self) -> tuple[str, ...]:
        return ("G0 does not tell: energy counter",)


def test_clocks_are_left_alone_when_they_cannot_be_set_or_redis_is_away() -> None:
    report, actuator, runtime, link = FakeReport(), FakeFrequencyActuator(), FakeInstanceRuntime(), FakeLink()
    loop = AgentLoop(
        "n1",
        "boot-1",
        meter=FakeGpuMeter(("G0",)),
        actuator=actuator,
        runtime=runtime,
        metrics=FakeEngineMetrics(),
        link=link,
        report=report,
    )
    now_s = 1000.0

    def tick() -> AgentState:
        nonlocal now_s
        now_s += 1.0
        return loop.tick(now_s)

    link.desired_node = desired_node(desired_instance("a", ["G0"]), decrease_mhz=300.0)
    tick()
    runtime.become("a", "ready")
    for _ in range(3):
        state = tick()
    assert (state.measure_only, state.error) == ("no clock actuator", "")
    assert state.version == importlib.metadata.version("greenserve")
    assert state.memory_free_bytes == 64_000_000_000
    assert state.notices == ["G0 does not tell: energy counter"]
    assert link.heartbeats[-1].detail == "measure only: no clock actuator"
    assert not actuator.calls
    report.why = ""
    for _ in range(3):
        state = tick()
    assert state.measure_only == ""
    assert actuator.calls

    link.desired_error = LinkError("Redis: gone")  # leases lapse, as when the agent itself goes
    tick()
    done = len(actuator.calls)
    for _ in range(3):
        tick()
    assert len(actuator.calls) == done
    link.desired_error = None
    tick()
    tick()
    assert len(actuator.calls) > done


def test_engine_is_refused_in_words_when_the_node_only_measures() -> None:
    runtime = MeasuredNode()
    assert runtime.list() == ()
    with pytest.raises(PermanentError, match="starts no engines"):
        runtime.start(None)  # type: ignore[arg-type]
