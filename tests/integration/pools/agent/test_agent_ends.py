"""Agents, nodes and Redis that end in the midst of it, each test with processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from django.conf import settings

from pools import wire
from tests.fakes.agent import NODE, PERIOD_S, Bench, complete, desired, redis_server
from tests.fakes.simnode import eventually

AWAY_S = 1.5


@pytest.fixture
def bench(tmp_path: Path, redis_client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Of a test that ends a process, or has a period of its own."""
    running = Bench(tmp_path, redis_client, settings.CELERY_BROKER_URL, getattr(request, "param", PERIOD_S))
    yield running
    running.close()


def test_clock_returns_to_the_top_when_the_agent_is_killed(bench: Bench) -> None:
    bench.want(desired("a", [0]), clock=wire.ClockPolicy(lease_s=1.0, period_s=PERIOD_S))
    bench.ready("a")
    bench.wait(lambda: bench.node.get("/gpus")[0]["sm_clock_mhz"] < 1200.0, "lowered clock")
    boots = {batch.boot for batch in bench.batches()}
    bench.agent.end(signal.SIGKILL)
    bench.wait(lambda: bench.node.get("/gpus")[0]["sm_clock_mhz"] == 1410.0, "lapsed lease", 5.0)
    url = bench.node.ready_url("a")
    assert url is not None  # the engine outlives its agent
    bench.agent.start()
    bench.wait(lambda: {batch.boot for batch in bench.batches()} - boots, "batches of the new agent")
    assert bench.ready("a").url == url


@pytest.mark.slow("a node that is killed")
def test_instance_is_back_and_counters_go_on_when_the_node_is_killed(bench: Bench) -> None:
    bench.want(desired("a", [0, 1]))
    first = bench.ready("a")
    highest = max(row.energy_j or 0.0 for row in bench.batches()[-1].gpus.unpack())
    bench.node.kill()
    bench.wait(lambda: bench.instance("a", "failed"), "report of the failed instance")
    assert bench.instance("a", "failed").url is None  # type: ignore[union-attr]
    bench.node.start()
    started_s = time.monotonic()
    again = bench.wait(lambda: (i := bench.instance("a")) and i.url != first.url and i, "restarted instance")
    assert time.monotonic() - started_s < 30.0
    assert complete(str(again.url), stream=False)
    bench.wait(
        lambda: all((row.energy_j or 0.0) > highest for row in bench.batches()[-1].gpus.unpack()), "higher counters"
    )
    energies = [
        row.energy_j for batch in bench.batches() for row in batch.gpus.unpack() if row.gpu_uuid == bench.node.uuid(0)
    ]
    assert energies == sorted(energies)  # type: ignore[type-var]


@pytest.mark.parametrize("bench", [1.0], indirect=True, ids=["each second"])
@pytest.mark.slow("an agent of its own")
def test_agent_looks_at_once_when_it_is_nudged(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")

    def gaps() -> list[float]:
        return [later - earlier for earlier, later in pairwise(batch.sent_at_s for batch in bench.batches())]

    def nudged_soon_after_a_look() -> bool:
        seen = len(bench.batches())
        bench.wait(lambda: len(bench.batches()) > seen, "the next look")
        bench.nudge(42)
        bench.wait(lambda: len(bench.batches()) > seen + 1, "the look after it")
        return min(gaps()) < 0.95

    bench.wait(nudged_soon_after_a_look, "a look ahead of its second")
    assert "nudged by decision 42" in bench.agent.log()


@pytest.mark.slow("an agent of its own")
def test_agent_ends_in_seconds_and_leaves_its_engines_when_it_is_terminated(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")
    bench.wait(lambda: " ready." in bench.agent.log(), "worker that heeds signals")
    started_s = time.monotonic()
    assert bench.agent.end() == 0
    assert time.monotonic() - started_s < 20.0
    assert bench.node.ready_url("a")


FILL = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
redis.call('DEL', KEYS[1])
for n = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'b', '') end
return last[1][2][2]
"""


@pytest.mark.slow("two agents, one after the other")
def test_samples_wait_on_disk_for_the_next_agent_when_the_stream_is_full_and_the_agent_ends(bench: Bench) -> None:
    bench.wait(bench.batches, "batches")
    last = bench.redis.eval(FILL, 1, wire.batch_stream(NODE), str(wire.NODE_STREAM_MOST))
    sent = wire.decode(last, wire.AgentBatch)  # type: ignore[arg-type]  # stubs know of awaitables
    bench.wait(lambda: "the stream is full" in bench.agent.log(), "word of the full stream")
    state = bench.wait(bench.state, "state")
    bench.wait(lambda: bench.state().at_s > state.at_s + PERIOD_S, "states, for which there is room")  # type: ignore[union-attr]
    assert bench.redis.xlen(wire.batch_stream(NODE)) == wire.NODE_STREAM_MOST
    bench.wait(lambda: " ready." in bench.agent.log(), "worker that heeds signals")
    assert bench.agent.end() == 0
    assert list(bench.agent.spool.glob("*.mp"))
    bench.redis.delete(wire.batch_stream(NODE))
    bench.agent.start()
    bench.wait(lambda: {batch.boot for batch in bench.batches()} - {sent.boot}, "batches of the new agent")
    kept = [batch.seq for batch in bench.batches() if batch.boot == sent.boot]
    assert kept == list(range(sent.seq + 1, sent.seq + 1 + len(kept)))
    assert kept
    assert not list(bench.agent.spool.glob("*.mp"))


def test_samples_arrive_without_a_gap_when_redis_was_away(tmp_path: Path) -> None:
    """Redis is killed for some periods: the node is served on, and nothing measured meanwhile is lost."""
    socket = tmp_path / "r.sock"
    command = [redis_server(), "--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]

    def start() -> subprocess.Popen[bytes]:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(lambda: _pings(client), 10.0, "Redis")
        return server

    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=2)
    server = start()
    bench = Bench(tmp_path, client, f"redis+socket://{socket}")
    try:
        bench.want(desired("a", [0]))
        bench.ready("a")
        os.kill(server.pid, signal.SIGKILL)
        server.wait(5)
        sent_s = time.time()
        time.sleep(AWAY_S)
        assert bench.node.ready_url("a")
        server = start()
        bench.wait(lambda: bench.batches()[-1].sent_at_s > sent_s + AWAY_S, "batches after the absence")
        batches = bench.batches()
        assert sorted({batch.seq for batch in batches}) == list(range(1, batches[-1].seq + 1))
        assert len([batch for batch in batches if sent_s < batch.sent_at_s < sent_s + AWAY_S]) >= 3
        bench.nudge(7)  # its worker has found the broker again
        bench.wait(lambda: "nudged by decision 7" in bench.agent.log(), "nudge after the absence", 30.0)
    finally:
        bench.close()
        client.close()
        server.terminate()
        server.wait(10)


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
