"""Decides which path does what. What engines answer becomes a `Call` and an `Exchange`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from .accounts.gateway_metrics import CONTENT_TYPE, Metrics
from .accounts.request_journal import Journal
from .classify.classifier import Classifier
from .errors import SERVER_ERROR, ApiError, nothing_at
from .fleet.view import FleetView
from .fleet.worker_api import WorkerApi
from .gateway_processes import GatewayProcesses
from .http.access import OPERATOR, MetricsAccess
from .http.client_protocol import ClientConnection
from .http.connections import Connections
from .http.loop_turn import EndOfTurn
from .http.request import HttpLimits, Request
from .http.upstream import UpstreamPool
from .intake import MODELS, Intake, Refused, asks_for_models
from .placing.dispatch import Dispatcher
from .placing.splitter import NONE as NO_SPLIT
from .placing.splitter import Splitter
from .relay.continuation import can_continue
from .relay.continued_exchange import ContinuedExchange
from .relay.exchange import Context, Exchange, Timeouts
from .relay.web_relay import WebProcess, is_web_path
from .requests.call import Call, Ending
from .requests.endpoint import BY_PATH

log = logging.getLogger(__name__)

Route = Callable[[Request, ClientConnection], None]

METRICS = b"/metrics"


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
    workers: WorkerApi | None = None  # None: workers cannot register themselves
    draining: bool = False
    metrics_page: Callable[[int, Connections], bytes] = lambda in_flight, connections: b""
    metrics_access: MetricsAccess = field(default_factory=MetricsAccess)
    limits: HttpLimits = field(default_factory=HttpLimits)
    other_gateways: GatewayProcesses | None = None  # None: nobody else listens on this port
    connections: Connections = field(default_factory=Connections)
    exchanges: set[Exchange] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set while no request is served

    def __post_init__(self) -> None:
        self._started_at_s = int(time.time())
        self._tasks: set[asyncio.Task[None]] = set()
        self.idle.set()
        departures = EndOfTurn[Exchange](self._see_off)
        self.splitter = Splitter(self.fleet, self.dispatcher)
        self._context = Context(self.loop, self.dispatcher, self.pool, self.timeouts, departures)
        open_to_all: dict[bytes, tuple[bytes, Route]] = {
            b"/live": (b"GET", self._live),
            b"/ready": (b"GET", self._ready),
            b"/health": (b"GET", self._ready),  # as clients of vLLM's call it
        }
        self._open = frozenset(open_to_all)
        self._routes: dict[bytes, tuple[bytes, Route]] = {
            **dict.fromkeys(BY_PATH, (b"POST", self._relay)),
            **open_to_all,
            MODELS: (b"GET", self._models),
            METRICS: (b"GET", self._metrics_page),
        }

    # -- Application -------------------------------------------------------------------------------

    def uploads(self, path: bytes) -> bool:
        return self.web is not None and path.startswith(b"/v1/files") and is_web_path(path)

    def admit(self, head: Request, connection: ClientConnection) -> int:
        try:
            return self._admit(head, connection)
        except ApiError:
            raise
        except Exception:
            log.exception("the head of a request to %r failed inside the gateway", head.path)
            raise ApiError(500, "Internal error.", kind=SERVER_ERROR) from None

    def _admit(self, head: Request, connection: ClientConnection) -> int:
        """Asks for the key that the path needs, and keeps it with the head. Where none is needed, no body is taken."""
        path = head.path.partition(b"?")[0]
        if path in self._open:
            self.connections.asked_without_key(connection, connection.host)
            return 0
        if path == METRICS:
            self.metrics_access.check(head, connection.host)
            connection.belongs_to(OPERATOR)
            return 0
        if self.workers is not None and self.workers.takes(path):
            self.workers.check_token(head)
            connection.belongs_to(OPERATOR)
            return self.limits.max_body_bytes
        if path in self._routes or asks_for_models(path) or (self.web is not None and is_web_path(head.path)):
            head.key = self.intake.key(head, connection.host)
            connection.belongs_to(head.key.key_id)
            return self.limits.max_upload_bytes if self.uploads(head.path) else self.limits.max_body_bytes
        raise nothing_at(path)

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
        if error.status == 401:  # of a head that was known: its key is none any more
            request.keep_alive = False
        respond_error(request, connection, error)

    def _dispatch(self, request: Request, connection: ClientConnection) -> None:
        found = self._routes.get(request.path)
        if found is None:
            path = request.path.partition(b"?")[0]
            found = self._routes.get(MODELS if asks_for_models(path) else path)
        if found is None:
            if self.workers is not None and self.workers.takes(path):
                self.workers.serve(request, connection, self._refuse)
                return
            if self.web is not None and is_web_path(request.path):
                self._relay_to_web(request, connection, self.web)
                return
            raise nothing_at(path)
        method, route = found
        if request.method != method and not (request.method == b"HEAD" and method == b"GET"):
            raise ApiError(405, f"Use {method.decode()} here.", code="method_not_allowed")
        route(request, connection)

    # -- what engines answer -----------------------------------------------------------------------

    def _relay(self, request: Request, connection: ClientConnection) -> None:
        try:
            endpoint = BY_PATH.get(request.path) or BY_PATH[request.path.partition(b"?")[0]]
            call = self.intake.call(request, endpoint, connection.host)
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
        splits = call.service.policy.split != NO_SPLIT and not call.adapter  # whose caches are its own
        wanted = (splits or call.continues) and call.stream and call.endpoint.continues
        if wanted and can_continue(call.body, call.endpoint.chat):
            return ContinuedExchange(call, connection, self._context, self.splitter if splits else None)
        return Exchange(call, connection, self._context)

    def _see_off(self, over: list[Exchange]) -> None:
        """Records calls that are over, and only then sends the last bytes to their clients."""
        self.intake.record_all([(exchange.call, exchange.ending) for exchange in over])
        for exchange in over:
            last_words, exchange.last_words = exchange.last_words, None
            try:
                if last_words is not None:
                    last_words()
            except Exception:
                log.exception("the last bytes of request %s cannot be sent", exchange.call.request_id)
            self.exchanges.discard(exchange)
        if not self.exchanges:
            self.idle.set()

    def _refuse_call(self, call: Call, connection: ClientConnection, error: ApiError) -> None:
        """Records a call that is refused before it is sent anywhere, then says so."""
        ending = Ending(status="client_error", http_status=error.status, error=error.message, ended_s=time.monotonic())
        self.intake.record(call, ending)
        respond_error(call.request, connection, error, call.request_id)

    def _relay_to_web(self, request: Request, connection: ClientConnection, web: WebProcess) -> None:
        # The web process looks for itself: this keeps strangers' uploads from it.
        self.intake.key(request, connection.host)
        web.relay(request, connection)

    # -- the other paths ---------------------------------------------------------------------------

    def _models(self, request: Request, connection: ClientConnection) -> None:
        path = request.path.partition(b"?")[0]
        connection.respond(200, self.intake.models(request, path, self._started_at_s, connection.host))

    def _live(self, request: Request, connection: ClientConnection) -> None:
        connection.respond(200, b'{"status":"live"}')

    def _ready(self, request: Request, connection: ClientConnection) -> None:
        reason = self.not_ready()
        if reason:
            body = msgspec.json.encode({"status": "not ready", "reason": reason})
            connection.respond(503, body, headers=b"retry-after: 1\r\n")
        else:
            connection.respond(200, msgspec.json.encode(self.fleet.ready_report(time.monotonic())))

    def not_ready(self) -> str:
        """Returns why requests cannot be served now; empty: they can."""
        if self.draining:
            return "the gateway is shutting down"
        return self.fleet.not_ready()

    def own_metrics(self) -> bytes:
        return self.metrics_page(len(self.exchanges), self.connections)

    def _metrics_page(self, request: Request, connection: ClientConnection) -> None:
        self.metrics_access.check(request, connection.host)
        if self.other_gateways is None:
            connection.respond(200, self.own_metrics(), CONTENT_TYPE)
            return
        connection.listener = _Patient()
        task = self.loop.create_task(self._all_metrics(connection, self.other_gateways))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _all_metrics(self, connection: ClientConnection, other_gateways: GatewayProcesses) -> None:
        try:
            page = await other_gateways.page()
        except Exception:
            log.exception("the pages of this port's gateways cannot be joined: one is shown")
            page = self.own_metrics()
        connection.respond(200, page, CONTENT_TYPE)


class _Patient:
    """The listener of an answer that is there within a second, whether or not its client waits for it."""

    def client_gone(self) -> None: ...

    def client_paused(self, paused: bool) -> None: ...


def respond_error(
    request: Request, connection: ClientConnection, error: ApiError, request_id: str | None = None
) -> None:
    """Answers with an error. X-Request-Id is the client's own, else the record's, where there is one."""
    identity = request.client_id() or (request_id.encode() if request_id else None)
    connection.respond(error.status, error.body(), headers=error.headers(identity))
