"""The product and a node as people install them: from wheels, in empty environments, with no repository near."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from pools import redis_address, wire
from pools.release import DISTRIBUTION, NODE_DISTRIBUTION
from tests import servers, wheels
from tests.e2e.product import ROOT, wait_for
from tests.fakes.simnode import SimnodeProcess
from tests.ports import free_port

pytestmark = pytest.mark.slow("installs some hundred packages from the package index")

CONTROL_PLANE = ("django", "psycopg", "plotly", "pulp", "transformers")  # what a node does without


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an account of its own with nothing in it."""

    folder: Path
    wheel: Path

    @classmethod
    def made(cls, folder: Path, wheel: Path) -> Environment:
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
        for name in ("home", "empty"):
            (folder / name).mkdir()
        return cls(folder, wheel)

    @property
    def data(self) -> Path:
        """Where an installed product keeps its data if nothing else is said."""
        return self.folder / "home" / ".local" / "share" / "greenserve"

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a program of the environment in an empty folder, with what its output goes to."""
        kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k in {"LANG", "PATH", "SSL_CERT_FILE"}}
        own = {"HOME": str(self.folder / "home"), "GREENSERVE_DEMO_DAYS": "0", "COLUMNS": "120"}
        return subprocess.Popen(
            [str(self.folder / "venv" / "bin" / command[0]), *command[1:]],
            cwd=self.folder / "empty",
            env=kept | own | variables,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *command: str, status: int | None = 0, timeout_s: float = 60.0, **variables: str) -> str:
        """Runs a program to its end; returns what it printed. It is to end with `status`; None: with any but 0."""
        with self.start(*command, **variables) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            finally:
                process.kill()
        assert process.returncode == status if status is not None else process.returncode, output
        return " ".join(output.split())

    def pip(self, *words: str) -> str:
        """Runs pip with the settings of who runs this test."""
        done = subprocess.run(
            [str(self.folder / "venv" / "bin" / "pip"), *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=300.0,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self) -> None:
        """Installs the wheel by uv, in a tenth of pip's time, from where pip's settings say."""
        python = self.folder / "venv" / "bin" / "python"
        uv = (str(Path(sys.executable).with_name("uv")), "install", "--quiet", "--python", str(python))
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "uv_pip.py"), *uv, str(self.wheel)],
            input=self.pip("config", "list"),
            check=False,
            capture_output=True,
            text=True,
            timeout=900.0,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def has(self, module: str) -> bool:
        found = self.run("python", "-c", f"import importlib.util as u; print(u.find_spec({module!r}) is not None)")
        return found == "True"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return wheels.build(tmp_path_factory.mktemp("wheels"))


def fetched(url: str, body: object = None, key: str = "") -> bytes:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        found: bytes = answer.read()
    return found


def serves(url: str) -> bool:
    try:
        return fetched(url) is not None
    except OSError:
        return False


def test_product_runs_from_its_wheel_in_any_folder(built: dict[str, Path], tmp_path: Path) -> None:
    installed = Environment.made(tmp_path, built[DISTRIBUTION])
    installed.install()
    # A folder of another program, with packages of our names, is no worse a place to start it in.
    for name in ("core", "pools"):
        (tmp_path / "empty" / name).mkdir()
        (tmp_path / "empty" / name / "__init__.py").write_text("raise ImportError('of another program')\n")
    left = sorted(path.name for path in (tmp_path / "empty").rglob("*"))
    ports = {"GREENSERVE_WEB_PORT": str(free_port()), "GREENSERVE_GATEWAY_PORT": str(free_port())}
    assert "starts the demo" in installed.run("greenserve", "--help")
    assert "FAIL" not in installed.run("greenserve", "doctor", **ports)
    try:
        installed.run("greenserve", "up", "--detach", timeout_s=300.0, **ports)
        credentials = json.loads((installed.data / "demo-credentials.json").read_text())
        web, gateway = (f"http://127.0.0.1:{port}" for port in ports.values())
        wait_for("the gateway's /ready", lambda: serves(f"{gateway}/ready"), timeout_s=120.0)
        body = {"model": "llama3-70b", "prompt": "Wind and sun", "max_tokens": 8}
        key = next(iter(credentials["api_keys"].values()))
        answer = json.loads(fetched(f"{gateway}/v1/completions", body, key))
        assert answer["usage"]["completion_tokens"] == 8
        page = fetched(f"{web}/sign-in/").decode()
        assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
        assert any(name.endswith(".css") for name in assets)
        assert any(name.endswith(".js") for name in assets)
        assert all(fetched(web + name) for name in assets)
        assert "running" in installed.run("greenserve", "status", **ports)
        assert "admin" in installed.run("greenserve", "user", "list", **ports)
        assert "no issues" in installed.run("python", "-P", "-m", "greenserve.manage", "check", **ports)
    finally:
        installed.run("greenserve", "down", **ports)
        servers.remove(installed.data)
    assert sorted(path.name for path in (tmp_path / "empty").rglob("*")) == left
    scenarios = "from core.simulator import shipped_scenarios as s; print(*(p.name for p in s.folder().iterdir()))"
    assert "freesh-miad.yaml" in installed.run("python", "-P", "-c", scenarios)


@pytest.fixture(scope="module")
def node(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    installed = Environment.made(tmp_path_factory.mktemp("node"), built[NODE_DISTRIBUTION])
    installed.install()
    return installed


def test_node_is_installed_without_the_control_plane(node: Environment) -> None:
    assert not [name for name in CONTROL_PLANE if node.has(name)]
    assert node.run("greenserve", "version").startswith("greenserve-node ")
    assert "FAIL" not in node.run("greenserve", "doctor")
    assert "libnvidia-ml.so" in node.run("greenserve", "node", "inventory", status=None)
    for command in (("node", "token"), ("up",), ("user", "list")):
        said = node.run("greenserve", *command, status=None)
        assert "greenserve-node is installed here" in said
        assert "Traceback" not in said


def test_actuator_of_a_node_starts(node: Environment) -> None:
    assert "--allow-uid" in node.run("python", "-m", "pools.actuator", "--help")
    socket, state = node.folder / "actuator.sock", node.folder / "locks"
    process = node.start("python", "-m", "pools.actuator", "--socket", str(socket), "--state", str(state))
    with ended(process, signal.SIGTERM):
        wait_for("the actuator's socket", socket.exists, timeout_s=60.0, every_s=0.05)


def test_agent_of_a_node_reports(node: Environment, tmp_path: Path) -> None:
    with servers.redis_running(tmp_path / "var") as url, redis.Redis.from_url(url) as client:
        celery = ("python", "-m", "celery", "-A", "pools.agent.app", "worker", "-P", "solo")
        where = ("-Q", "node.box", "-n", "node.box@%h", "--without-gossip", "--without-mingle", "--node", "box")
        process = node.start(*celery, *where, "--gpus", "cpu", BROKER_URL=redis_address.broker_url(url))
        with ended(process, signal.SIGTERM):
            wait_for(
                "the agent's report, or its end",
                lambda: client.exists(wire.agent_key("box")) or process.poll() is not None,
                timeout_s=90.0,
            )


def test_profiler_of_a_node_measures(node: Environment, tmp_path: Path) -> None:
    simulated = SimnodeProcess(tmp_path, "profiled", ("A100-80GB:1",)).start()
    effort = ("--batches", "4", "--mhz", "1410", "--repeats", "1", "--window", "1", "--no-loads", "--minutes", "0.2")
    command = ("node", "profile", "--model", "Llama3-8B", "--control", simulated.url, "--out", str(tmp_path / "p.csv"))
    try:
        said = node.run("greenserve", *command, *effort, timeout_s=300.0)
    finally:
        simulated.stop()
    assert "has no Plotly" in said
    assert (tmp_path / "p.csv").read_text().count("\n") > 1
    assert not (tmp_path / "p.html").exists()


@contextmanager
def ended(process: subprocess.Popen[str], number: signal.Signals) -> Iterator[None]:
    """Ends a process after the block; it is to have been running, and to end well."""
    try:
        yield
        assert process.poll() is None, process.communicate()[0]
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
    finally:
        process.kill()


def test_node_beside_vllm_changes_none_of_its_packages(built: dict[str, Path], tmp_path: Path) -> None:
    """pip goes by what is installed: each package that a release of vLLM pins, by its metadata alone."""
    beside = Environment.made(tmp_path, built[NODE_DISTRIBUTION])
    pins = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements-vllm-cpu.txt").read_text(), re.MULTILINE)
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    for name, version in pins:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").touch()
    beside.pip("install", "--quiet", "--dry-run", "--report", str(tmp_path / "report.json"), str(beside.wheel))
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    installs = {canonical(entry["metadata"]["name"]) for entry in report["install"]}
    assert {"celery", "redis", NODE_DISTRIBUTION} <= installs
    assert len(pins) > 100
    assert not installs & {canonical(name) for name, _ in pins}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
