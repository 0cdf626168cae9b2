"""The parts that gateway and picker share: the fleet's picture, the decision, the records, and the tasks for them."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.predictors.boosted_lengths import BoostedLengthPredictor
from pools import wire
from pools.registration.worker_hosts import WorkerHosts
from pools.wire.snapshot_signature import SnapshotVerifier

from . import redis_tasks
from .accounts.gateway_metrics import Labels, Metrics
from .accounts.request_journal import Journal
from .accounts.request_shipper import Shipper
from .classify.asked_lengths import BUDGET_S, LengthAsker
from .classify.classifier import Classifier
from .classify.learned import Learned
from .classify.length_trainer import LengthTrainer
from .classify.model_tokenizers import ModelTokenizers
from .classify.prompt_tokens import TokenizerThread
from .fleet.health_checks import HealthChecks
from .fleet.kept_snapshot import KeptSnapshot
from .fleet.view import FleetView
from .fleet.workers import Workers
from .http.connections import Connections
from .intake import Intake
from .placing import own_boards
from .placing.adapter_loader import AdapterLoader
from .placing.clock_requests import ClockRequests, PendingClockRequest
from .placing.deadline_clocks import LOOK_S, DeadlineClocks
from .placing.dispatch import Dispatcher, Gate
from .placing.early_moves import EarlyMoves
from .placing.emergencies import Emergencies
from .placing.hung_engines import HungEngines
from .placing.instance_choice import Router
from .placing.projected_admission import AdmissionGate
from .placing.shared_boards import SharedBoards

log = logging.getLogger(__name__)
CANCEL_S = 1.0  # after which a task that is cancelled and has not ended is cancelled again


@dataclass(frozen=True, slots=True)
class GatewayRuntimeConfig:
    """`name`: of the process, in records and heartbeats. `spool`: folder for rows, of this process alone."""

    spool: Path
    name: str = "gateway"
    rng: random.Random = field(default_factory=random.Random)  # breaks ties among instances
    state: Path | None = None  # folder for what it learns, over restarts; None: that is lost
    learns: bool = True  # trees of output lengths, in a process of their own once there are records enough
    tokenizers: Mapping[str, Path] = field(default_factory=dict)  # by service; before the model cards'
    redis_url: str | None = None  # None: no snapshot, no shipping (tests put a snapshot in force themselves)
    worker_hosts: WorkerHosts = field(default_factory=WorkerHosts)  # where workers may be that register themselves
    worker_key: str | None = field(default=None, repr=False)  # what those ask for; None: nothing
    engine_trust: ssl.SSLContext | None = (
        None  # whose certificates of engines count; None: those that the system trusts
    )
    verifier: SnapshotVerifier | None = None  # who signs snapshots; None: all are believed
    lengths: Path | None = None  # the socket of the predictor's process; None: there is none
    length_budget_s: float = BUDGET_S  # that a request waits for it


class GatewayRuntime:
    """Make and start it inside a running event loop; call `look_around` now and then."""

    def __init__(
        self,
        config: GatewayRuntimeConfig,
        when_broken: Callable[[], None] = lambda: None,
        before_gate: Callable[[Gate], Gate] = lambda gate: gate,
    ) -> None:
        """Opens the journal. Raises OSError when the spool folder cannot be written to.

        Args:
            when_broken: A background task that ends by itself is a fault: `broken` is then true and this is called,
                so that the process ends and its supervisor starts a new one.
            before_gate: Puts a gate of the front door's own before the dispatcher's.
        """
        self._config = config
        self._when_broken = when_broken
        self._tasks: list[asyncio.Task[None]] = []
        self._link: redis_tasks.RedisLink | None = None
        self._shipper: Shipper | None = None
        self._refresher: redis_tasks.Refresher | None = None
        self.broken = False
        self.workers = Workers(config.worker_hosts, config.engine_trust, config.worker_key)
        boosted = BoostedLengthPredictor()
        self.fleet = FleetView()
        self.metrics = Metrics()
        self.journal = Journal(config.spool, config.name, uuid.uuid4().hex[:16])
        counting = TokenizerThread({})
        self.tokenizers = ModelTokenizers(config.tokenizers, counting)
        self.classifier = Classifier(
            boosted=boosted,
            trainer=LengthTrainer(boosted) if config.learns else None,
            tokenizers=counting,
            lengths=None if config.lengths is None else LengthAsker(config.lengths, config.length_budget_s),
        )
        self.learned = None if config.state is None else Learned(config.state, config.name, self.classifier)
        self.clocks = ClockRequests()
        self.boards = SharedBoards()
        self.deadlines = DeadlineClocks(self.clocks, boards=self.boards)
        self.gate = AdmissionGate(
            self.clocks, deadlines=self.deadlines, boards=self.boards, errors=self.classifier.errors
        )
        router = Router(self.metrics.routing_s, config.rng)
        self.dispatcher = Dispatcher(self.fleet, router, self.classifier, before_gate(self.gate))
        self.adapters = AdapterLoader(self.dispatcher, self.fleet, config.engine_trust)
        self.dispatcher.wants_adapter = self.adapters.look
        self.emergencies = Emergencies(self.dispatcher, self.clocks)
        self.health = HealthChecks(self.fleet, config.engine_trust)
        self.hung = HungEngines(self.dispatcher)
        self.early = EarlyMoves(self.dispatcher, router)
        self.intake = Intake(self.fleet, self.classifier, self.journal, self.metrics, use=self.dispatcher.use)

    def metrics_page(self, in_flight: int, connections: Connections, everywhere: Labels = ()) -> bytes:
        """Returns `/metrics`. `everywhere`: labels of every sample."""
        age_s = self.fleet.age_s(time.monotonic())
        backlog = 0 if self._shipper is None else self._shipper.backlog_bytes
        gauges: dict[str, tuple[str, float]] = {
            "requests_in_flight": ("Requests being served.", in_flight),
            "client_connections": ("Open client connections.", len(connections)),
            "unkeyed_connections": ("Open client connections over which no key has come.", connections.unkeyed),
            "head_bytes": ("Heads of requests that are not complete.", connections.head_bytes),
            "body_bytes": ("Bodies of requests that come in, wait or are served.", connections.body_bytes),
            "requests_waiting": ("Requests in a queue of the gateway.", self.dispatcher.waiting),
            "instances_ready": ("Instances that take requests.", self.fleet.ready_instances),
            "instances_out": (
                "Instances that are out of rotation: they fail, hang or cannot be reached.",
                self.health.out,
            ),
            "instances_silent": ("Instances whose agents are not heard.", self.health.silent),
            "classes_panicking": ("Request classes of which most instances do not look well.", self.health.panicking),
            "snapshot_age_seconds": ("Since the fleet snapshot was confirmed.", age_s),
            "journal_backlog_bytes": ("Request rows that wait on disk to be shipped.", backlog),
            "journal_failing": ("1 while the disk takes no request rows.", float(bool(self.journal.fault))),
            "journal_held_rows": ("Request rows in memory alone, as the disk takes none.", len(self.journal.held)),
        }
        shipped = 0 if self._shipper is None else self._shipper.shipped_rows
        lengths = self.classifier.lengths
        counters: dict[str, tuple[str, float]] = {
            "journal_lost_rows_total": (
                "Request rows for which neither disk nor memory had room.",
                self.journal.lost_rows,
            ),
            "panics_total": ("Times that most instances of a class did not look well.", self.health.panics),
            "hung_engines_total": ("Times that an engine was found to hang.", self.hung.found),
            "moved_requests_total": ("Requests taken from an engine out of rotation to another.", self.hung.moved),
            "early_moves_total": ("Streams moved because their first token was overdue.", self.early.moved),
            "adapter_loads_total": ("LoRA adapters that engines have loaded for a request.", self.adapters.loads),
            "adapter_evictions_total": ("LoRA adapters unloaded to make room for one.", self.adapters.evictions),
            "adapter_failures_total": ("Times that an engine did not load a LoRA adapter.", self.adapters.failures),
            "journal_shipped_rows_total": ("Request rows confirmed by Redis.", shipped),
            "dropped_connections_total": ("Connections without a key closed in favour of others.", connections.dropped),
            "refused_connections_total": ("Connections for which there was no place.", connections.refused),
            "length_answers_total": (
                "Answers of the predictor of lengths that came in time.",
                lengths.answered if lengths else 0,
            ),
            "length_answers_late_total": (
                "Requests that waited for the predictor of lengths in vain.",
                lengths.late if lengths else 0,
            ),
            "length_answers_unread_total": (
                "Answers of the predictor of lengths without its encoder, which was behind.",
                lengths.unread if lengths else 0,
            ),
            "length_asks_left_out_total": (
                "Requests of which the predictor of lengths was not asked: it was busy, or late too often.",
                lengths.refused if lengths else 0,
            ),
            "too_many_without_key_total": (
                "Connections and requests without a key beyond those that an address may send.",
                connections.too_many,
            ),
        }
        return self.metrics.text(gauges, counters, self.classifier.counts.families(), everywhere)

    def recall(self) -> None:
        """Takes in what was learned in an earlier life. Blocks: before anybody is served."""
        if self.learned is not None:
            self.learned.recall()

    def start(self) -> None:
        """Begins the tasks that talk to Redis, those that keep what is learned, and the looks at clocks."""
        config = self._config
        self.begin(self._keep_looking(), "deadlines")
        self.begin(self.health.keep(), "health checks")
        if self.learned is not None:
            self.begin(self.learned.keep(), "learned")
        if self.classifier.lengths is not None:
            self.begin(self.classifier.lengths.keep(), "lengths")
        if config.redis_url is None:
            return
        link = self._link = redis_tasks.RedisLink(config.redis_url, verifier=config.verifier)
        self._shipper = Shipper(self.journal, link)
        self.workers.store = link
        refreshing = redis_tasks.Repeated("reading the fleet snapshot", redis_tasks.REFRESH_PERIOD_S)
        self.workers.changed = refreshing.wake.set
        kept = None if config.state is None else KeptSnapshot(config.state, config.name)
        refresher = self._refresher = redis_tasks.Refresher(self.fleet, link, self.workers, kept)
        refresher.recall()
        self.begin(redis_tasks.keep_refreshing(refresher, refreshing), "snapshot")
        self.begin(redis_tasks.keep_snapshot(refresher), "kept snapshot")
        self.begin(redis_tasks.keep_listening(link, refreshing), "fleet channel")
        self.begin(redis_tasks.keep_shipping(self._shipper), "shipper")
        asks: asyncio.Queue[PendingClockRequest] = asyncio.Queue()
        self.clocks.send = asks.put_nowait
        self.begin(redis_tasks.keep_asking(link, config.name, asks), "clock requests")
        beat = redis_tasks.Repeated("the heartbeat", redis_tasks.HEARTBEAT_PERIOD_S)
        self.dispatcher.wish = beat.wake.set  # the control plane finds by the open requests whom to wake
        beating = (link, config.name, self.fleet, self.intake.open_requests, self.journal.disk_state)
        self.begin(redis_tasks.keep_beating(*beating, self.health.unreachable, beat), "heartbeat")
        self.begin(redis_tasks.keep_sharing(link, config.name, self.dispatcher.use.message, self._charge), "use")
        self.begin(redis_tasks.keep_sharing_boards(link, config.name, self.boards, self._published), "boards")

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begins a task that goes on until `stop`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def look_around(self, now_s: float) -> None:
        """Acts on what has changed: snapshots, health, policies, emergencies. `now_s` is monotonic."""
        self.health.look(now_s)
        self.hung.look(self.fleet.instances(), now_s)
        self.dispatcher.look_around()
        self.adapters.look()
        self.emergencies.look(self.fleet.services.values(), now_s)
        uids, services = {instance.uid for instance in self.fleet.instances()}, self.fleet.services.values()
        self.gate.keep(uids, services)
        self.deadlines.keep(uids, services, now_s)
        self.clocks.renew(now_s)
        self.tokenizers.keep({service.name: service.tokenizer for service in self.fleet.services.values()})

    async def stop(self, until_s: float = 0.0) -> None:
        """Once no request is left: ends the tasks, and ships what can be shipped. `until_s`: see Shipper.finish."""
        left = set(self._tasks)
        while left:  # one whose connection breaks while it is cancelled takes that for its fault, and goes on
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=CANCEL_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.workers.close()
        await self.health.close()
        await self.adapters.close()
        if self._shipper is not None:
            await self._shipper.finish(until_s)
        if self._refresher is not None:
            try:
                self._refresher.keep()
            except OSError as error:
                log.warning("the fleet snapshot is not kept for the next start: %s", error)
        if self.learned is not None:
            await self.learned.save()
        if self._link is not None:
            await self._link.close()
        self.journal.close()
        self.gate.close()
        self.deadlines.close()
        self.tokenizers.close()
        self.classifier.close()

    def _published(self) -> wire.GatewayBoards | None:
        """Returns what other gateways are to know of engines here; None: there are none."""
        return None if self.boards.alone else own_boards.published(self.fleet.services.values(), self.fleet.instances())

    def _charge(self, messages: list[wire.GatewayUse]) -> None:
        queued, ended = self.dispatcher.use.hear(messages)
        self.dispatcher.charge(queued)
        self.intake.budgets.count_elsewhere(ended, time.time())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            self.deadlines.look(self.fleet.services, now_s)
            self.gate.look(self.fleet.services)
            self.early.look(self.fleet.services.values(), now_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.critical("the background task '%s' died", task.get_name(), exc_info=task.exception())
            self.broken = True
            self._when_broken()
