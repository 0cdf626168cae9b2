"""`python -m pools.gateway.picker`: runs one endpoint picker until SIGTERM or SIGINT. Reads no environment."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from pools import masking
from pools.registration.worker_hosts import WorkerHosts, from_argument

from .. import secret_arguments
from ..classify import length_options
from ..requests import client_fields

BROKEN_EXIT = 1
CANNOT_START_EXIT = 2
MISSING = "the packages of the extra 'picker' are not installed: pip install 'greenserve[picker]'"


def main(arguments: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = _parser()
    given = parser.parse_args(arguments)
    secret_arguments.check_redis(parser, given)
    masking.mask_logs(*masking.passwords(given.redis_url), given.worker_key)
    try:
        return uvloop.run(_serve(given))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("grpc", "envoy", "google"):
            raise
        return _refuse(MISSING)
    except OSError as error:
        return _refuse(str(error))


async def _serve(given: argparse.Namespace) -> int:
    from ..runtime import GatewayRuntimeConfig
    from .picker_server import PickerConfig, PickerServer, Tls

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tls = Tls(given.tls_certificate.read_bytes(), given.tls_key.read_bytes()) if given.tls_certificate else None
    runtime = GatewayRuntimeConfig(
        *(given.spool, given.name),
        state=given.state,
        redis_url=given.redis_url,
        worker_hosts=given.worker_hosts,
        worker_key=given.worker_key,
        engine_trust=given.engine_trust,
        verifier=given.snapshot_key_file,
        lengths=given.lengths,
        length_budget_s=given.length_budget_s,
    )
    fields = client_fields.from_arguments(given)
    config = PickerConfig(given.host, given.port, runtime, tls, given.max_body_bytes, given.metrics_port, fields=fields)
    server = PickerServer(config, stop.set)
    await server.start()
    logging.getLogger(__name__).info("listening on %s:%d", given.host, server.port)
    await stop.wait()
    await server.stop()
    return BROKEN_EXIT if server.broken else 0


def _refuse(what: str) -> int:
    """Writes one line for whoever started it, and returns the exit status."""
    sys.stderr.write(f"picker: {what}\n")
    return CANNOT_START_EXIT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pools.gateway.picker", description="The endpoint picker for Envoy (ext_proc)."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9002)
    secret_arguments.add_redis(parser)
    secret_arguments.add_snapshot_key(parser)
    parser.add_argument("--spool", type=Path, required=True, help="folder for request rows, of this process alone")
    parser.add_argument("--state", type=Path, help="folder for what it learns; without it a restart begins anew")
    parser.add_argument("--metrics-port", type=int, help="of /metrics, /live and /ready; without it: none")
    parser.add_argument("--name", default="picker", help="of the process, in records and heartbeats")
    parser.add_argument(
        "--worker-hosts",
        type=from_argument,
        default=WorkerHosts(),
        help="where workers may be that register themselves",
    )
    length_options.add_arguments(parser)
    secret_arguments.add_engines(parser)
    client_fields.add_arguments(parser)
    parser.add_argument("--max-body-bytes", type=int, default=8 << 20)
    parser.add_argument("--tls-certificate", type=Path, help="PEM file; without it Envoy is spoken to in the clear")
    parser.add_argument("--tls-key", type=Path, help="PEM file of its key")
    return parser


if __name__ == "__main__":
    sys.exit(main())
