"""Runs the actuator; see the package. Ends with 0 when all clocks are back at their defaults, with 1 when not."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .actuator_protocol import DEFAULT_SOCKET, DEFAULT_STATE
from .actuator_server import Server
from .leases import Journal, Leases
from .nvml_clocks import NvmlClocks

logger = logging.getLogger("pools.actuator")

_CAP_SYS_ADMIN = 21  # linux/capability.h


def lacking() -> str:
    """Returns what this process lacks to set clocks, in words; empty: nothing."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:") and not int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1:
            return "the actuator runs without root or CAP_SYS_ADMIN"
    return ""


def main(arguments: Sequence[str] | None = None, lacks: Callable[[], str] = lacking) -> int:
    parser = argparse.ArgumentParser(prog="python -m pools.actuator", description="Holds GPU clocks under leases.")
    parser.add_argument("--socket", type=Path, default=DEFAULT_SOCKET, help="where it listens (%(default)s)")
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, help="what is locked, for its successor")
    parser.add_argument(
        "--allow-uid", type=int, action="append", default=[], help="a user that may ask, beside its own; repeatable"
    )
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    clocks = NvmlClocks(lacks())
    clocks.start()
    if clocks.refusal:
        logger.warning("%s: the node can only be measured", clocks.refusal)
    leases = Leases(clocks, Journal(chosen.state))
    try:
        given_back = Server(chosen.socket, clocks, leases, {os.geteuid(), *chosen.allow_uid}).run()
    except OSError as error:
        logger.error("%s", error)
        return 1
    return 0 if given_back else 1


if __name__ == "__main__":
    sys.exit(main())
