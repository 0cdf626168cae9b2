"""The agent's Celery application: a worker of one node, with the agent's loop beside it.

    celery -A pools.agent.app -b BROKER worker -P solo -Q node.NAME -n node.NAME@%h --node NAME --control URL
    celery -A pools.agent.app -b BROKER worker -P solo -Q node.NAME -n node.NAME@%h --node NAME --gpus nvml --vllm PATH
    celery -A pools.agent.app -b BROKER worker -P solo -Q node.NAME -n node.NAME@%h --node NAME --gpus cpu --vllm PATH

The loop runs only when `--node` is given. Samples and the desired state go through the broker's Redis. Nothing is read
from the environment here.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from celery import Celery, bootsteps

from core.engine.profiles import Profile, ProfileError, load_profiles
from core.ports import PermanentError
from pools import masking, redis_address, redis_safety, wire
from pools.actuator.actuator_protocol import DEFAULT_SOCKET

from .agent_metrics import Board, serve
from .batch_spool import BatchSpool
from .certificate_renewal import CertificateRenewal
from .clocks.clock_requests import ClockListener, ClockRequests
from .devices.dcgm import DEFAULT_URL
from .devices.declared import Declaration
from .devices.host.host_energy import HostEnergy
from .devices.host.host_options import HostOptions, host_energy
from .devices.host.host_options import click_options as host_click_options
from .devices.sim import TIMEOUT_S, SimEngineControl, SimFrequencyActuator, SimGpuMeter, SimInstanceRuntime, SimMachine
from .http_client import HttpClient
from .loop import PERIOD_S, AgentLoop
from .node_identity import NodeIdentity
from .real_node import RealNode, amd_node, dcgm_node, declared_node, nvml_node
from .redis_link import RedisLink, redis_url
from .vllm.engine_access import OPEN
from .vllm.runtime import VllmRuntime
from .vllm.vllm_metrics import VllmMetrics
from .vllm.vllm_options import click_options, vllm_options

logger = logging.getLogger(__name__)

_LEAST_PAUSE_S = 0.02


class Bell:
    """Wakes the agent's thread: for a whole tick (a nudge), or for a glance (a ring). Any thread may."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._nudged = threading.Event()

    def nudge(self) -> None:
        self._nudged.set()
        self._rung.set()

    def ring(self) -> None:
        self._rung.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until it is rung, or returns at once when it has been since the last wait; `timeout_s` at most."""
        if self._rung.wait(timeout_s):
            self._rung.clear()

    def nudged(self) -> bool:
        """Says whether it has been nudged since this was last asked."""
        was = self._nudged.is_set()
        self._nudged.clear()
        return was


class AgentApp(Celery):
    """A Celery application with the bell that the nudge task rings and the loop waits for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bell = Bell()


class AgentThread(threading.Thread):
    """Ticks once a period, or at once when nudged, and glances in between. Faults are logged and do not end it.

    Periods are measured by `elapsed_s`, which is never set back; `now_s` tells Unix seconds.
    """

    def __init__(
        self,
        loop: AgentLoop,
        bell: Bell,
        period_s: float = PERIOD_S,
        elapsed_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
        runs: Callable[[], bool] = lambda: True,
    ) -> None:
        """Makes the thread. `runs`: whether the machine does; a simulated one can be off, its agent is silent then."""
        super().__init__(name="agent", daemon=True)
        self._runs = runs
        self._loop = loop
        self._bell = bell
        self._period_s = period_s
        self._elapsed_s, self._now_s = elapsed_s, now_s
        self._ending = False

    def run(self) -> None:
        tick_s = self._elapsed_s()
        while not self._ending:
            whole = self._bell.nudged() or self._elapsed_s() >= tick_s
            if whole:
                tick_s = self._elapsed_s() + self._period_s
            try:
                if whole and self._runs():
                    self._loop.tick(self._now_s())
                elif not whole:
                    self._loop.glance(self._now_s())
            except Exception:
                logger.exception("a tick of the agent failed")
            self._bell.wait(self._pause_s(tick_s))

    def end(self, timeout_s: float) -> None:
        self._ending = True
        self._bell.ring()
        self.join(timeout_s)

    def _pause_s(self, tick_s: float) -> float:
        """Returns the time to the next tick, or to a glance before it."""
        left_s = max(0.0, tick_s - self._elapsed_s())
        glance_s = self._loop.glance_s()
        return left_s if glance_s is None else min(left_s, max(_LEAST_PAUSE_S, glance_s - self._now_s()))


