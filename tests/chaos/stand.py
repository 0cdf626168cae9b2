"""The running demo of a part: its processes, stores, clocks and ledger, and what a fault's steps do to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from greenserve.servers import embedded
from greenserve.servers.server_folders import folders_of
from tests.chaos import machine
from tests.e2e.product import Product, alive, wait_for

MODEL = "llama3-70b"
WORKER_TOKEN = "a-worker-token-of-the-chaos-run"


@dataclass
class ChaosProduct(Product):
    """The product with settings of its own."""

    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return super().env | self.more


@dataclass
class Stand:
    """What steps work on.

    `kept` is theirs, from `begin` to `end`; `unheld` names nodes whose clocks nobody holds; `spoiled`: a promise did
    not hold, or nobody knows whether it did.
    """

    product: ChaosProduct
    kept: dict[str, Any] = field(default_factory=dict)
    unheld: list[str] = field(default_factory=list)
    spoiled: bool = False

    # -- processes ---------------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        found = self.product.processes()[name]["pid"]
        assert found, f"{name} does not run"
        return int(found)

    def names(self, *prefixes: str) -> list[str]:
        return [name for name in self.product.processes() if name.startswith(prefixes)]

    def kill(self, *names: str) -> None:
        for pid in [self.pid(name) for name in names]:
            os.kill(pid, signal.SIGKILL)

    def freeze(self, *names: str) -> None:
        """Stops processes and all that they started, until `thaw`."""
        for pid in [pid for name in names for pid in tree(self.pid(name))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.kept.setdefault("frozen", []).append(pid)

    def thaw(self) -> None:
        for pid in self.kept.pop("frozen", []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def pids(self, *names: str) -> list[int]:
        return [pid for name in names for pid in tree(self.pid(name))]

    def whole(self) -> bool:
        """Whether all processes run, and gateway and dashboard answer that they serve."""
        rows = self.product.processes().values()
        running = all(row["state"] == "running" and row["pid"] and alive(row["pid"]) for row in rows)
        pages = (f"{self.product.gateway}/ready", f"{self.product.web}/sign-in/")
        return running and all(self.product.status_of(page) == 200 for page in pages)

    # -- nodes -------------------------------------------------------------------------------------

    def node_port(self, node: str) -> int:
        return int(json.loads((self.product.var_dir / "run" / "simnodes.json").read_text())[node])

    def ask_node(self, node: str, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.node_port(node)}{path}", timeout=3) as answer:
            return json.load(answer)

    def nodes(self) -> list[str]:
        return list(json.loads((self.product.var_dir / "run" / "simnodes.json").read_text()))

    def serving(self) -> list[str]:
        """Returns the nodes that have an instance which is ready."""
        return [n for n in self.nodes() if any(i["state"] == "ready" for i in self.ask_node(n, "/instances"))]

    def held(self, node: str) -> int:
        """Returns how many GPUs of a node are below their default clock, which is the top."""
        return sum(gpu["sm_clock_mhz"] < gpu["max_mhz"] for gpu in self.ask_node(node, "/gpus"))

    # -- stores ------------------------------------------------------------------------------------

    @contextmanager
    def redis(self) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(embedded.redis_url(self.product.var_dir), socket_timeout=5) as client:
            yield client

    def execute(self, statement: str) -> None:
        """Runs a statement in the product's database, outside any transaction."""
        url = embedded.owner_url(self.product.var_dir)
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.product.sql(statement, *parameters)


def folder_of(var_dir: Path, name: str) -> Path:
    """Returns a folder of the product's data; PostgreSQL's, which as root's lies elsewhere, is `postgres`."""
    return folders_of(var_dir).postgres_home if name == "postgres" else var_dir / name


def tree(pid: int) -> list[int]:
    """Returns a process and all below it, itself first: what is stopped starts no more."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


class ClockWatch:
    """Looks ten times a second how many GPUs of some nodes are below their default clock."""

    def __init__(self, stand: Stand, nodes: list[str]) -> None:
        self._stand, self._nodes = stand, nodes
        self._began_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.default_after_s: float | None = None  # None: not yet
        self._thread.start()

    def _look(self) -> None:
        while self.default_after_s is None and not self._stop.is_set():
            with contextlib.suppress(OSError):
                if not any(self._stand.held(node) for node in self._nodes):
                    self.default_after_s = time.monotonic() - self._began_s
                    return
            self._stop.wait(0.1)

    def end(self) -> float | None:
        """Returns after how many seconds all were at the default; None: they were not."""
        self._stop.set()
        self._thread.join(10)
        return self.default_after_s


@contextmanager
def running(var_dir: Path, disks: dict[str, int] | None = None) -> Iterator[Stand]:
    """The demo without its own traffic; `disks` are small ones by `folder_of`, in MiB."""
    var_dir.mkdir(parents=True, exist_ok=True)
    more = {"GREENSERVE_GATEWAY_PROCESSES": "2", "GREENSERVE_WORKER_TOKEN": WORKER_TOKEN}
    small = {folder_of(var_dir, name): mib for name, mib in (disks or {}).items()}
    for folder, mib in small.items():
        machine.small_disk(folder, mib)
    product = ChaosProduct(var_dir, traffic_rps=0, more=more)
    stand = Stand(product)
    try:
        product.up()
        product.wait_until_serving(180)
        wait_for("all processes", stand.whole, timeout_s=120)
        yield stand
    finally:
        stand.thaw()
        machine.turn_clock(0)
        machine.mend()
        product.down()
        for folder in small:
            machine.take_away(folder)
