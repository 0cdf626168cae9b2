"""The machine's side of joining the fleet: its offer, the answer, what it keeps, and the services that run then."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from core.ports import AdapterError, PermanentError, RetryableError
from pools.actuator.actuator_protocol import DEFAULT_SOCKET, DEFAULT_STATE

from .devices.driver_meter import Inventory
from .join_messages import GpuOffer, Joined, NodeOffer
from .redis_link import redis_url

TIMEOUT_S = 15.0
PATH = "/api/v1/nodes/join/"


def offer(token: str, name: str, inventory: Inventory) -> NodeOffer:
    gpus = []
    for gpu in inventory.gpus:
        clocks = gpu.clocks_mhz or (0.0,)
        gpus.append(
            GpuOffer(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                gpu_type=gpu.gpu_type,
                memory_bytes=gpu.memory_bytes,
                min_mhz=clocks[0],
                max_mhz=clocks[-1],
                tdp_w=gpu.tdp_w,
                nvlinks=gpu.nvlinks,
                mig_slices=gpu.mig_slices,
                sheet=None if gpu.sheet is None else replace(gpu.sheet, source=f"as the driver says, node {name}"),
                lacking=list(gpu.lacking),
            )
        )
    return NodeOffer(token, name, inventory.driver, gpus)


def send(url: str, made: NodeOffer) -> Joined:
    """Joins through the dashboard at `url`. Raises AdapterError with what the control plane says."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise PermanentError(f"'{url}' is no address; write it as https://HOST or http://HOST:PORT")
    address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{PATH}"
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(address, msgspec.json.encode(made), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(), type=Joined)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(address, error.code, error.read(65536)) from error
    except (OSError, msgspec.DecodeError) as error:
        raise RetryableError(f"{address}: {getattr(error, 'reason', error)}") from error


def _refused(address: str, status: int, body: bytes) -> AdapterError:
    words = body[:300].decode(errors="replace")
    try:
        problem = msgspec.json.decode(body, type=_Problem)
        fields = [f"{item.get('field', '')}: {item.get('detail', '')}".strip(": ") for item in problem.errors]
        words = "; ".join(fields) or problem.detail or words
    except msgspec.DecodeError:
        pass  # not from GreenServe: shown as it came
    message = f"{address} answered {status}: {words}"
    return RetryableError(message) if status >= 500 or status == 429 else PermanentError(message)


class _Problem(msgspec.Struct):
    detail: str = ""
    errors: list[dict[str, str]] = []


def unreachable(broker_url: str) -> str:
    """Returns why this machine cannot hear the control plane's Redis, and what to do; empty: it can be connected to."""
    parts = urlsplit(redis_url(broker_url))
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT_S)
                connection.connect(parts.path)
        else:
            socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=TIMEOUT_S).close()
    except OSError as error:
        where = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        return (
            f"the control plane's Redis ({where}) cannot be reached from here ({error}); run GreenServe with REDIS_URL "
            "set to a Redis that its nodes reach, and start this node's agent then"
        )
    return ""


def keep(folder: Path, joined: Joined) -> Path:
    """Writes the agent's environment where its owner alone can read it: the broker's URL may hold a password."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"node-{joined.node}.env"
    draft = path.with_suffix(".tmp")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"BROKER_URL={joined.broker_url}\nOMP_NUM_THREADS=1\nPYTHONUNBUFFERED=1\n")
    os.replace(draft, path)
    return path


GPU_NODE = ("--gpus", "nvml", "--actuator", str(DEFAULT_SOCKET))
# What a vLLM for processors needs to start beside others: no cores of its own, no compiling, a KV cache of 256 MiB.
CPU_ENGINES = (
    *(f"--vllm-env={name}" for name in ("VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1")),
    "--vllm-env=VLLM_HOST_IP=127.0.0.1",
    *(f"--vllm-argument={word}" for word in ("--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20))),
)


def agent_command(node: str, more: Sequence[str] = GPU_NODE) -> tuple[str, ...]:
    """Celery takes the broker from BROKER_URL: a command line can be read by all. `more`: what the node is."""
    celery = (sys.executable, "-m", "celery", "-A", "pools.agent.app", "worker", "-P", "solo")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
    return (*celery, "-Q", f"node.{node}", "-n", f"node.{node}@%h", *quiet, "--node", node, *more)


def agent_unit(node: str, user: str, environment: Path, code: Path, more: Sequence[str] = GPU_NODE) -> str:
    """Returns the agent's systemd unit, without privileges and with restarts. Its engines outlive it (KillMode)."""
    return f"""[Unit]
Description=GreenServe agent of node {node}
After=network-online.target greenserve-actuator.service
Wants=network-online.target greenserve-actuator.service

[Service]
User={user}
WorkingDirectory={code}
EnvironmentFile={environment.resolve()}
ExecStart={_quoted(agent_command(node, more))}
KillMode=process
Restart=always
RestartSec=2
TimeoutStopSec=30
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


def actuator_unit(uid: int, code: Path) -> str:
    """The clock actuator's: root, with one capability, no network, and a file system that it can only read."""
    command = (sys.executable, "-m", "pools.actuator", "--allow-uid", str(uid))
    places = ("--socket", str(DEFAULT_SOCKET), "--state", str(DEFAULT_STATE))
    return f"""[Unit]
Description=GreenServe clock actuator
StartLimitIntervalSec=0

[Service]
WorkingDirectory={code}
ExecStart={_quoted((*command, *places))}
Restart=always
RestartSec=1
TimeoutStopSec=15
RuntimeDirectory={DEFAULT_SOCKET.parent.name}
RuntimeDirectoryPreserve=yes
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_DAC_READ_SEARCH
NoNewPrivileges=yes
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
MemoryMax=256M

[Install]
WantedBy=multi-user.target
"""


def _quoted(command: tuple[str, ...]) -> str:
    return shlex.join(command).replace("%", "%%")