class AgentStep(bootsteps.StartStopStep):
    """Runs the agent beside the worker's consumer. Engines outlive it; clocks return to the top with their leases."""

    def __init__(
        self,
        worker: Any,
        node: str | None = None,
        control: str | None = None,
        profiles: str | None = None,
        metrics: str | None = None,
        gpus: str = "sim",
        actuator: str = str(DEFAULT_SOCKET),
        dcgm: str = DEFAULT_URL,
        devices: str = "CPU:1",
        power: str = "20:65",
        spool: str | None = None,
        identity: str | None = None,
        period_s: float = PERIOD_S,
        redis_insecure: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(worker, **options)
        self._redis_insecure = redis_insecure
        self._spool = spool
        self._identity = identity
        self._period_s = period_s
        self._options = options
        self._dcgm = dcgm
        self._devices = devices, power
        self._gpus = gpus
        self._actuator = actuator
        self._node = node
        self._control = control
        self._profiles = profiles
        self._metrics = metrics
        self._end_metrics: Callable[[], None] = lambda: None
        self._end_adapters: Callable[[], None] = lambda: None
        self._machine_runs: Callable[[], bool] = lambda: True
        self._threads: tuple[AgentThread | ClockListener | CertificateRenewal, ...] = ()
        self._loop: AgentLoop | None = None
        self._host: HostEnergy | None = None
        self.enabled = node is not None
        if node is not None:  # before the worker makes its first connection
            worker.app.conf.broker_transport_options["global_keyprefix"] = wire.celery_prefix(node)

    def include_if(self, worker: Any) -> bool:
        return bool(self.enabled)

    def start(self, worker: Any) -> None:
        assert self._node is not None
        url = redis_url(worker.app.conf.broker_url)
        if fault := redis_safety.fault(url, self._redis_insecure):
            raise click.UsageError(f"BROKER_URL: {fault}")
        adapters, self._end_adapters = self._adapters(url)
        host = self._host = self._host_energy()
        masking.mask_logs(*masking.passwords(url))
        requests = ClockRequests()
        board = Board(self._node)
        if self._metrics is not None:
            self._end_metrics = _serve_metrics(board, self._metrics)
        loop = self._loop = AgentLoop(
            self._node,
            secrets.token_hex(8),
            **adapters,
            link=RedisLink(url, self._node),
            requests=requests,
            profiles=_read_profiles(self._profiles),
            board=board,
            period_s=self._period_s,
            spool=_spool(self._spool),
            host=host,
        )
        bell = worker.app.bell
        ticking = AgentThread(loop, bell, self._period_s, runs=self._machine_runs)
        self._threads = ticking, ClockListener(url, self._node, requests, bell.ring)
        if self._identity is not None:
            identity, engines = NodeIdentity(Path(self._identity)), adapters["control"]
            names = engines.names if isinstance(engines, VllmRuntime) else ()
            self._threads = *self._threads, CertificateRenewal(url, self._node, identity, names)
        for thread in self._threads:
            thread.start()

    def stop(self, worker: Any) -> None:
        for thread in self._threads:
            thread.end(timeout_s=5.0)
        if self._loop is not None:
            self._loop.close()
        self._end_metrics()
        self._end_adapters()
        if self._host is not None:
            self._host.close()

    terminate = stop

    def _adapters(self, url: str) -> tuple[dict[str, Any], Callable[[], None]]:
        """Returns the arguments of AgentLoop that this kind of node has, and what closes them."""
        if self._gpus != "sim":
            node = self._real_node(url)
            parts = {"meter": node.meter, "actuator": node.actuator, "runtime": node.runtime, "report": node}
            access = node.engines.access if node.engines else lambda uid: OPEN
            reads = {"metrics": VllmMetrics(access=access), "sampler": VllmMetrics(access=access)}
            return {**parts, **reads, "control": node.engines}, node.close
        if self._control is None:
            raise click.UsageError("--node needs --control, a simulated node's control API, or --gpus nvml")
        client = HttpClient(self._control, TIMEOUT_S)
        self._machine_runs = SimMachine(client).runs
        return {
            "meter": SimGpuMeter(client),
            "actuator": SimFrequencyActuator(client),
            "runtime": SimInstanceRuntime(client),
            "control": SimEngineControl(client),
            "metrics": VllmMetrics(),
            "sampler": VllmMetrics(),
        }, client.close

    def _host_energy(self) -> HostEnergy | None:
        try:
            return host_energy(HostOptions.of(self._options), self._gpus)
        except (PermanentError, ValueError) as error:
            raise click.UsageError(f"the host's energy: {error}") from error

    def _real_node(self, url: str) -> RealNode:
        assert self._node is not None
        try:
            engines = vllm_options(self._options, self._gpus != "cpu", url)
            if self._gpus == "nvml":
                return nvml_node(Path(self._actuator), engines)
            if self._gpus == "amd":
                return amd_node(engines)
            if self._gpus == "dcgm":
                return dcgm_node(self._dcgm, Path(self._actuator), engines)
            return declared_node(self._node, Declaration.read(*self._devices), engines)
        except (PermanentError, ValueError) as error:
            raise click.UsageError(str(error)) from error


def _serve_metrics(board: Board, where: str) -> Callable[[], None]:
    host, _, port = where.rpartition(":")
    try:
        return serve(board, host.strip("[]") or "127.0.0.1", int(port))
    except (OSError, OverflowError, ValueError) as error:
        raise click.UsageError(f"--metrics {where}: {error}; give HOST:PORT, port 0 for any free one") from error


def _spool(folder: str | None) -> BatchSpool | None:
    try:
        return None if folder is None else BatchSpool(Path(folder))
    except OSError as error:
        raise click.UsageError(f"--spool {folder}: {error}") from error


def _read_profiles(path: str | None) -> tuple[Profile, ...]:
    if path is None:
        return ()
    try:
        return load_profiles(Path(path))
    except (OSError, ProfileError) as error:
        raise click.UsageError(f"--profiles {path}: {error}") from error


# No fixups: where DJANGO_SETTINGS_MODULE is set, Celery would otherwise load all of Django into the agent.
app = AgentApp("greenserve-agent", include=["pools.agent.tasks"], fixups=set())
app.conf.update(
    task_ignore_result=True,
    worker_enable_remote_control=False,  # nobody asks: the desired state says what to do
    task_default_queue="node",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # a node outlives its broker
    broker_transport_options={"socket_timeout": 10, "socket_connect_timeout": 5},
)


@app.on_after_configure.connect  # type: ignore[untyped-decorator]  # Celery has no types
def _find_sentinels(sender: Celery, source: Any, **_: Any) -> None:
    """Tells Celery in its own words where the broker is, if sentinels know it. The address is kept for the others."""
    url, options = redis_address.celery_broker(source.broker_url or "")
    if options:
        source.broker_read_url = source.broker_write_url = url
        source.broker_transport_options = source.broker_transport_options | options


app.user_options["worker"].add(click.Option(["--node"], help="Run this node's agent beside the worker."))
app.user_options["worker"].add(click.Option(["--control"], help="Control API of a simulated node, http://HOST:PORT."))
app.user_options["worker"].add(
    click.Option(["--profiles"], help="Measured profiles of engines, .csv or .json: see `greenserve engine import`.")
)
app.user_options["worker"].add(click.Option(["--metrics"], help="Where to listen for Prometheus, HOST:PORT."))
app.user_options["worker"].add(
    click.Option(["--spool"], help="Folder for samples that cannot be sent, of this agent alone. Without: in memory.")
)
app.user_options["worker"].add(
    click.Option(["--identity"], help="Folder of the node's key and certificates, which are renewed there.")
)
app.user_options["worker"].add(
    click.Option(
        ["--gpus"],
        type=click.Choice(["sim", "nvml", "amd", "dcgm", "cpu"]),
        default="sim",
        help="What is metered: the simulated node behind --control, NVIDIA's GPUs by its driver or by the DCGM "
        "exporter, AMD's by theirs, or a machine without (--devices).",
    )
)
app.user_options["worker"].add(
    click.Option(["--actuator"], default=str(DEFAULT_SOCKET), help="Socket of the node's clock actuator (nvml only).")
)
app.user_options["worker"].add(
    click.Option(
        ["--devices"], default="CPU:1", help="What stands for GPUs where there are none, TYPE:COUNT (cpu only)."
    )
)
app.user_options["worker"].add(
    click.Option(
        ["--power"], default="20:65", help="Watts of the machine, idle and busy: IDLE:FULL, declared (cpu only)."
    )
)
app.user_options["worker"].add(
    click.Option([redis_safety.OPTION], is_flag=True, help="Take a Redis over TCP without a password or TLS, too.")
)
app.user_options["worker"].add(
    click.Option(["--period-s"], type=float, default=PERIOD_S, hidden=True, help="How often it ticks; tests, oftener.")
)
for option in (*click_options(), *host_click_options()):
    app.user_options["worker"].add(option)
app.steps["worker"].add(AgentStep)
