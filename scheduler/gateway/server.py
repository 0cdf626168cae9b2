"""The gateway's parts put together: start, watch the clock, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from scheduler.core.predictors.boosted_lengths import BoostedLengthPredictor

from . import live
from .admission import AdmissionGate
from .classify import Classifier
from .clocks import ClockAsks
from .dispatch import Dispatcher
from .emergency import Emergencies
from .fleet import FleetView
from .handlers import Gateway
from .journal import Journal, Shipper
from .length_trainer import LengthTrainer
from .metrics import Metrics
from .protocol import ClientConnection, HttpLimits
from .relay import Timeouts
from .routing import Router
from .web import WebProcess

log = logging.getLogger(__name__)

CHECK_PERIOD_S = 0.5
BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Config:
    host: str
    port: int
    spool: Path
    name: str = "gateway"
    rng: random.Random = field(default_factory=random.Random)  # breaks ties among instances
    learns: bool = True  # trees of output lengths, in a process of their own once there are records enough
    redis_url: str | None = None  # None: no snapshot, no shipping (tests put a snapshot in force themselves)
    web_url: str | None = None  # of the process that has files and batches; None: there are none
    grace_s: float = 10.0
    limits: HttpLimits = field(default_factory=HttpLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)


class GatewayServer:
    """A listening gateway. Make and start it inside a running event loop."""

    def __init__(self, config: Config, when_broken: Callable[[], None] = lambda: None) -> None:
        """Opens the journal. Raises OSError when the spool folder cannot be written to.

        A background task that ends by itself is a fault: `broken` is then true and `when_broken` is called, so that
        the process ends and its supervisor starts a new one.
        """
        self._config = config
        self._when_broken = when_broken
        self.broken = False
        metrics, boosted = Metrics(), BoostedLengthPredictor()
        self.fleet = FleetView()
        self.journal = Journal(config.spool, config.name, uuid.uuid4().hex[:16])
        classifier = Classifier(boosted=boosted, trainer=LengthTrainer(boosted) if config.learns else None)
        self.clocks = ClockAsks()
        self.gate = AdmissionGate(self.clocks)
        dispatcher = Dispatcher(self.fleet, Router(metrics.routing_s, config.rng), classifier, self.gate)
        self.emergencies = Emergencies(dispatcher, self.clocks)
        self.gateway = Gateway(
            fleet=self.fleet,
            dispatcher=dispatcher,
            classifier=classifier,
            journal=self.journal,
            metrics=metrics,
            loop=asyncio.get_running_loop(),
            timeouts=config.timeouts,
            web=WebProcess(config.web_url) if config.web_url else None,
        )
        self._link: live.RedisLink | None = None
        self._shipper: Shipper | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._port = config.port

    @property
    def port(self) -> int:
        """The port listened on, also where the configured one is 0."""
        return self._port

    async def start(self) -> None:
        """Listens and begins the background tasks. Raises OSError when the port is taken."""
        config = self._config
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self.gateway, config.limits), config.host, config.port, backlog=BACKLOG
            )
        except OSError:
            self.journal.close()
            raise
        self._port = self._server.sockets[0].getsockname()[1]
        self._begin(self._keep_checking(), "checks")
        if config.redis_url is not None:
            link = self._link = live.RedisLink(config.redis_url)
            shipper = self._shipper = Shipper(self.journal, link)
            self.gateway.shipped_rows = lambda: shipper.shipped_rows
            refreshing = live.Repeated("reading the fleet snapshot", live.REFRESH_PERIOD_S)
            self._begin(live.keep_refreshing(live.Refresher(self.fleet, link), refreshing), "snapshot")
            self._begin(live.keep_listening(link, refreshing), "fleet channel")
            self._begin(live.keep_shipping(shipper), "shipper")
            self._begin(live.keep_beating(link, config.name, self.fleet), "heartbeat")

    async def stop(self) -> None:
        """Once: stops listening, lets running requests end within the grace time, ships what can be shipped."""
        gateway = self.gateway
        if gateway.draining:
            return
        gateway.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(gateway.connections):
            connection.close_if_idle()
        web_over = gateway.web.stop(self._config.grace_s) if gateway.web is not None else asyncio.sleep(0)
        await asyncio.gather(self._wait_until_idle(self._config.grace_s), web_over)
        for exchange in list(gateway.exchanges):
            exchange.stop()
        await self._wait_until_idle(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._ship_the_rest()
        self.journal.close()
        self.gate.close()
        gateway.classifier.close()
        gateway.pool.close()
        for connection in list(gateway.connections):
            connection.close_if_idle()

    async def _wait_until_idle(self, most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self.gateway.idle.wait()

    async def _ship_the_rest(self) -> None:
        if self._shipper is not None:
            try:
                await self._shipper.ship()
            except (RedisError, OSError) as error:
                log.warning("request rows stay on disk for the next gateway: %s", error)
        if self._link is not None:
            await self._link.close()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def _keep_checking(self) -> None:
        """Enforces all time limits: one sweep costs less than a timer for each request."""
        while True:
            await asyncio.sleep(CHECK_PERIOD_S)
            now_s = time.monotonic()
            for exchange in list(self.gateway.exchanges):
                exchange.check(now_s)
            for connection in list(self.gateway.connections):
                connection.check(now_s)
            self.gateway.dispatcher.look_around()
            self.emergencies.look(self.fleet.services.values(), now_s)
            self.gate.keep(instance.uid for instance in self.fleet.instances())
            self.clocks.renew(now_s)
            self.gateway.pool.prune()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.critical("the background task '%s' died", task.get_name(), exc_info=task.exception())
            self.broken = True
            self._when_broken()
