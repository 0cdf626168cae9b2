"""A Redis master, its replica and sentinels that watch them, for the length of a block."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis

from greenserve.process import leash
from greenserve.servers import embedded
from tests.ports import free_port

SERVICE = "main"
PASSWORD = "of-servers"
DOWN_AFTER_MS = 500
STARTED_WITHIN_S = 20.0


@dataclass
class Watched:
    """`url`: as REDIS_URL has it. `servers`: by port."""

    url: str
    sentinel_ports: list[int]
    servers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def master(self) -> int:
        """Returns the port of the master, as a sentinel says."""
        with redis.Redis(port=self.sentinel_ports[0], socket_timeout=5) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])

    def kill_master(self) -> int:
        """Kills the master with SIGKILL, and returns its port."""
        port = self.master()
        self.servers[port].send_signal(signal.SIGKILL)
        self.servers[port].wait()
        return port


@contextlib.contextmanager
def watched(folder: Path, sentinels: int = 3) -> Iterator[Watched]:
    """Yields once the sentinels know each other and the replica. Data are lost with the block."""
    ports, watching = [free_port(), free_port()], [free_port() for _ in range(sentinels)]
    hosts = ",".join(f"127.0.0.1:{port}" for port in watching)
    found = Watched(f"sentinel://:{PASSWORD}@{hosts}/{SERVICE}?db=0", watching)
    with contextlib.ExitStack() as stack:
        for port in ports:
            words = ["--port", str(port), "--requirepass", PASSWORD, "--masterauth", PASSWORD, "--save", ""]
            words += ["--repl-diskless-sync-delay", "0", "--maxmemory-policy", "noeviction"]
            if port != ports[0]:
                words += ["--replicaof", "127.0.0.1", str(ports[0])]
            found.servers[port] = _run(stack, folder / str(port), words)
        quorum = sentinels // 2 + 1
        for port in watching:
            home = folder / str(port)
            home.mkdir(parents=True)
            (home / "sentinel.conf").write_text(
                f"port {port}\nsentinel monitor {SERVICE} 127.0.0.1 {ports[0]} {quorum}\n"
                f"sentinel auth-pass {SERVICE} {PASSWORD}\n"
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {SERVICE} 5000\n"
            )
            _run(stack, home, [str(home / "sentinel.conf"), "--sentinel"])
        _wait(found, sentinels)
        yield found


def _run(stack: contextlib.ExitStack, home: Path, words: list[str]) -> subprocess.Popen[bytes]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [str(embedded.redis_binary()), *words], cwd=home, stdout=log, stderr=log, preexec_fn=leash()
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _wait(found: Watched, sentinels: int) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    for port in found.sentinel_ports:
        with redis.Redis(port=port, socket_timeout=5) as client:
            while True:
                with contextlib.suppress(redis.RedisError):
                    state = client.sentinel_master(SERVICE)
                    if state["num-slaves"] == 1 and state["num-other-sentinels"] == sentinels - 1:
                        break
                if time.monotonic() > deadline:
                    raise AssertionError(f"sentinels do not know each other within {STARTED_WITHIN_S:g} s")
                time.sleep(0.05)
