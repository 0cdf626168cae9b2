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
from typing import Any

import click
from celery import Celery, bootsteps

from .http import HttpClient
from .link import RedisLink, redis_url
from .loop import PERIOD_S, AgentLoop
from .sim import TIMEOUT_S, SimEngineControl, SimFrequencyActuator, SimGpuMeter, SimInstanceRuntime
from .vllm_metrics import VllmMetrics

logger = logging.getLogger(__name__)


class AgentApp(Celery):  # type: ignore[misc]  # Celery has no types
    """A Celery application with the bell that the nudge task rings and the loop waits for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.wake = threading.Event()


class AgentThread(threading.Thread):
    """Ticks once a period, or at once when woken. A fault in a tick is logged and does not end it."""

    def __init__(self, loop: AgentLoop, wake: threading.Event) -> None:
        super().__init__(name="agent", daemon=True)
        self._loop = loop
        self._wake = wake
        self._ending = False

    def run(self) -> None:
        while not self._ending:
            started_s = time.monotonic()
            try:
                self._loop.tick(time.time())
            except Exception:
                logger.exception("a tick of the agent failed")
            if self._wake.wait(max(0.0, started_s + PERIOD_S - time.monotonic())):
                self._wake.clear()

    def end(self, timeout_s: float) -> None:
        self._ending = True
        self._wake.set()
        self.join(timeout_s)


class AgentStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs the agent beside the worker's consumer. Engines outlive it; clocks return to the top with their leases."""

    def __init__(self, worker: Any, node: str | None = None, control: str | None = None, **options: Any) -> None:
        super().__init__(worker, **options)
        self._node = node
        self._control = control
        self._thread: AgentThread | None = None
        self.enabled = node is not None

    def include_if(self, worker: Any) -> bool:
        return bool(self.enabled)

    def start(self, worker: Any) -> None:
        assert self._node is not None
        if self._control is None:
            raise click.UsageError("--node needs --control, the URL of the simulated node's control API")
        client = HttpClient(self._control, TIMEOUT_S)
        link = RedisLink(redis_url(worker.app.conf.broker_url), self._node)
        loop = AgentLoop(
            self._node,
            secrets.token_hex(8),
            meter=SimGpuMeter(client),
            actuator=SimFrequencyActuator(client),
            runtime=SimInstanceRuntime(client),
            metrics=VllmMetrics(),
            link=link,
            control=SimEngineControl(client),
        )
        self._thread = AgentThread(loop, worker.app.wake)
        self._thread.start()

    def stop(self, worker: Any) -> None:
        if self._thread is not None:
            self._thread.end(timeout_s=5.0)

    terminate = stop


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
app.steps["worker"].add(AgentStep)
