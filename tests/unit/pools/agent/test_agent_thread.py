"""The agent's thread: ticks by the second, and at once what cannot wait for the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from core.ports import LONGEST_LEASE_S, EngineReading, RetryableError
from pools.agent.app import AgentThread, Bell
from pools.agent.clocks.clock_requests import ClockRequests
from pools.agent.loop import PERIOD_S, AgentLoop
from pools.wire import ClockPolicy
from tests.fakes.node import (
    FakeEngineMetrics,
    FakeFrequencyActuator,
    FakeGpuMeter,
    FakeInstanceRuntime,
    FakeLink,
    desired_instance,
    desired_node,
)
from tests.fakes.simnode import eventually
from tests.unit.pools.agent.clocks.clock_bench import request

PATIENCE_S = 20.0
BEGIN_S = 1_000_000.0
FAR_S = 600.0  # what happens in a test happens between two ticks


class CountedMetrics(FakeEngineMetrics):
    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.scrapes: list[float] = []
        self.silent_from_s = math.inf
        self._now_s = now_s

    def scrape(self, uid: str, url: str) -> EngineReading:
        self.scrapes.append(self._now_s())
        if self._now_s() >= self.silent_from_s:
            raise RetryableError("time-out")
        return super().scrape(uid, url)


class Agent:
    """An agent's loop over fakes, with one instance that is ready."""

    def __init__(self, clock: ClockPolicy, now_s: Callable[[], float] = time.time) -> None:
        self.actuator = FakeFrequencyActuator()
        self.metrics, self.sampler = CountedMetrics(now_s), CountedMetrics(now_s)
        self.requests = ClockRequests()
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
        self.loop.tick(now_s() - 1.0)
        runtime.become("a", "ready")

    @property
    def ticks(self) -> int:
        return self.link.sends


class Running(Agent):
    """With its thread, whose next tick is far."""

    def __init__(self, clock: ClockPolicy) -> None:
        super().__init__(clock)
        self.bell = Bell()
        self.thread = AgentThread(self.loop, self.bell, FAR_S)
        self.thread.start()
        eventually(lambda: self.ticks >= 2, PATIENCE_S, "tick of the thread")

    def ask(self, mhz: float, lease_s: float = 10.0) -> None:
        self.requests.put(request(mhz, uid="a", at_s=time.time(), lease_s=lease_s), time.time())
        self.bell.ring()


class Over(Exception):
    """The time that a test gives is over."""


class Waits(Bell):
    """Time passes while the agent waits, and in no other way; `Over` when there is no more of it."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = self.end_s = BEGIN_S

    def now_s(self) -> float:
        return self.at_s

    def wait(self, timeout_s: float) -> None:
        if self.at_s + timeout_s > self.end_s:
            raise Over
        self.at_s += timeout_s


def lived(clock: ClockPolicy, for_s: float, silent_after_s: float = math.inf) -> Agent:
    """An agent after `for_s` of that time."""
    bell = Waits()
    agent = Agent(clock, bell.now_s)
    agent.sampler.silent_from_s = BEGIN_S + silent_after_s
    bell.end_s += for_s
    with pytest.raises(Over):
        AgentThread(agent.loop, bell, PERIOD_S, bell.now_s, bell.now_s).run()
    return agent


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(clock: ClockPolicy) -> Running:
        running.append(Running(clock))
        return running[-1]

    yield start
    for one in running:
        one.thread.end(PATIENCE_S)
        assert not one.thread.is_alive()


def test_clock_is_set_before_the_next_tick_when_a_gateway_asks_for_it(start: Callable[..., Running]) -> None:
    agent = start(ClockPolicy(policy="throttle"))
    ticks = agent.ticks
    agent.ask(900.0)
    eventually(lambda: ("lock", ("G0",), 900.0, LONGEST_LEASE_S) in agent.actuator.calls, PATIENCE_S, "lock")
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


def test_engine_is_sampled_between_ticks_when_its_rule_is_faster() -> None:
    agent = lived(ClockPolicy(policy="slack"), 10.0)
    assert agent.ticks == 1 + 11
    scrapes = agent.sampler.scrapes
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(scrapes)]
    assert gaps == [0.5] * 20
    assert len(agent.metrics.scrapes) == 11
    assert [call for call in agent.actuator.calls if call[0] == "lock"]


def test_engine_is_read_once_a_tick_when_its_rule_is_not_faster() -> None:
    agent = lived(ClockPolicy(), 10.0)
    assert len(agent.metrics.scrapes) == 11
    assert agent.sampler.scrapes == []


def test_silent_engine_is_not_sampled_again_before_the_next_tick() -> None:
    agent = lived(ClockPolicy(policy="slack"), 4.0, silent_after_s=1.2)
    assert [at_s - BEGIN_S for at_s in agent.sampler.scrapes] == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    assert "cannot sample instance a: time-out" in agent.link.states[-1].error


def test_agent_is_silent_while_its_simulated_machine_is_off() -> None:
    bell = Waits()
    agent = Agent(ClockPolicy(), bell.now_s)
    bell.end_s += 20.0
    off_s = (BEGIN_S + 5.0, BEGIN_S + 15.0)
    before = agent.ticks

    def runs() -> bool:
        return not off_s[0] <= bell.now_s() < off_s[1]

    with pytest.raises(Over):
        AgentThread(agent.loop, bell, 1.0, bell.now_s, bell.now_s, runs).run()
    assert agent.ticks - before == 11, "in ten seconds of twenty-one it says nothing"
