"""The gateway's parts put together: start, watch the clock, stop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pools.registration.worker_hosts import WorkerHosts
from pools.wire.snapshot_signature import SnapshotVerifier

from .classify.asked_lengths import BUDGET_S
from .fleet.worker_api import WorkerApi
from .gateway_processes import GatewayProcesses, PortShare
from .handlers import Gateway
from .http.access import MetricsAccess
from .http.client_protocol import ClientConnection
from .http.connections import ConnectionLimits, Connections
from .http.listener import Listener
from .http.request import HttpLimits
from .http.upstream import UpstreamPool
from .relay.exchange import Timeouts
from .relay.web_relay import WebProcess
from .requests.client_fields import ClientFields
from .runtime import GatewayRuntime, GatewayRuntimeConfig


@dataclass(frozen=True, slots=True)
class Config:
    host: str
    port: int
    spool: Path
    name: str = "gateway"
    share: PortShare | None = None  # of the port, with other gateways; None: it is this one's alone
    rng: random.Random = field(default_factory=random.Random)  # breaks ties among instances
    tokenizers: Mapping[str, Path] = field(default_factory=dict)  # by service, for prompts near a border of classes
    state: Path | None = None  # folder for what it learns, over restarts; None: that is lost
    learns: bool = True  # trees of output lengths, in a process of their own once there are records enough
    redis_url: str | None = None  # None: no snapshot, no shipping (tests put a snapshot in force themselves)
    verifier: SnapshotVerifier | None = None  # who signs snapshots; None: all are believed
    worker_token: str | None = None  # None: workers cannot register themselves
    worker_hosts: WorkerHosts = field(default_factory=WorkerHosts)
    worker_key: str | None = field(default=None, repr=False)  # what those ask for; None: nothing
    engine_trust: ssl.SSLContext | None = (
        None  # whose certificates of engines count; None: those that the system trusts
    )
    web_url: str | None = None  # of the process that has files and batches; None: there are none
    grace_s: float = 10.0
    limits: HttpLimits = field(default_factory=HttpLimits)
    all_clients: ConnectionLimits = field(default_factory=ConnectionLimits)
    fields: ClientFields = field(default_factory=ClientFields)  # that clients may send to engines
    metrics_access: MetricsAccess = field(default_factory=MetricsAccess)
    timeouts: Timeouts = field(default_factory=Timeouts)
    lengths: Path | None = None  # the socket of the predictor's process; None: there is none
    length_budget_s: float = BUDGET_S  # that a request waits for it
    check_s: float = 0.5  # between looks at all time limits

    @property
    def process(self) -> str:
        """The name in records and heartbeats."""
        return self.name if self.share is None else self.share.name(self.name)


class GatewayServer:
    """A listening gateway. Make and start it inside a running event loop."""

    def __init__(self, config: Config, when_broken: Callable[[], None] = lambda: None) -> None:
        """Opens the journal. Raises OSError when the spool folder cannot be written to.

        `when_broken`: see GatewayRuntime.
        """
        self._config = config
        self.runtime = runtime = GatewayRuntime(
            GatewayRuntimeConfig(
                *(config.spool, config.process, config.rng, config.state, config.learns, config.tokenizers),
                *(config.redis_url, config.worker_hosts, config.worker_key, config.engine_trust),
                *(config.verifier, config.lengths, config.length_budget_s),
            ),
            when_broken,
        )
        self.fleet, self.journal = runtime.fleet, runtime.journal
        runtime.intake.fields = config.fields
        self.clocks, self.gate = runtime.clocks, runtime.gate
        self.gateway = Gateway(
            fleet=runtime.fleet,
            dispatcher=runtime.dispatcher,
            classifier=runtime.classifier,
            journal=runtime.journal,
            metrics=runtime.metrics,
            intake=runtime.intake,
            metrics_page=self._own_metrics,
            metrics_access=config.metrics_access,
            limits=config.limits,
            connections=Connections(config.all_clients),
            loop=asyncio.get_running_loop(),
            timeouts=config.timeouts,
            pool=UpstreamPool(config.engine_trust),
            web=WebProcess(config.web_url) if config.web_url else None,
            workers=WorkerApi(config.worker_token, runtime.workers) if config.worker_token else None,
        )
        self._listener = Listener(self.gateway.connections, lambda: ClientConnection(self.gateway, config.limits))
        self._port = config.port

    @property
    def broken(self) -> bool:
        return self.runtime.broken

    @property
    def port(self) -> int:
        """The port listened on, also where the configured one is 0."""
        return self._port

    async def start(self) -> None:
        """Listens and begins the background tasks. Raises OSError when the port is taken."""
        config, share = self._config, self._config.share
        self.runtime.recall()
        try:
            if share is not None:
                other_gateways = GatewayProcesses(
                    share, config.name, config.host, config.port, self.gateway.own_metrics
                )
                await other_gateways.start()
                self.gateway.other_gateways = other_gateways
            await self._listener.start(config.host, config.port, reuse_port=share is not None)
        except OSError:
            self.journal.close()
            raise
        self._port = self._listener.port
        self.runtime.start()
        self.runtime.begin(self._keep_checking(), "checks")

    async def stop(self) -> None:
        """Once: stops listening, lets running requests end within the grace time, ships what can be shipped."""
        gateway = self.gateway
        if gateway.draining:
            return
        gateway.draining = True
        until_s = time.monotonic() + self._config.grace_s
        self._listener.close()
        for connection in list(gateway.connections):
            connection.close_if_idle()
        web_over = gateway.web.stop(self._config.grace_s) if gateway.web is not None else asyncio.sleep(0)
        await asyncio.gather(self._wait_until_idle(self._config.grace_s), web_over)
        for exchange in list(gateway.exchanges):
            exchange.stop()
        await self._wait_until_idle(1.0)
        if gateway.workers is not None:
            await gateway.workers.close()
        if gateway.other_gateways is not None:
            await gateway.other_gateways.close()
        await self.runtime.stop(until_s)
        gateway.splitter.close()
        gateway.pool.close()
        for connection in list(gateway.connections):
            connection.close_if_idle()

    def _own_metrics(self, in_flight: int, connections: Connections) -> bytes:
        own = () if self._config.share is None else (("gateway", self._config.process),)
        return self.runtime.metrics_page(in_flight, connections, own)

    async def _wait_until_idle(self, most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self.gateway.idle.wait()

    async def _keep_checking(self) -> None:
        """Enforces all time limits: one sweep costs less than a timer for each request."""
        while True:
            await asyncio.sleep(self._config.check_s)
            now_s = time.monotonic()
            for exchange in list(self.gateway.exchanges):
                exchange.check(now_s)
            for connection in list(self.gateway.connections):
                connection.check(now_s)
            self.runtime.look_around(now_s)
            self.gateway.pool.prune()
