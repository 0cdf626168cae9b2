"""An agent as it runs: a Celery worker process beside a simulated node, over a real Redis."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from greenserve.servers import embedded
from pools import wire
from tests.fakes.simnode import ROOT, SimnodeProcess, eventually

NODE = "agent-test"
MODEL = "Llama3-8B"
PERIOD_S = 0.2  # of the agents' ticks; in the product a second
OFTEN = wire.ClockPolicy(period_s=PERIOD_S)
LIMITS = wire.LatencyLimits(ttft_s=0.6, tpot_s=0.15, e2e_s=30.0)


def desired(uid: str, gpus: list[int], state: str = "running", **more: Any) -> wire.DesiredInstance:
    uuids = [f"SIM-{NODE}-{index}" for index in gpus]
    return wire.DesiredInstance(uid, 1, MODEL, "vllm-v1", uuids, 4096, state, LIMITS, **more)


class AgentProcess:
    def __init__(self, control: str, broker: str, folder: Path, period_s: float, *more: str) -> None:
        self._log = folder / "agent.log"
        self.spool = folder / "spool"
        self._command = [sys.executable, "-m", "celery", "-A", "pools.agent.app", "-b", broker, "worker", "-P", "solo"]
        self._command += ["-Q", wire.node_queue(NODE), "-n", f"node.{NODE}@%h", "--loglevel", "INFO"]
        self._command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self._command += ["--node", NODE, "--control", control, "--period-s", str(period_s)]
        self._command += ["--spool", str(self.spool), *more]
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

    def __init__(
        self, folder: Path, client: redis.Redis, broker: str, period_s: float = PERIOD_S, more: Sequence[str] = ()
    ) -> None:
        """`more` are further options of the agent's."""
        self.redis = client
        self.broker = broker
        self.node = SimnodeProcess(folder, NODE, ("A100-80GB:2",)).start()
        self.agent = AgentProcess(self.node.url, broker, folder, period_s, *more).start()
        self._version = 0

    def want(self, *instances: wire.DesiredInstance, clock: wire.ClockPolicy | None = None) -> None:
        self._version += 1
        message = wire.DesiredNode(NODE, self._version, time.time(), list(instances), clock or OFTEN)
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
        entries: Any = self.redis.xrange(wire.batch_stream(NODE))
        return [wire.decode(fields[b"b"], wire.AgentBatch) for _, fields in entries]

    def nudge(self, decision_id: int) -> None:
        own = {"global_keyprefix": wire.celery_prefix(NODE)}
        with Celery(broker=self.broker, set_as_current=False) as sender:
            sender.conf.broker_transport_options = own
            sender.send_task(
                "pools.agent.tasks.reconcile", kwargs={"decision_id": decision_id}, queue=wire.node_queue(NODE)
            )

    def begin_anew(self) -> None:
        """As if just started: no engines, and no batches of what was before."""
        self.want()
        self.wait(lambda: self.node.get("/instances") == [], "empty node")
        for _ in range(2):  # the first may be of a tick that was under way
            self.redis.delete(wire.batch_stream(NODE))
            self.wait(self.batches, "batches of an empty node")

    def close(self) -> None:
        self.agent.end(signal.SIGKILL)
        self.node.kill()


def complete(url: str, stream: bool, tokens: int = 20) -> bytes:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=20) as response:
        return bytes(response.read())


def redis_server() -> str:
    return str(embedded.redis_binary())
