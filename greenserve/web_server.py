"""Runs the web process, `python -m greenserve.web_server`: uvicorn, with limits on what strangers may hold of it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pools.gateway.http.connections import ConnectionLimits, Connections

APPLICATION = "greenserve.asgi:application"
_HEADER_BYTES = 32  # that each header counts for beside its own


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Bounds on what a client of the web process may send, in bytes and seconds."""

    max_head_bytes: int = 64 << 10
    max_pipelined: int = 16
    head_timeout_s: float = 10.0  # from a connection's opening, or a request's first byte, to the end of the head
    body_timeout_s: float = 600.0  # and from there to the end of the body: 208 MiB at 3 Mbit/s
    idle_timeout_s: int = 5  # of a connection whose request has been answered
    # A connection has its place for good when a request's head has come over it, before that until it is the oldest.
    connections: ConnectionLimits = ConnectionLimits(most=512, unkeyed=512, unkeyed_of_address=128, of_key=512)  # noqa: RUF009 - nobody changes it


class LimitedHttp(HttpToolsProtocol):
    """One client's connection."""

    limits: ClassVar[WebLimits]
    together: ClassVar[Connections]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw_head_bytes = self._head_bytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)  # type: ignore[arg-type]
        if self.together.opened(self, self.client[0] if self.client else ""):
            self._expect_end_within(self.limits.head_timeout_s)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.together.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._timer is None:
            self._expect_end_within(self.limits.head_timeout_s)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():  # a header without an end is seen by no callback
            self._raw_head_bytes += len(data)
            if self._raw_head_bytes > self.limits.max_head_bytes:
                self.send_400_response("The request's head is too large.")
            elif self._timer is None:  # it began behind a request that is whole
                self._expect_end_within(self.limits.head_timeout_s)

    # -- parser's callbacks: uvicorn answers 400 to what they raise ------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._raw_head_bytes = self._head_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + _HEADER_BYTES)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.max_pipelined:
            raise ValueError("too many requests wait behind one that is not answered")
        self._in_head = False
        self.together.keyed(self, 0)
        self._expect_end_within(self.limits.body_timeout_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def _count_head(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > self.limits.max_head_bytes:
            raise ValueError("the head is too large")

    # -- time ------------------------------------------------------------------------------------------

    def _expect_end_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, self._too_late, seconds)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self, seconds: float) -> None:
        served = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if served:  # what came behind its request may still become one
            self._expect_end_within(seconds)
        else:
            self.abort()

    # -- for Connections -------------------------------------------------------------------------------

    def abort(self) -> None:
        self.transport.abort()

    def check(self, now_s: float) -> None: ...

    def close_if_idle(self) -> None: ...


def protocol(limits: WebLimits) -> type[LimitedHttp]:
    """Returns the protocol of all connections of a server: they share its limits."""
    shared = {"limits": limits, "together": Connections(limits.connections)}
    return type("Limited", (LimitedHttp,), shared)


def server(application: Any, host: str, port: int, limits: WebLimits, log_level: str = "info") -> uvicorn.Server:
    """Returns a server that has not been started. It changes no protocols, and believes no forwarded address."""
    return uvicorn.Server(
        uvicorn.Config(
            *(application, host, port),
            http=protocol(limits),
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_level=log_level,
            timeout_keep_alive=limits.idle_timeout_s,
            timeout_graceful_shutdown=3,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="greenserve.web_server", description="The dashboard and the REST API.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--behind-proxy", action="store_true", help="all clients have one address: no limit is by it")
    given = parser.parse_args()
    limits = WebLimits()
    if given.behind_proxy:
        of_all = dataclasses.replace(limits.connections, unkeyed_of_address=limits.connections.unkeyed)
        limits = dataclasses.replace(limits, connections=of_all)
    with contextlib.suppress(KeyboardInterrupt):
        server(APPLICATION, given.host, given.port, limits, given.log_level).run()


if __name__ == "__main__":
    main()
