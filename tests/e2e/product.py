"""Starts the whole product as a user would, in a folder and on ports of its own, and stops it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from greenserve.servers import embedded
from tests import servers
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
GREENSERVE = Path(sys.executable).with_name("greenserve")
T = TypeVar("T")
BACK_WITHIN_S = 10.0  # a process that was killed


def wait_for(what: str, probe: Callable[[], T], timeout_s: float, every_s: float = 0.5) -> T:
    """Calls `probe` until it returns something true; a failure says what was waited for and what came last."""
    deadline = time.monotonic() + timeout_s
    while True:
        last = probe()
        if last:
            return last
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s; last seen: {last!r}")
        time.sleep(every_s)


@dataclass
class Product:
    var_dir: Path
    traffic_rps: float = 3.0
    days: int = 0  # of synthetic history
    web_port: int = field(default_factory=free_port)
    gateway_port: int = field(default_factory=free_port)

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in {"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE"}}
        return kept | {
            "GREENSERVE_VAR": str(self.var_dir),
            "GREENSERVE_WEB_PORT": str(self.web_port),
            "GREENSERVE_GATEWAY_PORT": str(self.gateway_port),
            "GREENSERVE_DEMO_RPS": str(self.traffic_rps),
            "GREENSERVE_DEMO_DAYS": str(self.days),
        }

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def credentials(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.var_dir / "demo-credentials.json").read_text())
        return found

    def cli(self, *arguments: str, timeout_s: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(GREENSERVE), *arguments],
            env=self.env,
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            said = done.stdout + done.stderr
            raise AssertionError(f"greenserve {' '.join(arguments)} ended {done.returncode}:\n{said}")
        return done

    def up(self) -> None:
        self.cli("up", "--detach", timeout_s=180)

    def down(self) -> None:
        """Stops it and removes its databases, which as root lie outside `var_dir`."""
        self.cli("down", timeout_s=60, check=False)
        servers.remove(self.var_dir)

    def processes(self) -> dict[str, dict[str, Any]]:
        table = json.loads((self.var_dir / "run" / "processes.json").read_text())
        return {row["name"]: row for row in table["processes"]}

    def supervisor_pid(self) -> int:
        return int(json.loads(self.cli("status", "--json").stdout)["supervisor_pid"])

    def status_of(self, url: str) -> int | None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def wait_until_serving(self, timeout_s: float = 120) -> None:
        wait_for("the gateway's /ready", lambda: self.status_of(f"{self.gateway}/ready") == 200, timeout_s=timeout_s)

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Runs a query in the product's own database."""
        with psycopg.connect(embedded.owner_url(self.var_dir), connect_timeout=5) as connection:
            return connection.execute(statement, parameters or None).fetchall()  # type: ignore[arg-type]


@contextmanager
def running(var_dir: Path, traffic_rps: float) -> Iterator[Product]:
    """A product that serves, and is taken down again."""
    product = Product(var_dir, traffic_rps=traffic_rps)
    try:
        product.up()
        product.wait_until_serving()
        yield product
    finally:
        product.down()


def alive(pid: int) -> bool:
    """Whether a process with this pid runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
