"""`python -m pools.gateway`: runs one gateway until SIGTERM or SIGINT. Reads no environment."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import errno
import gc
import logging
import resource
import signal
import sys
from pathlib import Path

import uvloop

from pools import masking
from pools.registration.worker_hosts import WorkerHosts, from_argument

from . import secret_arguments
from .classify import length_options
from .gateway_processes import PortShare
from .http import connection_options
from .http.access import MetricsAccess
from .http.connections import ConnectionLimits
from .http.request import HttpLimits
from .relay.exchange import Timeouts
from .requests import client_fields
from .server import Config, GatewayServer

BROKEN_EXIT = 1
CANNOT_START_EXIT = 2
OTHER_FILES = 512  # beside one for each client's connection, and one for its engine's
GC_THRESHOLD = 20_000  # new objects: each request makes some hundred, nearly all freed without the collector


def main(arguments: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = _config(arguments)
    masking.mask_logs(*masking.passwords(config.redis_url), config.worker_token, config.worker_key)
    try:
        return uvloop.run(_serve(config))
    except OSError as error:
        return _refuse(config, error)


async def _serve(config: Config) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = GatewayServer(config, when_broken=stop.set)
    await server.start()
    gc.freeze()  # what is here now stays: it need not be looked at again and again
    gc.set_threshold(GC_THRESHOLD)
    logging.getLogger(__name__).info("listening on http://%s:%d/v1", config.host, server.port)
    await stop.wait()
    await server.stop()
    return BROKEN_EXIT if server.broken else 0


def _refuse(config: Config, error: OSError) -> int:
    """Writes one line for whoever started it, and returns the exit status."""
    if error.errno == errno.EADDRINUSE:
        what = f"port {config.port} on {config.host} is taken: stop what uses it, or choose another with --port"
    else:
        what = str(error)
    sys.stderr.write(f"gateway: {what}\n")
    return CANNOT_START_EXIT


def _config(arguments: list[str] | None) -> Config:
    limits, timeouts = HttpLimits(), Timeouts()
    parser = argparse.ArgumentParser(prog="pools.gateway", description="The OpenAI-compatible gateway.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    secret_arguments.add_redis(parser)
    secret_arguments.add_snapshot_key(parser)
    parser.add_argument("--spool", type=Path, required=True, help="folder for request rows until Redis has them")
    parser.add_argument("--state", type=Path, help="folder for what it learns; without it a restart begins anew")
    parser.add_argument("--web-url", help="of the process that has files and batches; without it there are none")
    parser.add_argument("--name", default="gateway", help="of the process, in records and heartbeats")
    parser.add_argument(
        "--share",
        type=_share,
        metavar="N/OF",
        help="this is gateway N of OF that listen on the port together, each a process; its name is then NAME.N",
    )
    parser.add_argument("--max-body-bytes", type=int, default=limits.max_body_bytes)
    parser.add_argument("--first-byte-timeout-s", type=float, default=timeouts.first_byte_s)
    parser.add_argument("--whole-response-timeout-s", type=float, default=timeouts.whole_response_s)
    parser.add_argument("--idle-timeout-s", type=float, default=timeouts.idle_s)
    parser.add_argument(
        "--tokenizer",
        action="append",
        default=[],
        type=_tokenizer,
        metavar="SERVICE=FILE",
        help="a service's tokenizer.json, to count prompts near a border of classes (needs greenserve[tokenizers])",
    )
    parser.add_argument(
        "--worker-token-file",
        dest="worker_token",
        type=secret_arguments.from_file,
        help="file with the token that workers register with; without it they cannot",
    )
    parser.add_argument(
        "--worker-hosts",
        type=from_argument,
        default=WorkerHosts(),
        help="where they may be: addresses, networks, names, *.domains, 'private' (the default); with commas between",
    )
    length_options.add_arguments(parser)
    secret_arguments.add_engines(parser)
    connection_options.add_arguments(parser)
    client_fields.add_arguments(parser)
    parser.add_argument(
        "--metrics-token-file",
        dest="metrics_token",
        type=secret_arguments.from_file,
        help="file with the token for /metrics; without it they are for this machine alone",
    )
    given = parser.parse_args(arguments)
    secret_arguments.check_redis(parser, given)
    if given.share is not None and not given.port:
        parser.error("--share needs a --port that all of them know")
    return Config(
        host=given.host,
        port=given.port,
        spool=given.spool,
        name=given.name,
        share=given.share,
        state=given.state,
        redis_url=given.redis_url,
        verifier=given.snapshot_key_file,
        web_url=given.web_url,
        worker_token=given.worker_token,
        worker_hosts=given.worker_hosts,
        worker_key=given.worker_key,
        engine_trust=given.engine_trust,
        tokenizers=dict(given.tokenizer),
        lengths=given.lengths,
        length_budget_s=given.length_budget_s,
        limits=HttpLimits(max_body_bytes=given.max_body_bytes),
        all_clients=_within_files(connection_options.from_arguments(given)),
        metrics_access=MetricsAccess(given.metrics_token),
        fields=client_fields.from_arguments(given),
        timeouts=Timeouts(given.first_byte_timeout_s, given.whole_response_timeout_s, given.idle_timeout_s),
    )


def _within_files(limits: ConnectionLimits) -> ConnectionLimits:
    """Lets the process open as many files as its connections need, or allows only as many as it may open files for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.most + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    most = max(1, (soft - OTHER_FILES) // 2)
    logging.getLogger(__name__).warning("%d files may be open (ulimit -n): %d connections at most", soft, most)
    return dataclasses.replace(limits, most=most, unkeyed=min(limits.unkeyed, most))


def _tokenizer(given: str) -> tuple[str, Path]:
    service, separator, path = given.partition("=")
    if not separator or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"write SERVICE=FILE with a file that is there, not '{given}'")
    return service, Path(path)


def _share(given: str) -> PortShare:
    number, _, of = given.partition("/")
    try:
        return PortShare(int(number), int(of))
    except ValueError:
        raise argparse.ArgumentTypeError(f"write N/OF, like 1/4, not '{given}'") from None


if __name__ == "__main__":
    sys.exit(main())
