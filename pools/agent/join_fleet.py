"""The machine's side of joining the fleet: its offer, the answer, what it keeps, and the services that run then."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from core.ports import AdapterError, PermanentError
from pools import own_address, redis_address, release
from pools.actuator.actuator_protocol import DEFAULT_SOCKET
from pools.engine_trust import names_of

from . import join_faults, join_request, join_trust
from .devices.driver_meter import Inventory
from .join_messages import GpuOffer, Joined, NodeOffer
from .node_identity import NodeIdentity
from .redis_link import redis_url
from .vllm.vllm_options import DEFAULT_PORTS, engine_addresses

TIMEOUT_S = 15.0
PATH = "/api/v1/nodes/join/"


def offer(token: str, name: str, inventory: Inventory, request: str = "") -> NodeOffer:
    """Returns what the machine offers. `request`: for its certificate (`NodeIdentity.request`)."""
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
    return NodeOffer(token, name, inventory.driver, gpus, release.version(), request)


def send(url: str, made: NodeOffer, timeout_s: float = TIMEOUT_S, *, plain_http: bool = False) -> Joined:
    """Joins through the dashboard at `url`. Raises AdapterError with why it did not come about, and the remedy.

    `plain_http`: also where others could read the token and the answer.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise PermanentError(f"'{url}' is no address; write it as https://HOST or http://HOST:PORT")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    secret, fingerprint = join_trust.parts_of(made.token)
    trusted = join_trust.context_for(base, fingerprint, timeout_s, plain_http=plain_http)
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    offered = msgspec.json.encode(msgspec.structs.replace(made, token=secret))
    request = urllib.request.Request(base + PATH, offered, headers, method="POST")
    body, date = join_request.ask(request, trusted, timeout_s)
    try:
        joined = msgspec.json.decode(body, type=Joined)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(join_faults.not_understood(base + PATH, body)) from error
    apart = join_faults.clocks_apart(date, datetime.now(UTC))
    return msgspec.structs.replace(joined, notes=[*joined.notes, *((apart,) if apart else ())])


def unreachable(broker_url: str) -> str:
    """Returns why this machine cannot hear the control plane's Redis, and what to do; empty: it can be connected to."""
    url = redis_url(broker_url)
    hosts = redis_address.hosts(url)
    where = ", ".join(f"{own_address.in_url(host)}:{port}" for host, port in hosts) or urlsplit(url).path
    try:
        if not hosts:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT_S)
                connection.connect(where)
        else:
            _any_of(hosts)
    except OSError as error:
        return (
            f"the control plane's Redis ({where}) cannot be reached from here ({error}); run GreenServe with "
            "GREENSERVE_RELAY_PORT, or with REDIS_URL set to a Redis that its nodes reach, and join again then"
        )
    return ""


def _any_of(hosts: Sequence[tuple[str, int]]) -> None:
    """Connects to one of them. Raises the last one's OSError: to none."""
    for number, address in enumerate(hosts, 1):
        try:
            socket.create_connection(address, timeout=TIMEOUT_S).close()
            return
        except OSError:
            if number == len(hosts):
                raise


def engine_notice(joined: Joined, host: str | None, address: str | None) -> str:
    """Says where engines of this machine will listen. `host`, `address`: as given; None: not."""
    try:
        listens, reached = engine_addresses(redis_url(joined.broker_url), host, address)
    except AdapterError as error:
        return f"Where engines are to listen is not known yet: {error}."
    names = names_of(x509.load_pem_x509_certificate(joined.certificate.encode()))
    if reached not in names:
        return (
            f"Engines are not started: gateways would reach them at {reached}, and the certificate is of "
            f"{', '.join(names)} alone, since another node has that name or the machine did not know it. Join again "
            "with --engine-address."
        )
    if own_address.is_loopback(reached):
        return (
            f"Engines listen at {listens}, which gateways of this machine alone reach: the control plane's Redis is on "
            "it. For others give --engine-host."
        )
    return (
        f"Engines listen at {listens}, and gateways reach them at {reached}, by TLS with the node's certificate. Let "
        f"gateways alone to their ports ({DEFAULT_PORTS})."
    )


def engine_trust(identity: NodeIdentity) -> tuple[str, ...]:
    """Returns the agent's options with which engines show the node's certificate."""
    files = {"certificate": identity.certificate, "key": identity.key, "authority": identity.authority}
    return tuple(word for name, path in files.items() for word in (f"--tls-{name}", str(path)))


def keep(folder: Path, joined: Joined) -> Path:
    """Writes the agent's environment and the node's identity where their owner alone can read them.

    Raises PermanentError when the control plane's certificate is of another key, or none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity = NodeIdentity.of(folder, joined.node)
    try:
        identity.keep(joined.certificate, joined.authority, joined.redis_authority)
    except ValueError as error:
        raise PermanentError(f"the certificate that came for node {joined.node} cannot be used: {error}") from error
    path = folder / f"node-{joined.node}.env"
    draft = path.with_suffix(".tmp")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"BROKER_URL={identity.through_tls(joined.broker_url)}\nOMP_NUM_THREADS=1\nPYTHONUNBUFFERED=1\n")
    os.replace(draft, path)
    return path


GPU_NODE = ("--gpus", "nvml", "--actuator", str(DEFAULT_SOCKET))
# What a vLLM for processors needs to start beside others: no cores of its own, no compiling, a KV cache of 256 MiB.
CPU_ARGUMENTS = ("--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20))
CPU_ENGINES = (
    *(f"--vllm-env={name}" for name in ("VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1")),
    "--vllm-env=VLLM_HOST_IP=127.0.0.1",
    *(f"--vllm-argument={word}" for word in CPU_ARGUMENTS),
)


def agent_command(node: str, more: Sequence[str] = GPU_NODE) -> tuple[str, ...]:
    """Celery takes the broker from BROKER_URL: a command line can be read by all. `more`: what the node is."""
    celery = (sys.executable, "-m", "celery", "-A", "pools.agent.app", "worker", "-P", "solo")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
    return (*celery, "-Q", f"node.{node}", "-n", f"node.{node}@%h", *quiet, "--node", node, *more)
