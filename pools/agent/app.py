"""The agent's Celery application: a worker of one node, with the agent's loop beside it.

    celery -A pools.agent.app -b BROKER worker -P solo -Q node.NAME -n node.NAME@%h --node NAME --control URL

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

from scheduler.core.profiles import Profile, ProfileError, load_profiles

from .clock_requests import ClockListener, ClockRequests
from .engine_figures import Figures
from .http import HttpClient
from .link import RedisLink, redis_url
from .loop import PERIOD_S, AgentLoop
from .metrics import Board, serve
from .sim import TIMEOUT_S, SimEngineControl, SimFrequencyActuator, SimGpuMeter, SimInstanceRuntime
from .vllm_metrics import VllmMetrics

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
        """Until it is rung, or has been since the last wait."""
        if self._rung.wait(timeout_s):
            self._rung.clear()

    def nudged(self) -> bool:
        """Whether it has been, since this was last asked."""
        was = self._nudged.is_set()
        self._nudged.clear()
        return was


class AgentApp(Celery):  # type: ignore[misc]  # Celery has no types
    """A Celery application with the bell that the nudge task rings and the loop waits for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bell = Bell()


class AgentThread(threading.Thread):
    """Ticks once a period, or at once when nudged, and glances in between. Faults are logged and do not end it."""

    def __init__(self, loop: AgentLoop, bell: Bell, period_s: float = PERIOD_S) -> None:
        super().__init__(name="agent", daemon=True)
        self._loop = loop
        self._bell = bell
        self._period_s = period_s
        self._ending = False

    def run(self) -> None:
        tick_s = time.monotonic()
        while not self._ending:
            whole = self._bell.nudged() or time.monotonic() >= tick_s
            if whole:
                tick_s = time.monotonic() + self._period_s
            try:
                if whole:
                    self._loop.tick(time.time())
                else:
                    self._loop.glance(time.time())
            except Exception:
                logger.exception("a tick of the agent failed")
            self._bell.wait(self._pause_s(tick_s))

    def end(self, timeout_s: float) -> None:
        self._ending = True
        self._bell.ring()
        self.join(timeout_s)

    def _pause_s(self, tick_s: float) -> float:
        """To the next tick, or to a glance before it."""
        left_s = max(0.0, tick_s - time.monotonic())
        glance_s = self._loop.glance_s()
        return left_s if glance_s is None else min(left_s, max(_LEAST_PAUSE_S, glance_s - time.time()))


class AgentStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs the agent beside the worker's consumer. Engines outlive it; clocks return to the top with their leases."""

    def __init__(
        self,
        worker: Any,
        node: str | None = None,
        control: str | None = None,
        profiles: str | None = None,
        metrics: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(worker, **options)
        self._node = node
        self._control = control
        self._profiles = profiles
        self._metrics = metrics
        self._end_metrics: Callable[[], None] = lambda: None
        self._threads: tuple[AgentThread | ClockListener, ...] = ()
        self.enabled = node is not None

    def include_if(self, worker: Any) -> bool:
        return bool(self.enabled)

    def start(self, worker: Any) -> None:
        assert self._node is not None
        if self._control is None:
            raise click.UsageError("--node needs --control, the URL of the simulated node's control API")
        client = HttpClient(self._control, TIMEOUT_S)
        url = redis_url(worker.app.conf.broker_url)
        requests = ClockRequests()
        board = Board(self._node)
        if self._metrics is not None:
            self._end_metrics = _serve_metrics(board, self._metrics)
        loop = AgentLoop(
            self._node,
            secrets.token_hex(8),
            meter=SimGpuMeter(client),
            actuator=SimFrequencyActuator(client),
            runtime=SimInstanceRuntime(client),
            metrics=VllmMetrics(),
            link=RedisLink(url, self._node),
            control=SimEngineControl(client),
            sampler=VllmMetrics(),
            requests=requests,
            figures=Figures(_read_profiles(self._profiles)),
            board=board,
        )
        bell = worker.app.bell
        self._threads = AgentThread(loop, bell), ClockListener(url, self._node, requests, bell.ring)
        for thread in self._threads:
            thread.start()

    def stop(self, worker: Any) -> None:
        for thread in self._threads:
            thread.end(timeout_s=5.0)
        self._end_metrics()

    terminate = stop


def _serve_metrics(board: Board, where: str) -> Callable[[], None]:
    host, _, port = where.rpartition(":")
    try:
        return serve(board, host.strip("[]") or "127.0.0.1", int(port))
    except (OSError, OverflowError, ValueError) as error:
        raise click.UsageError(f"--metrics {where}: {error}; give HOST:PORT, port 0 for any free one") from error


def _read_profiles(path: str | None) -> tuple[Profile, ...]:
    if path is None:
        return ()
    try:
        return load_profiles(Path(path))
    except (OSError, ProfileError) as error:
        raise click.UsageError(f"--profiles {path}: {error}") from error


app = AgentApp("greenserve-agent", include=["pools.agent.tasks"])
app.conf.update(
    task_ignore_result=True,
    task_default_queue="node",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # a node outlives its broker
    broker_transport_options={"socket_timeout": 10, "socket_connect_timeout": 5},
)
app.user_options["worker"].add(click.Option(["--node"], help="Run this node's agent beside the worker."))
app.user_options["worker"].add(click.Option(["--control"], help="Control API of a simulated node, http://HOST:PORT."))
app.user_options["worker"].add(
    click.Option(["--profiles"], help="Measured profiles of engines, .csv or .json: see `greenserve engine import`.")
)
app.user_options["worker"].add(click.Option(["--metrics"], help="Where to listen for Prometheus, HOST:PORT."))
app.steps["worker"].add(AgentStep)
