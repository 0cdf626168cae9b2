"""The picker's page of metrics, and whether it is ready, over plain HTTP: what Prometheus and probes ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from ..accounts.gateway_metrics import CONTENT_TYPE
from ..errors import ApiError
from ..http.client_protocol import ClientConnection
from ..http.connections import ConnectionLimits, Connections
from ..http.request import HttpLimits, Request
from ..runtime import GatewayRuntime

_LIMITS = HttpLimits(max_head_bytes=8 << 10, max_pipelined=4)
_ALL_CLIENTS = ConnectionLimits(most=256, unkeyed=256, unkeyed_of_address=64)


class StatusPage:
    """The application behind the connections. `streams`: how many requests are under way."""

    def __init__(self, runtime: GatewayRuntime, streams: Callable[[], int]) -> None:
        self._runtime, self._streams = runtime, streams
        self.connections = Connections(_ALL_CLIENTS)
        self._server: asyncio.Server | None = None
        self.draining = False
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the port cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self, _LIMITS), host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()

    def check(self, now_s: float) -> None:
        """Called now and then: closes connections that idle."""
        for connection in list(self.connections):
            connection.check(now_s)

    # -- Application -------------------------------------------------------------------------------

    def uploads(self, path: bytes) -> bool:
        return False

    def admit(self, head: Request, connection: ClientConnection) -> int:
        return 0

    def refused(self, error: ApiError) -> None: ...

    def handle(self, request: Request, connection: ClientConnection) -> None:
        path = request.path.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            connection.respond(405, ApiError(405, "Use GET here.", code="method_not_allowed").body())
        elif path == b"/metrics":
            page = self._runtime.metrics_page(self._streams(), self.connections)
            connection.respond(200, page, CONTENT_TYPE)
        elif path == b"/live":
            connection.respond(200, b'{"status":"live"}')
        elif path in (b"/ready", b"/health"):
            self._ready(connection)
        else:
            connection.respond(404, ApiError(404, "There are /metrics, /live and /ready.", code="not_found").body())

    def _ready(self, connection: ClientConnection) -> None:
        fleet = self._runtime.fleet
        reason = "the picker is shutting down" if self.draining else fleet.not_ready()
        if reason:
            body = msgspec.json.encode({"status": "not ready", "reason": reason})
            connection.respond(503, body, headers=b"retry-after: 1\r\n")
        else:
            connection.respond(200, msgspec.json.encode(fleet.ready_report(time.monotonic())))
