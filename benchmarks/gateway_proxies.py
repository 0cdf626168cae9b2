"""The proxies that benchmarks/gateway.py compares, each a process of its own in front of the same engines.

Ours is started as the product starts it, and reads a published fleet from an embedded Redis of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import sysconfig
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from greenserve import env
from greenserve.process import Child, Spec
from greenserve.servers import embedded
from pools import wire
from tests import servers

KEY = "gs-benchmark-0123456789abcdef"
MODEL = "Llama3-70B"  # a service that has its engines' own name for the model
RENAMED = "llama-70b-chat"  # one that has not: bodies are rewritten
NODE = "node-1"
PUBLISH_PERIOD_S = 1.0
_CLASSES = [  # FREESH table 4, partition A
    wire.FleetClass("SS", 0, 0, 184, 0, 444),
    wire.FleetClass("SL", 1, 0, 184, 444, None),
    wire.FleetClass("LS", 2, 184, None, 0, 444),
    wire.FleetClass("LL", 3, 184, None, 444, None),
]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers at `url`; its process tree's root is `pid`."""

    name: str
    url: str
    pid: int


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """What is started meanwhile runs on that core alone."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def priority(nice: int) -> Iterator[None]:
    """All that runs and is started meanwhile has this niceness; also its session, which Linux may weigh as a whole."""
    session = Path("/proc/self/autogroup")
    grouped = nice != 0 and session.exists()
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if grouped:
        session.write_text(str(nice))
    try:
        yield
    finally:
        if grouped:
            session.write_text("0")


def answers_200(url: str) -> Callable[[], bool]:
    def probe() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    return probe


@contextlib.contextmanager
def running(spec: Spec, log_dir: Path, core: int | None) -> Iterator[Child]:
    """A process that answers, on its core, until the block ends. Raises StartError."""
    child = Child(spec, log_dir / f"{spec.name}.log")
    with pinned(core):
        child.start()
    try:
        embedded.wait_ready(child, timeout_s=30)
        yield child
    finally:
        child.stop()


def _target(child: Child, url: str) -> Target:
    if child.pid is None:
        raise RuntimeError(f"{child.spec.name} has not been started")
    return Target(child.spec.name, url, child.pid)


@contextlib.contextmanager
def engines(count: int, var_dir: Path, core: int) -> Iterator[tuple[Target, list[str]]]:
    """One mock process that listens on `count` ports; yields it, and the engines' addresses."""
    ports = free_ports(count)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    script = str(Path(__file__).with_name("gateway_mock.py"))
    argv = (sys.executable, script, *map(str, ports))
    spec = Spec(name="direct", argv=argv, env=env.for_child(), cwd=env.ROOT, ready=answers_200(f"{urls[-1]}/health"))
    with running(spec, var_dir, core) as child:
        yield _target(child, urls[0]), urls


@contextlib.contextmanager
def greenserve(
    urls: list[str],
    var_dir: Path,
    core: int,
    other_core: int,
    python: str,
    profile: Path | None = None,
    options: Sequence[str] = (),
) -> Iterator[Target]:
    """`python -m pools.gateway`, with Redis on the other core. Any interpreter finds the packages of this one."""
    (port,) = free_ports(1)
    listen = ("--host", "127.0.0.1", "--port", str(port))
    redis_words = servers.redis_words(var_dir, embedded.redis_url(var_dir))
    where = (*redis_words, "--spool", str(var_dir / "spool"))
    profiler = () if profile is None else ("-m", "cProfile", "-o", str(profile))
    spec = Spec(
        name="greenserve",
        argv=(python, *profiler, "-m", "pools.gateway", *listen, *where, *options),
        env=env.for_child(PYTHONPATH=f"{env.ROOT}:{sysconfig.get_path('purelib')}"),
        cwd=env.ROOT,
        stop_timeout_s=15.0,
        ready=answers_200(f"http://127.0.0.1:{port}/ready"),
    )
    try:
        with (
            running(embedded.redis(var_dir), var_dir, other_core),
            _published(urls, embedded.redis_url(var_dir)),
            running(spec, var_dir, core) as child,
        ):
            yield _target(child, f"http://127.0.0.1:{port}")
    finally:
        servers.remove(var_dir)


