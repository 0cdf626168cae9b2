"""Clock requests over a real Redis, to an agent's thread with a fake actuator."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from django.conf import settings

from pools import wire
from pools.agent.app import AgentThread, Bell
from pools.agent.clocks.clock_requests import ClockListener, ClockRequests
from pools.agent.loop import PERIOD_S, AgentLoop
from pools.agent.redis_link import redis_url
from tests.fakes.agent import redis_server
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

NODE = "n1"


def request(mhz: float, gateway: str = "g1", lease_s: float = 10.0) -> wire.ClockRequest:
    return wire.ClockRequest("a", gateway, time.time(), mhz, lease_s, "within_limits", "the lowest that will do")


class TimedActuator(FakeFrequencyActuator):
    def __init__(self) -> None:
        super().__init__()
        self.locked_s: dict[float, float] = {}  # by clock, when it was first set

    def lock(self, gpu_uuids: Sequence[str], mhz: float, lease_s: float) -> None:
        self.locked_s.setdefault(mhz, time.perf_counter())
        super().lock(gpu_uuids, mhz, lease_s)


class Agent:
    """The agent's two threads, with fakes in place of node and batches."""

    def __init__(self, url: str, period_s: float = PERIOD_S) -> None:
        self.actuator = TimedActuator()
        self.link = FakeLink(desired_node(desired_instance("a", clock=wire.ClockPolicy(policy="throttle"))))
        self.requests, bell = ClockRequests(), Bell()
        runtime = FakeInstanceRuntime()
        loop = AgentLoop(
            NODE,
            "boot-1",
            meter=FakeGpuMeter(("G0",)),
            actuator=self.actuator,
            runtime=runtime,
            metrics=FakeEngineMetrics(),
            link=self.link,
            requests=self.requests,
            period_s=period_s,
        )
        loop.tick(time.time())
        runtime.become("a", "ready")
        self.threads = AgentThread(loop, bell, period_s), ClockListener(url, NODE, self.requests, bell.ring)
        for thread in self.threads:
            thread.start()
        eventually(lambda: self.link.sends > 1, 2.0, "tick of the thread")

    def end(self) -> None:
        for thread in self.threads:
            thread.end(5.0)
            assert not thread.is_alive()


def publish(client: redis.Redis, mhz: float, lease_s: float = 10.0) -> int:
    return int(client.publish(wire.clock_channel(NODE), wire.encode(request(mhz, lease_s=lease_s))))  # type: ignore[arg-type]


def heard(client: redis.Redis) -> bool:
    numbers: list[tuple[bytes, int]] = client.pubsub_numsub(wire.clock_channel(NODE))  # type: ignore[assignment]
    return numbers[0][1] > 0


@pytest.fixture
def agent(redis_client: redis.Redis) -> Iterator[Agent]:
    running = Agent(redis_url(settings.CELERY_BROKER_URL))
    eventually(lambda: heard(redis_client), 5.0, "listener")
    yield running
    running.end()


def test_clock_is_set_long_before_the_next_tick_when_a_gateway_publishes_it(
    agent: Agent, redis_client: redis.Redis
) -> None:
    """The time from publish to the actuator's call is printed; what is held is that no tick lies between."""
    took_s = []
    for number in range(20):
        ticks = agent.link.sends
        if number % 10 == 0:  # right after a tick, so that the next one is far
            eventually(lambda ticks=ticks: agent.link.sends > ticks, 3.0, "tick")
            ticks = agent.link.sends
        mhz, begun_s = 700.0 + number, time.perf_counter()
        assert publish(redis_client, mhz) == 1
        while mhz not in agent.actuator.locked_s:
            assert time.perf_counter() - begun_s < 2.0
            time.sleep(0.001)
        assert agent.link.sends == ticks or number % 10
        took_s.append(agent.actuator.locked_s[mhz] - begun_s)
    print(f"publish to actuator: median {1e3 * sorted(took_s)[10]:.1f} ms, longest {1e3 * max(took_s):.1f} ms")


def test_later_requests_are_heard_when_one_cannot_be_read(
    agent: Agent, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pools.agent.clocks.clock_requests"):
        redis_client.publish(wire.clock_channel(NODE), b'{"uid": 1}')
        redis_client.publish(wire.clock_channel(NODE), wire.encode(request(-1.0)))
        publish(redis_client, 800.0)
        eventually(lambda: 800.0 in agent.actuator.locked_s, 5.0, "lock")
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 2


def unheard(caplog: pytest.LogCaptureFixture) -> int:
    return len([one for one in caplog.records if one.message.startswith("no clock requests are heard")])


def test_requests_are_heard_again_when_redis_was_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    socket = tmp_path / "r.sock"
    command = [redis_server(), "--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--save", ""]
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=2)

    def start() -> subprocess.Popen[bytes]:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(lambda: socket.exists(), 10.0, "Redis")
        return server

    with caplog.at_level(logging.INFO, "pools.agent.clocks.clock_requests"):
        agent = Agent(f"unix://{socket}?db=0", period_s=0.2)  # before Redis is there
        eventually(lambda: unheard(caplog) == 1, 10.0, "first complaint")
        server = start()
        try:
            eventually(lambda: heard(client), 10.0, "listener")
            publish(client, 800.0, lease_s=0.8)
            eventually(lambda: 800.0 in agent.actuator.locked_s, 5.0, "lock")
            server.kill()
            server.wait(5)
            eventually(lambda: agent.actuator.calls[-1] == ("reset", ("G0",)), 5.0, "top clock")  # the lease is over
            eventually(lambda: unheard(caplog) == 2, 10.0, "second complaint")
            socket.unlink(missing_ok=True)
            server = start()
            eventually(lambda: heard(client), 10.0, "listener")
            publish(client, 900.0)
            eventually(lambda: 900.0 in agent.actuator.locked_s, 5.0, "lock")
        finally:
            agent.end()
            client.close()
            server.terminate()
            server.wait(10)
    assert unheard(caplog) == 2, "once each time"
    assert "clock requests are heard again" in [record.message for record in caplog.records]
