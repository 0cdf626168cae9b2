"""The gRPC service: Envoy's ExternalProcessor, and gRPC's own health check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ..requests.client_fields import ClientFields
from ..runtime import GatewayRuntime, GatewayRuntimeConfig
from . import messages
from .endpoints import AllowedOnly, Endpoints
from .processing import PickerContext, Processing
from .status_page import StatusPage

CHECK_PERIOD_S = 0.5
HEALTH = "grpc.health.v1.Health", "Check"
# HealthCheckResponse is one enum, field 1: not worth a package.
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class PickerConfig:
    host: str
    port: int
    runtime: GatewayRuntimeConfig
    tls: Tls | None = None  # None: in the clear
    max_body_bytes: int = 8 << 20
    metrics_port: int | None = None  # on the same address; None: nobody can ask for metrics
    grace_s: float = 10.0
    fields: ClientFields = field(default_factory=ClientFields)  # that clients may send to engines


class PickerServer:
    """A listening picker. Make and start it inside a running event loop."""

    def __init__(self, config: PickerConfig, when_broken: Callable[[], None] = lambda: None) -> None:
        """Opens the journal. Raises OSError when the spool folder cannot be written to.

        Args:
            when_broken: Called when a background task has died: see GatewayRuntime.
        """
        self._config = config
        self._endpoints = Endpoints()
        self.runtime = GatewayRuntime(config.runtime, when_broken, lambda gate: AllowedOnly(self._endpoints, gate))
        self.runtime.intake.fields = config.fields
        self.context = PickerContext(self.runtime, self._endpoints, config.max_body_bytes, int(time.time()))
        self._streams = 0
        self.status_page = StatusPage(self.runtime, lambda: self._streams)
        self._draining = False
        self._port = config.port
        # A message is at most a body and its head.
        self._grpc = grpc.aio.server(
            options=(("grpc.max_receive_message_length", config.max_body_bytes + (1 << 20)), ("grpc.so_reuseport", 0))
        )
        self._grpc.add_generic_rpc_handlers((_service(messages.METHOD, self._process), _health(self._check)))

    @property
    def port(self) -> int:
        """The port listened on, also where the configured one is 0."""
        return self._port

    @property
    def broken(self) -> bool:
        return self.runtime.broken

    async def start(self) -> None:
        """Listens and begins the background tasks. Raises OSError when the port cannot be had."""
        config = self._config
        where = f"[{config.host}]:{config.port}" if ":" in config.host else f"{config.host}:{config.port}"
        self.runtime.recall()
        try:
            if config.metrics_port is not None:
                await self.status_page.start(config.host, config.metrics_port)
            if config.tls is None:
                self._port = self._grpc.add_insecure_port(where)
            else:
                pairs = ((config.tls.key, config.tls.certificate),)
                self._port = self._grpc.add_secure_port(where, grpc.ssl_server_credentials(pairs))
        except OSError:
            self.runtime.journal.close()
            raise
        except RuntimeError as error:
            self.runtime.journal.close()
            self.status_page.close()
            raise OSError(f"cannot listen on {where}: {error}") from error
        await self._grpc.start()
        self.runtime.start()
        self.runtime.begin(self._keep_checking(), "checks")

    async def stop(self) -> None:
        """Once: takes no new streams, lets those that run end within the grace time, ships what can be shipped."""
        if not self._draining:
            self._draining = True
            until_s = time.monotonic() + self._config.grace_s
            await self._grpc.stop(self._config.grace_s)
            self.status_page.close()
            await self.runtime.stop(until_s)

    async def _process(self, stream: Any, context: Any) -> None:
        async def receive() -> pb.ProcessingRequest | None:
            return await anext(stream, None)

        self._streams += 1
        try:
            await Processing(self.context, receive, context.write).run()
        except messages.ProtocolError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            self._streams -= 1

    async def _check(self, _: bytes, context: Any) -> bytes:
        ready = not self._draining and not self.runtime.fleet.not_ready()
        return _SERVING if ready else _NOT_SERVING

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_PERIOD_S)
            now_s = time.monotonic()
            self.runtime.look_around(now_s)
            self.status_page.check(now_s)
            self._endpoints.keep(self.runtime.fleet.instances())


def _service(method: tuple[str, str], serve: Any) -> Any:
    service, name = method
    handler = grpc.stream_stream_rpc_method_handler(
        serve, pb.ProcessingRequest.FromString, pb.ProcessingResponse.SerializeToString
    )
    return grpc.method_handlers_generic_handler(service, {name: handler})


def _health(check: Any) -> Any:
    service, name = HEALTH
    return grpc.method_handlers_generic_handler(service, {name: grpc.unary_unary_rpc_method_handler(check)})
