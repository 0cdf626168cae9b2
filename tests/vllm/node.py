"""A node with real engines as it runs: the agent's process and a gateway's, over Redis; and clients that never stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from core.engine.engine_launch import EngineLaunch
from pools import wire
from pools.agent.vllm.engine_access import EngineTls
from pools.agent.vllm.engine_processes import EngineProcess
from pools.agent.vllm.engine_records import EngineRecord, Records
from tests.fakes.certificates import Authority
from tests.fakes.fleet import SECRET, key
from tests.fakes.simnode import ROOT, eventually
from tests.servers import redis_words

from .engine_client import EngineClient
from .server import DTYPE, ENVIRONMENT, VLLM

NODE = "vllm-test"
SERVICE = "tiny"
CARD = "Llama3-8B"  # a name that the engine model knows; the weights are the tiny model's
LONGEST_TOKENS = 2048
READY_S = 600.0  # an engine starts within 30 s on two idle cores; seen: 360 s with a load of 17
PATIENCE_S = 180.0  # with a machine that stalls: all that takes seconds where nothing else runs
ENGINE_ARGUMENTS = ("--enforce-eager", "--kv-cache-memory-bytes", str(64 << 20))
ENGINE_ENVIRONMENT = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_SERVER_DEV_MODE"}


def agent_arguments(folder: Path, tls: EngineTls) -> list[str]:
    words = ["--gpus", "cpu", "--devices", "A100-80GB:2", "--power", "20:65"]
    words += ["--vllm", str(VLLM), "--engines", str(folder), "--vllm-offline", "--engine-ports", "18500-18599"]
    words += [
        "--tls-certificate",
        str(tls.certificate),
        "--tls-key",
        str(tls.key),
        "--tls-authority",
        str(tls.authority),
    ]
    words += [f"--vllm-argument={word}" for word in ENGINE_ARGUMENTS]
    return words + [f"--vllm-env={name}={value}" for name, value in ENGINE_ENVIRONMENT.items()]


class Process:
    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", *self._command], cwd=ROOT, stdout=log, stderr=log)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None


class Bench:
    """One node of two devices, and one service on it."""

    def __init__(self, folder: Path, model: Path, client: redis.Redis, redis_url: str, broker_url: str) -> None:
        self.redis, self.engines = client, folder / "engines"
        self._model = model
        self._authority = Authority(folder)
        self.tls = self.renew()
        celery = ["celery", "-A", "pools.agent.app", "-b", broker_url, "worker", "-P", "solo", "--loglevel", "INFO"]
        celery += ["-Q", wire.node_queue(NODE), "-n", f"node.{NODE}@%h"]
        celery += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--node", NODE]
        self.agent = Process([*celery, *agent_arguments(self.engines, self.tls)], folder / "agent.log")
        gateway = ["pools.gateway", "--host", "127.0.0.1", "--port", "0", *redis_words(folder, redis_url)]
        gateway += ["--spool", str(folder / "spool"), "--engine-authority", str(self.tls.authority)]
        self.gateway = Process(gateway, folder / "gateway.log")
        self._version = 0
        self.port = 0

    def start(self) -> None:
        self.want()
        self._publish()
        self.agent.start()
        self.gateway.start()
        self.wait(lambda: "listening on" in self.gateway.log(), "gateway", PATIENCE_S)
        line = next(line for line in self.gateway.log().splitlines() if "listening on" in line)
        self.port = int(line.rsplit(":", 1)[1].split("/")[0])

    def close(self) -> None:
        self.want()
        try:
            if self.agent.process is not None:
                eventually(lambda: not self.records(), PATIENCE_S, "end of the engines")
        finally:
            self.gateway.end()
            self.agent.end()
            for record in self.records().values():
                EngineProcess(record.pid, record.began_ticks).kill()

    def renew(self) -> EngineTls:
        """Gives the node a certificate, in the place of the one before."""
        return self._authority.node("127.0.0.1")

    # -- what is wanted, and what is ---------------------------------------------------------------

    def instance(self, uid: str, device: int, state: str = "running", shadow_of: str = "") -> wire.DesiredInstance:
        return wire.DesiredInstance(
            uid=uid,
            pool_id=1,
            model=CARD,
            engine="vllm-v1",
            gpu_uuids=[f"CPU-{NODE}-{device}"],
            max_model_len=LONGEST_TOKENS,
            state=state,
            limits=wire.LatencyLimits(),
            shadow_of=shadow_of,
            launch=EngineLaunch(str(self._model), DTYPE),
        )

    def want(self, *instances: wire.DesiredInstance) -> None:
        self._version += 1
        message = wire.DesiredNode(NODE, self._version, time.time(), list(instances), wire.ClockPolicy())
        self.redis.set(wire.desired_key(NODE), wire.encode(message))

    def state(self) -> wire.AgentState | None:
        data: Any = self.redis.get(wire.agent_key(NODE))
        return wire.decode(data, wire.AgentState) if data else None

    def seen(self, uid: str, *states: str) -> wire.InstanceState | None:
        found = self.state()
        return next((i for i in found.instances if i.uid == uid and i.state in states), None) if found else None

    def wait_until(self, uid: str, *states: str) -> wire.InstanceState:
        return self.wait(lambda: self.seen(uid, *states), f"{uid} {states}", READY_S)  # type: ignore[no-any-return]

    def gone(self, uid: str) -> None:
        self.wait(lambda: (s := self.state()) and all(i.uid != uid for i in s.instances), f"end of {uid}", PATIENCE_S)

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float) -> Any:
        try:
            return eventually(condition, timeout_s, what)
        except AssertionError:
            logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in self.engines.glob("logs/*.log"))
            raise AssertionError(
                f"no {what}; {self.state()}\n{self.agent.log()[-3000:]}\n{self.gateway.log()[-2000:]}\n{logs}"
            ) from None

    def records(self) -> dict[str, EngineRecord]:
        return {record.spec.uid: record for record in Records(self.engines / "engines").all()}

    def client(self, uid: str) -> EngineClient:
        return EngineClient(self.records()[uid], self.tls.authority)

    def batches(self) -> list[wire.AgentBatch]:
        entries: Any = self.redis.xrange(wire.batch_stream(NODE))
        return [wire.decode(fields[b"b"], wire.AgentBatch) for _, fields in entries]

    def samples(self) -> list[wire.GpuSampleRow]:
        return [row for batch in self.batches() for row in batch.gpus.unpack()]

    def was(self, uid: str, state: str) -> wire.InstanceSampleRow:
        """The first sample of the instance in that state: what lasts a second only may be missed by looking."""

        def first() -> wire.InstanceSampleRow | None:
            rows = (row for batch in self.batches() for row in batch.instances)
            return next((row for row in rows if (row.instance_uid, row.state) == (uid, state)), None)

        return self.wait(first, f"{uid} {state}", PATIENCE_S)  # type: ignore[no-any-return]

    def _publish(self) -> None:
        cell = wire.FleetClass("all", 0, 0, None, 0, None)
        pool = wire.FleetPool(1, "here", "all", 1.2, 300.0)
        service = wire.FleetService(
            SERVICE, CARD, "vllm-v1", LONGEST_TOKENS, wire.LatencyLimits(30.0, 5.0, 300.0), "one", [cell], [pool]
        )
        fleet = wire.Fleet(1, time.time(), [service], [key(SECRET, 1)], [NODE])
        self.redis.set(wire.FLEET_KEY, wire.encode(fleet))

    # -- requests ----------------------------------------------------------------------------------

    def answers(self) -> bool:
        """Whether a completion comes through the gateway, which may not have heard of the engine yet."""
        try:
            return self.complete()[0] == 200
        except OSError:
            return False

    def complete(self, tokens: int = 16) -> tuple[int, str]:
        """Status and text of a completion through the gateway."""
        body = {"model": SERVICE, "prompt": [7] * 30, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
        return self._call("POST", "/v1/completions", body)

    def _call(self, method: str, path: str, body: object) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


class Clients:
    """So many clients, each sends its next request when the last one has ended."""

    def __init__(self, bench: Bench, count: int = 3, tokens: int = 24) -> None:
        self._bench, self._tokens = bench, tokens
        self._ending = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(120)

    def _ask(self) -> None:
        while not self._ending.is_set():
            try:
                status, text = self._bench.complete(self._tokens)
                right = status == 200 and json.loads(text)["usage"]["completion_tokens"] == self._tokens
            except (OSError, ValueError, http.client.HTTPException) as error:
                right, status, text = False, 0, repr(error)
            with self._lock:
                self.answered += right
                if not right:
                    self.failures.append(f"{status}: {text[:300]}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
