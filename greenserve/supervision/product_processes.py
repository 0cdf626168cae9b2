"""The product's processes, and the command line of each (the picture in ARCHITECTURE.md)."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from core.engine.gpu_type_fields import values_of
from core.engine.gpu_types import GpuType
from greenserve import env
from greenserve.process import Spec
from greenserve.servers import embedded
from greenserve.servers.server_folders import folders_of
from pools import redis_address, redis_safety, wire


def redis_url(config: env.Env) -> str:
    return config.redis_url or embedded.redis_url(config.var_dir)


def database_url(config: env.Env) -> str:
    return config.database_url or embedded.database_url(config.var_dir)


def owner_url(config: env.Env) -> str:
    """Returns the address of the role that owns the tables; without one of its own, that of the role that works."""
    if config.database_url is None:
        return embedded.owner_url(config.var_dir)
    return config.database_owner_url or config.database_url


def broker_url(config: env.Env) -> str:
    return redis_address.broker_url(redis_url(config))


def redis_url_file(config: env.Env) -> Path:
    return config.var_dir / "redis-url"


def snapshot_key_file(config: env.Env) -> Path:
    """Returns where gateways find the public key of snapshots; the private one is with the other secrets."""
    return config.var_dir / "snapshot-key.pub"


def engine_authorities_file(config: env.Env) -> Path:
    """Returns where gateways find who may sign engines' certificates: our authority for nodes, and the operator's."""
    return config.var_dir / "engine-authorities.pem"


def web(config: env.Env) -> Spec:
    listen = ("--host", config.web_host, "--port", str(config.web_port))
    return _python(
        config,
        "web",
        *("-m", "greenserve.web_server", *listen, "--log-level", config.log_level.lower()),
        *(("--behind-proxy",) if config.proxies else ()),
    )


def worker_token_file(config: env.Env) -> Path:
    return config.var_dir / "worker-token"


def metrics_token_file(config: env.Env) -> Path:
    return config.var_dir / "metrics-token"


def gateways(config: env.Env) -> list[Spec]:
    """Returns one process, or several that share the port: `gateway.1` and so on."""
    if config.gateway_processes == 1:
        return [_gateway(config, "gateway")]
    of = config.gateway_processes
    return [_gateway(config, f"gateway.{n}", "--share", f"{n}/{of}") for n in range(1, of + 1)]


def lengths(config: env.Env) -> Spec | None:
    """Returns what predicts answers' lengths for all gateways of this host; None: it is not wanted."""
    if not config.length_budget_s:
        return None
    where = ("--socket", str(folders_of(config.var_dir).length_socket), "--state", str(config.var_dir / "lengths"))
    encoders = ("--data", str(config.var_dir))
    return _python(config, "lengths", "-m", "pools.lengths", *where, *encoders, secrets=False)


def _lengths(config: env.Env) -> tuple[str, ...]:
    """Returns how gateways find it."""
    if not config.length_budget_s:
        return ()
    socket = str(folders_of(config.var_dir).length_socket)
    return ("--lengths", socket, "--length-budget-s", f"{config.length_budget_s:g}")


def _gateway(config: env.Env, name: str, *share: str) -> Spec:
    listen = ("--host", config.gateway_host, "--port", str(config.gateway_port))
    # It outlives the instances when all is stopped: requests that run may end, and are recorded.
    return _python(
        config,
        name,
        *("-m", "pools.gateway", *listen, *share, "--redis-url-file", str(redis_url_file(config))),
        *(("--name", wire.process_name("gateway", config.plane)) if config.plane else ()),
        *("--snapshot-key-file", str(snapshot_key_file(config))),
        *("--spool", str(config.var_dir / "spool"), "--state", str(config.var_dir / "learned")),
        *("--web-url", env.local_url(config.web_host, config.web_port)),
        *(() if config.worker_token is None else ("--worker-token-file", str(worker_token_file(config)))),
        *("--worker-hosts", config.worker_hosts),
        *_engines(config),
        *_lengths(config),
        *(() if config.metrics_token is None else ("--metrics-token-file", str(metrics_token_file(config)))),
        *(("--media-hosts", config.media_hosts) if config.media_hosts else ()),
        *(("--pass-fields", config.pass_fields) if config.pass_fields else ()),
        *(word for name, value in config.gateway_limits.items() for word in (f"--max-{name}", str(value))),
        *("--proxies", config.gateway_proxies),
        rank=2,
        stop_timeout_s=12.0,
        secrets=False,
    )


def _engines(config: env.Env) -> tuple[str, ...]:
    """Returns how gateways and engines know each other, and what Redis they may use."""
    return (
        *("--engine-authority", str(engine_authorities_file(config))),
        *(() if config.worker_key_file is None else ("--worker-key-file", str(config.worker_key_file))),
        *((redis_safety.OPTION,) if config.redis_insecure else ()),
    )


def node_relay(config: env.Env) -> Spec | None:
    """Returns what lets nodes reach us by TLS; None: no port is set for them."""
    words: list[str] = []
    if config.relay_port is not None and config.redis_url is None:
        socket = str(folders_of(config.var_dir).redis_socket)
        words += ["--redis-port", str(config.relay_port), "--redis-socket", socket]
    if config.join_port is not None:
        words += ["--join-port", str(config.join_port), "--web-port", str(config.web_port)]
    if not words:
        return None
    public = urlsplit(config.public_url or "").hostname
    names = [word for name in (*config.web_names, *((public,) if public else ())) for word in ("--name", name)]
    where = ("--secrets", str(config.secrets_dir), "--redis-url-file", str(redis_url_file(config)))
    listen = ("--host", config.nodes_host)
    return _python(
        config, "relay", "-m", "greenserve.servers.node_relay", *where, *listen, *words, *names, rank=2, secrets=False
    )


