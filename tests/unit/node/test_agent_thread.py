"""The agent's thread: ticks by the second, and at once what cannot wait for the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from pools.agent.app import AgentThread, Bell
from pools.agent.clock_requests import ClockRequests
from pools.agent.loop import PERIOD_S, AgentLoop
from pools.wire import ClockPolicy
from scheduler.core.ports import EngineReading, RetryableError
from tests.fakes.node import (
    FakeEngineMetrics,
    FakeFrequencyActuator,
    FakeGpuMeter,
    FakeInstanceRuntime,
    FakeLink,
    desired_instance,
    desired_node,
    engine_reading,
)
from tests.fakes.simnode import eventually

from .clock_bench import request

PATIENCE_S = 20.0
FAR_S = 600.0  # what happens in a test happens between two ticks


class CountedMetrics(FakeEngineMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.scrapes: list[float] = []

    def scrape(self, uid: str, url: str) -> EngineReading:
        self.scrapes.append(time.monotonic())
        return super().scrape(uid, url)


class Running:
    """An agent's thread over fakes, with one instance that is ready."""

    def __init__(self, clock: ClockPolicy, period_s: float) -> None:
        self.actuator = FakeFrequencyActuator()
        self.metrics, self.sampler = CountedMetrics(), CountedMetrics()
        self.requests, self.bell = ClockRequests(), Bell()
        self.link = FakeLink(desired_node(desired_instance("a", clock=clock)))
        runtime = FakeInstanceRuntime()
        self.loop = AgentLoop(
            "n1",
            "boot-1",
            meter=FakeGpuMeter(("G0",)),
            actuator=self.actuator,
            runtime=runtime,
            metrics=self.metrics,
            link=self.link,
            sampler=self.sampler,
            requests=self.requests,
        )
        self.loop.tick(time.time() - 1.0)
        runtime.become("a", "ready")
        self.thread = AgentThread(self.loop, self.bell, period_s)
        self.thread.start()
        eventually(lambda: self.ticks >= 2, PATIENCE_S, "tick of the thread")

    @property
    def ticks(self) -> int:
        return self.link.sends

    def ask(self, mhz: float, lease_s: float = 10.0) -> None:
        self.requests.put(request(mhz, uid="a", at_s=time.time(), lease_s=lease_s), time.time())
        self.bell.ring()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(clock: ClockPolicy, period_s: float = FAR_S) -> Running:
        running.append(Running(clock, period_s))
        return running[-1]

    yield start
    for one in running:
        one.thread.end(PATIENCE_S)
        assert not one.thread.is_alive()


def test_clock_is_set_before_the_next_tick_when_a_gateway_asks_for_it(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy(policy="throttle"))
    ticks = agent.ticks
    agent.ask(900.0)
    eventually(lambda: ("lock", ("G0",), 900.0, 10.0) in agent.actuator.calls, PATIENCE_S, "lock")
    assert agent.ticks == ticks
    agent.bell.nudge()
    eventually(lambda: agent.ticks > ticks, PATIENCE_S, "next tick")
    (row,) = agent.link.batches[-1].clocks
    assert (row.instance_uid, row.to_mhz, row.inputs["gateway"]) == ("a", 900.0, "g1")


def test_clock_is_let_go_before_the_next_tick_when_the_lease_is_over(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy(policy="throttle"))
    agent.ask(900.0, lease_s=0.1)
    ticks = agent.ticks
    eventually(lambda: agent.actuator.calls[-1][0] == "lock", PATIENCE_S, "lock")
    eventually(lambda: agent.actuator.calls[-1] == ("reset", ("G0",)), PATIENCE_S, "reset")
    assert agent.ticks == ticks


def test_agent_ticks_at_once_when_it_is_nudged(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy())
    ticks = agent.ticks
    agent.bell.nudge()
    eventually(lambda: agent.ticks > ticks, PATIENCE_S, "tick")


def test_engine_is_sampled_between_ticks_when_its_rule_is_faster(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy(policy="slack"), PERIOD_S)
    ticks = agent.ticks
    eventually(lambda: agent.ticks >= ticks + 3, PATIENCE_S, "three ticks")
    assert len(agent.sampler.scrapes) >= 2 * len(agent.metrics.scrapes) - 2
    assert agent.sampler.scrapes[-1] - agent.sampler.scrapes[-2] > 0.3
    lowered = [call for call in agent.actuator.calls if call[0] == "lock"]
    assert lowered


def test_engine_is_read_once_a_tick_when_its_rule_is_not_faster(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy(), PERIOD_S)
    ticks = agent.ticks
    eventually(lambda: agent.ticks >= ticks + 2, PATIENCE_S, "two ticks")
    assert agent.sampler.scrapes == []


def test_silent_engine_is_not_sampled_again_before_the_next_tick(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy(policy="slack"), PERIOD_S)
    agent.sampler.readings["a"] = engine_reading()
    agent.sampler.error = RetryableError("time-out")
    ticks, scrapes = agent.ticks, len(agent.sampler.scrapes)
    eventually(lambda: agent.ticks >= ticks + 3, PATIENCE_S, "three ticks")
    assert len(agent.sampler.scrapes) - scrapes <= 5
    assert "cannot sample instance a: time-out" in agent.link.states[-1].error
