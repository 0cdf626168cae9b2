"""Gateways: two of them share the port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.chaos.fault import Fault
from tests.chaos.stand import Stand
from tests.e2e.product import ROOT

ONE_OF_TWO = "The other gateway serves on; an answer that breaks off is asked for again, and each is on record once."


def _terminate(stand: Stand) -> None:
    os.kill(stand.pid("gateway.1"), signal.SIGTERM)


def _kill_again(stand: Stand) -> None:
    """Kills a gateway each time it is back, until `_stop_killing`."""
    stop = stand.kept["stop"] = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            row = stand.product.processes()["gateway.1"]
            if row["state"] == "running":
                stand.kill("gateway.1")
            stop.wait(2.0)

    stand.kept["thread"] = threading.Thread(target=go_on, daemon=True)
    stand.kept["thread"].start()


def _stop_killing(stand: Stand) -> None:
    stand.kept["stop"].set()
    stand.kept["thread"].join(10)


def _third_gateway(stand: Stand) -> None:
    """Starts a gateway more on the port, as one that an upgrade left running would stand beside the new ones."""
    line = Path(f"/proc/{stand.pid('gateway.1')}/cmdline").read_bytes()
    words = [word.decode() for word in line.split(b"\0") if word]
    words[0] = sys.executable
    words[words.index("--share") + 1] = "2/2"
    stand.kept["process"] = subprocess.Popen(
        words, cwd=ROOT, env=stand.product.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _end_third(stand: Stand) -> None:
    process = stand.kept["process"]
    process.terminate()
    process.wait(20)


FAULTS = (
    Fault(
        name="gateway killed",
        component="gateway",
        kind="killed",
        promise=ONE_OF_TWO,
        part=1,
        begin=lambda stand: stand.kill("gateway.1"),
    ),
    Fault(
        name="gateway killed again and again",
        component="gateway",
        kind="killed",
        promise=ONE_OF_TWO,
        part=1,
        begin=_kill_again,
        end=_stop_killing,
        lasts_s=15.0,
    ),
    Fault(
        name="gateway terminated",
        component="gateway",
        kind="terminated",
        promise="What it has begun is answered whole, and the other gateway takes what comes.",
        part=1,
        begin=_terminate,
    ),
    Fault(
        name="gateway frozen for 8 s",
        component="gateway",
        kind="frozen",
        promise="What it holds is answered when it goes on; nothing is lost and nothing on record twice.",
        part=1,
        begin=lambda stand: stand.freeze("gateway.1"),
        end=Stand.thaw,
        lasts_s=8.0,
    ),
    Fault(
        name="a gateway more under a name that is taken",
        component="gateway",
        kind="double",
        promise="Both serve, and no record is shipped twice.",
        part=1,
        begin=_third_gateway,
        end=_end_third,
        lasts_s=15.0,
    ),
)
