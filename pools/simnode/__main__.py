"""`python -m pools.simnode`: runs one simulated node until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import uvloop
from aiohttp import web

from core.engine import gpu_types
from core.engine.engine_params import FITTED
from core.engine.gpu_type_fields import checked, sheet_of

from .control_api import Control
from .engine.hand_over import KvLink
from .engine.side_channel import KvLinks
from .gpus import CounterFileError, GpuBank, parse_gpu_group
from .node import SimNode
from .truth import Truth, parse_truth

logger = logging.getLogger("pools.simnode")

_HOUSEKEEPING_S = 0.5  # leases lapse and counters are saved at this pace, even if nobody reads them
_CANNOT_START = 2


class CannotStart(Exception):
    """One line that says why, and what to do."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pools.simnode", description=__doc__)
    parser.add_argument("--node", required=True, type=_node_name, help="name of the node")
    parser.add_argument("--port", required=True, type=int, help="port of the control API, on 127.0.0.1")
    parser.add_argument("--gpu", required=True, action="append", metavar="TYPE:COUNT", help="GPUs; repeat for more")
    parser.add_argument(
        "--gpu-type", action="append", default=[], metavar="JSON", help="a GPU type that is not shipped, with its name"
    )
    parser.add_argument("--var", required=True, type=Path, help="folder for the energy counters")
    parser.add_argument(
        "--transition-speedup",
        type=_positive,
        default=1.0,
        help="cold starts, falling asleep and waking take this many times less (default 1)",
    )
    parser.add_argument(
        "--truth",
        type=_truth,
        metavar="TIME:POWER",
        help="engines take TIME times the engine model's seconds and POWER times its watts (default 1:1)",
    )
    links = KvLinks()
    for name, link, where in (("local", links.local, "of one node"), ("network", links.network, "of different nodes")):
        parser.add_argument(
            f"--kv-{name}-gb-per-s", type=_positive, default=link.bytes_per_s / 1e9, help=f"KV link of engines {where}"
        )
        parser.add_argument(f"--kv-{name}-latency-ms", type=_from_zero, default=link.latency_s * 1e3)
    options = parser.parse_args(argv)
    try:
        gpu_types.declare([_gpu_type(text) for text in options.gpu_type])
        options.gpu = [parse_gpu_group(text) for text in options.gpu]
    except ValueError as error:
        parser.error(str(error))
    return options


def _gpu_type(text: str) -> gpu_types.GpuType:
    """Raises ValueError."""
    values = json.loads(text)
    return checked(sheet_of(str(values.pop("name", "")), values), FITTED)


def _truth(text: str) -> Truth:
    try:
        return parse_truth(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _node_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a node name: letters, digits, dot, dash and underscore")
    return text


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0.0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _from_zero(text: str) -> float:
    value = float(text)
    if not value >= 0.0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _links(options: argparse.Namespace) -> KvLinks:
    return KvLinks(
        KvLink(options.kv_local_gb_per_s * 1e9, options.kv_local_latency_ms / 1e3),
        KvLink(options.kv_network_gb_per_s * 1e9, options.kv_network_latency_ms / 1e3),
    )


def _sole_owner(folder: Path, node: str) -> IO[str]:
    """A lock for as long as the process lives: two processes on one file would set its counters back."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / f"{node}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise CannotStart(f"another process already simulates node {node} under {folder}; stop it first") from None
    return lock


async def _serve(node: SimNode, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(Control(node).app(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
    except OSError as error:
        await runner.cleanup()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise CannotStart(f"cannot listen on 127.0.0.1:{port}: {reason}; choose another --port") from None
    logger.info("control API on http://127.0.0.1:%d", port)
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), _HOUSEKEEPING_S)
        except TimeoutError:
            node.save_counters()
    logger.info("stopping")
    await node.close()
    await runner.cleanup()


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = options.var / "simnode"
    try:
        with _sole_owner(folder, options.node):
            bank = GpuBank(options.node, options.gpu, folder / f"{options.node}.json", time.monotonic())
            logger.info("node %s simulates %d GPUs", options.node, len(bank.gpus))
            gc.freeze()  # what was imported stays: full collections need not walk it
            node = SimNode(bank, options.transition_speedup, _links(options), options.truth)
            uvloop.run(_serve(node, options.port))
    except (CannotStart, CounterFileError, OSError) as error:
        sys.stderr.write(f"pools.simnode: {error}\n")
        return _CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main())
