"""Which path does what. What engines answer becomes a `Call` and an `Exchange`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from .classify import Classifier
from .dispatch import Dispatcher
from .endpoint import BY_PATH
from .errors import SERVER_ERROR, ApiError
from .fleet import FleetView
from .intake import Intake, Refused
from .journal import Journal
from .legs import LegsExchange
from .metrics import Metrics
from .protocol import ClientConnection, Request
from .records import Call, Ending
from .relay import Context, Departure, Exchange, Timeouts
from .splitter import NONE as NO_SPLIT
from .splitter import Splitter
from .story import can_continue
from .turn import EndOfTurn
from .upstream import UpstreamPool
from .web import WebProcess, is_web_path
from .worker_desk import WorkerDesk

log = logging.getLogger(__name__)

_PLAIN = b"text/plain; version=0.0.4; charset=utf-8"

Route = Callable[[Request, ClientConnection], None]


@dataclass
class Gateway:
    """The application behind the connections."""

    fleet: FleetView
    dispatcher: Dispatcher
    classifier: Classifier
    journal: Journal
    metrics: Metrics
    intake: Intake
    loop: asyncio.AbstractEventLoop
    timeouts: Timeouts = field(default_factory=Timeouts)
    pool: UpstreamPool = field(default_factory=UpstreamPool)
    web: WebProcess | None = None  # None: no files, no batches
    workers: WorkerDesk | None = None  # None: workers cannot register themselves
    draining: bool = False
    shipped_rows: Callable[[], int] = lambda: 0
    connections: set[ClientConnection] = field(default_factory=set)
    exchanges: set[Exchange] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set while no request is served

    def __post_init__(self) -> None:
        self._started_at_s = int(time.time())
        self.idle.set()
        departures = EndOfTurn[Departure](self._see_off)
        self.splitter = Splitter(self.fleet, self.dispatcher)
        self._context = Context(self.loop, self.dispatcher, self.pool, self.timeouts, departures)
        self._routes: dict[bytes, tuple[bytes, Route]] = {
            **dict.fromkeys(BY_PATH, (b"POST", self._relay)),
            b"/v1/models": (b"GET", self._models),
            b"/live": (b"GET", self._live),
            b"/ready": (b"GET", self._ready),
            b"/metrics": (b"GET", self._metrics_page),
        }

    # -- Application -------------------------------------------------------------------------------

    def uploads(self, path: bytes) -> bool:
        return self.web is not None and path.startswith(b"/v1/files") and is_web_path(path)

    def opened(self, connection: ClientConnection) -> None:
        self.connections.add(connection)

    def closed(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)

    def refused(self, error: ApiError) -> None:
        self.metrics.refusals[error.status] += 1

    def handle(self, request: Request, connection: ClientConnection) -> None:
        try:
            self._dispatch(request, connection)
        except ApiError as error:
            self._refuse(request, connection, error)
        except Exception:
            log.exception("a request to %r failed inside the gateway", request.path)
            self._refuse(request, connection, ApiError(500, "Internal error.", kind=SERVER_ERROR))

    def _refuse(self, request: Request, connection: ClientConnection, error: ApiError) -> None:
        self.refused(error)
        respond_error(request, connection, error)

    def _dispatch(self, request: Request, connection: ClientConnection) -> None:
        path = request.path.partition(b"?")[0]
        found = self._routes.get(path)
        if found is None:
            if self.web is not None and is_web_path(request.path):
                self._relay_to_web(request, connection, self.web)
                return
            if self.workers is not None and self.workers.takes(path):
                self.workers.serve(request, connection, self._refuse)
                return
            raise ApiError(404, f"There is nothing at {path[:100].decode(errors='replace')}.", code="not_found")
        method, route = found
        if request.method != method and not (request.method == b"HEAD" and method == b"GET"):
            raise ApiError(405, f"Use {method.decode()} here.", code="method_not_allowed")
        route(request, connection)

    # -- what engines answer -----------------------------------------------------------------------

    def _relay(self, request: Request, connection: ClientConnection) -> None:
        try:
            call = self.intake.call(request, BY_PATH[request.path.partition(b"?")[0]])
        except Refused as refused:
            self._refuse_call(refused.call, connection, refused.error)
            return
        self.dispatcher.retries.earn()
        exchange = self._exchange(call, connection)
        connection.listener = exchange
        self.exchanges.add(exchange)
        self.idle.clear()
        exchange.start()

    def _exchange(self, call: Call, connection: ClientConnection) -> Exchange:
        splits = call.service.policy.split != NO_SPLIT
        wanted = (splits or call.continues) and call.stream and call.endpoint.continues
        if wanted and can_continue(call.body, call.endpoint.chat):
            return LegsExchange(call, connection, self._context, self.splitter if splits else None)
        return Exchange(call, connection, self._context)

    def _see_off(self, departures: list[Departure]) -> None:
        """Records calls that are over, and only then sends the last bytes to their clients."""
        self.intake.record_all([(departure.call, departure.ending) for departure in departures])
        for exchange, call, _, last_words in departures:
            try:
                if last_words is not None:
                    last_words()
            except Exception:
                log.exception("the last bytes of request %s cannot be sent", call.request_id)
            self.exchanges.discard(exchange)
        if not self.exchanges:
            self.idle.set()

    def _refuse_call(self, call: Call, connection: ClientConnection, error: ApiError) -> None:
        """Records a call that is refused before it is sent anywhere, then says so."""
        ending = Ending(status="client_error", http_status=error.status, error=error.message, ended_s=time.monotonic())
        self.intake.record(call, ending)
        respond_error(call.request, connection, error, call.request_id)

    def _relay_to_web(self, request: Request, connection: ClientConnection, web: WebProcess) -> None:
        self.intake.key(request)  # the web process looks for itself: this keeps strangers' uploads from it
        web.relay(request, connection)

    # -- the other paths ---------------------------------------------------------------------------

    def _models(self, request: Request, connection: ClientConnection) -> None:
        connection.respond(200, self.intake.models(request, self._started_at_s))

    def _live(self, request: Request, connection: ClientConnection) -> None:
        connection.respond(200, b'{"status":"live"}')

    def _ready(self, request: Request, connection: ClientConnection) -> None:
        reason = self.not_ready()
        if reason:
            body = msgspec.json.encode({"status": "not ready", "reason": reason})
            connection.respond(503, body, headers=b"retry-after: 1\r\n")
        else:
            body = msgspec.json.encode({"status": "ready", "instances": self.fleet.ready_instances})
            connection.respond(200, body)

    def not_ready(self) -> str:
        """Why requests cannot be served now; empty: they can."""
        if self.draining:
            return "the gateway is shutting down"
        return self.fleet.not_ready(time.monotonic())

    def _metrics_page(self, request: Request, connection: ClientConnection) -> None:
        fresh_at_s = self.fleet.fresh_at_s
        age_s = float("nan") if fresh_at_s is None else time.monotonic() - fresh_at_s
        gauges: dict[str, tuple[str, float]] = {
            "requests_in_flight": ("Requests being served.", len(self.exchanges)),
            "client_connections": ("Open client connections.", len(self.connections)),
            "requests_waiting": ("Requests in line at the gateway.", self.dispatcher.waiting),
            "instances_ready": ("Instances that take requests.", self.fleet.ready_instances),
            "snapshot_age_seconds": ("Since the fleet snapshot was confirmed.", age_s),
        }
        counters: dict[str, tuple[str, float]] = {
            "journal_lost_rows_total": ("Request rows that could not be written to disk.", self.journal.lost_rows),
            "journal_shipped_rows_total": ("Request rows confirmed by Redis.", self.shipped_rows()),
        }
        connection.respond(200, self.metrics.text(gauges, counters, self.classifier.counts.families()), _PLAIN)


def respond_error(
    request: Request, connection: ClientConnection, error: ApiError, request_id: str | None = None
) -> None:
    """Answers with an error. X-Request-Id is the client's own, else the record's, where there is one."""
    headers = b""
    identity = request.client_id() or (request_id.encode() if request_id else None)
    if identity:
        headers += b"x-request-id: %b\r\n" % identity
    if error.retry_after_s is not None:
        headers += b"retry-after: %d\r\n" % error.retry_after_s
    connection.respond(error.status, error.body(), headers=headers)