def picker(config: env.Env, port: int) -> Spec:
    """Returns the endpoint picker for Envoy; rows of its own, in a folder of its own."""
    listen = ("--host", config.picker_host, "--port", str(port))
    metrics = config.picker_metrics_port
    return _python(
        config,
        "picker",
        *("-m", "pools.gateway.picker", *listen, "--redis-url-file", str(redis_url_file(config))),
        *(("--name", wire.process_name("picker", config.plane)) if config.plane else ()),
        *("--snapshot-key-file", str(snapshot_key_file(config))),
        *("--spool", str(config.var_dir / "spool" / "picker"), "--state", str(config.var_dir / "learned")),
        *("--worker-hosts", config.worker_hosts),
        *_engines(config),
        *_lengths(config),
        *(() if metrics is None else ("--metrics-port", str(metrics))),
        *(("--media-hosts", config.media_hosts) if config.media_hosts else ()),
        *(("--pass-fields", config.pass_fields) if config.pass_fields else ()),
        rank=2,
        stop_timeout_s=12.0,
        secrets=False,
        GRPC_ENABLE_FORK_SUPPORT="0",  # it only ever starts programs
    )


def background(config: env.Env) -> list[Spec]:
    """Returns the scheduler's: epochs' worker, beat, ingester; and workers for simulations and batches."""
    level = ("--loglevel", config.log_level)
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    epochs = ("worker", "-Q", "epochs", "-c", "2", "-n", "epochs@%h", *level, *quiet)
    beat = ("beat", "--pidfile", "", *level)
    simulations = ("worker", "-Q", wire.SIMULATIONS_QUEUE, "-c", "1", "-n", "simulations@%h", *level, *quiet)
    batches = ("worker", "-Q", wire.BATCHES_QUEUE, "-c", "1", "-n", "batches@%h", *level, *quiet)
    # Django's checks would load all pages in each; `database_setup` has made them.
    celery = ("-m", "celery", "-A", "greenserve", "--skip-checks")
    return [
        _python(config, "epochs", *celery, *epochs),
        _python(config, "simulations", *celery, *simulations),
        _python(config, "batches", *celery, *batches),
        _python(config, "beat", *celery, *beat),
        _python(config, "ingester", "-m", "greenserve.manage", "ingest", "--skip-checks"),
    ]


def simulated_node(
    config: env.Env, node: str, gpus: Sequence[tuple[str, int]], port: int, types: Mapping[str, GpuType]
) -> Spec:
    """Returns a machine's process. `types`: those that operators entered, by name."""
    words = [word for gpu_type, count in gpus for word in ("--gpu", f"{gpu_type}:{count}")]
    for name in dict.fromkeys(gpu_type for gpu_type, _ in gpus if gpu_type in types):
        words += ["--gpu-type", json.dumps({"name": name, **values_of(types[name])})]
    speedup = str(config.demo_speedup if config.demo else 1.0)
    where = ("--node", node, "--port", str(port), "--var", str(config.var_dir))
    return _python(
        config, f"simnode.{node}", "-m", "pools.simnode", *where, *words, "--transition-speedup", speedup, secrets=False
    )


def agent(config: env.Env, node: str, port: int) -> Spec:
    worker = ("worker", "-P", "solo", "-Q", f"node.{node}", "-n", f"node.{node}@%h", "--loglevel", config.log_level)
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    # Any free port: Prometheus hears of it from the web process, which the agent tells.
    ours = ("--node", node, "--control", f"http://127.0.0.1:{port}", "--metrics", f"{config.metrics_host}:0")
    spool = ("--spool", str(config.var_dir / "spool" / "agents" / node))
    celery = ("-m", "celery", "-A", "pools.agent.app")
    host = () if config.simulated_host is None else ("--overhead", config.simulated_host)
    redis = (redis_safety.OPTION,) if config.redis_insecure else ()
    words = (*celery, *worker, *quiet, *ours, *spool, *host, *redis)
    return _python(config, f"node.{node}", *words, secrets=False, BROKER_URL=broker_url(config))


def traffic(config: env.Env, model: str) -> Spec:
    """Returns the demo's users: an endless stream of requests shaped like Azure's published trace."""
    rate = ("--generate", "azure-conv-like", "--rate", f"{config.demo_rps:g}", "--forever", "--wait", "--quiet")
    words = ("-m", "greenserve", "replay", *rate, "--model", model)
    return _python(config, "traffic", *words, rank=3, stop_timeout_s=3.0, secrets=False)


def answers(url: str) -> Callable[[], bool]:
    """A probe: does a server answer at all, whatever it says? One that sends on to https answers, too."""
    address = urlsplit(url)

    def probe() -> bool:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=2)
        try:
            connection.request("GET", address.path)
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True

    return probe


def _python(
    config: env.Env,
    name: str,
    *arguments: str,
    rank: int = 1,
    stop_timeout_s: float = 8.0,
    secrets: bool = True,
    **variables: str,
) -> Spec:
    """Makes the Spec of a Python process. `secrets` off: it needs none, and is handed none."""
    own = {"GREENSERVE_VAR": str(config.var_dir), "DJANGO_SETTINGS_MODULE": "greenserve.settings"}
    return Spec(
        name=name,
        argv=(sys.executable, *arguments),
        env=env.for_child(secrets=secrets, owner=False, **own, **variables),
        cwd=config.work_dir,
        rank=rank,
        stop_timeout_s=stop_timeout_s,
    )