@contextlib.contextmanager
def _published(urls: list[str], redis_url: str) -> Iterator[None]:
    """Keeps a fleet and its agent's state in Redis, as the scheduler and an agent do."""
    stop = threading.Event()
    client = redis.Redis.from_url(redis_url, socket_timeout=5)
    client.set(wire.FLEET_KEY, wire.encode(_fleet()))

    def publish() -> None:
        client.set(wire.agent_key(NODE), wire.encode(_agent_state(urls)), ex=wire.AGENT_STATE_TTL_S)

    def keep_publishing() -> None:
        while not stop.wait(PUBLISH_PERIOD_S):
            publish()
            client.xtrim(wire.REQUEST_STREAM, maxlen=0)  # nobody ingests here

    publish()
    thread = threading.Thread(target=keep_publishing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        client.close()


def _fleet() -> wire.Fleet:
    key = wire.FleetKey(hashlib.sha256(KEY.encode()).hexdigest(), 1, "tenant-1", 1)
    limits = wire.LatencyLimits(2.0, 0.15, 60.0)
    services = []
    for at, name in enumerate((MODEL, RENAMED)):
        pools = [
            wire.FleetPool(at * len(_CLASSES) + n, "site-1", cell.name, 1.2, 300.0)
            for n, cell in enumerate(_CLASSES, start=1)
        ]
        services.append(wire.FleetService(name, MODEL, "vllm-v1", 16384, limits, "freesh-a", _CLASSES, pools))
    return wire.Fleet(1, time.time(), services, [key], [NODE])


def _agent_state(urls: list[str]) -> wire.AgentState:
    """Each engine stands for an instance of either service; pools get them by turns."""
    instances = [
        wire.InstanceState(
            uid=f"00000000-0000-4000-8000-{service:06d}{n:06d}",
            pool_id=service * len(_CLASSES) + 1 + n % len(_CLASSES),
            url=url,
            state="ready",
            model=MODEL,
            engine="vllm-v1",
            gpu_type="A100-80GB",
            tp=4,
            sm_clock_mhz=1410.0,
            min_mhz=210.0,
            max_mhz=1410.0,
            running=0,
            waiting=0,
            kv_usage=0.05,
        )
        for service in range(2)
        for n, url in enumerate(urls)
    ]
    return wire.AgentState(NODE, "benchmark", time.time(), 1, instances)


_NGINX = """
{user}
daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log stderr error;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  client_body_buffer_size 64k;
  upstream engines {{ {servers} keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(program: Path, urls: list[str], var_dir: Path, core: int) -> Iterator[Target]:
    (port,) = free_ports(1)
    home = var_dir / "nginx"
    home.mkdir()
    config = home / "nginx.conf"
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
    user = "user root;" if os.geteuid() == 0 else ""  # its temporary folders lie in ours
    config.write_text(_NGINX.format(user=user, dir=home, servers=servers, port=port))
    spec = Spec(
        name="nginx",
        argv=(str(program), "-p", str(home), "-c", str(config)),
        env=env.for_child(),
        cwd=home,
        ready=answers_200(f"http://127.0.0.1:{port}/health"),
    )
    with running(spec, var_dir, core) as child:
        yield _target(child, f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def vllm_router(program: Path, urls: list[str], var_dir: Path, core: int, policy: str) -> Iterator[Target]:
    port, metrics_port = free_ports(2)
    options = ("--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "error")
    metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port))
    limits = ("--max-concurrent-requests", "4096")  # by default 512, then it refuses
    spec = Spec(
        name="vllm-router",
        argv=(str(program), *options, *metrics, *limits, "--worker-urls", *urls),
        env=env.for_child(),
        cwd=var_dir,
        ready=answers_200(f"http://127.0.0.1:{port}/health"),
    )
    with running(spec, var_dir, core) as child:
        yield _target(child, f"http://127.0.0.1:{port}")
