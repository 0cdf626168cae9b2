"""Ports for servers that a test starts in other processes."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

# Below those that the kernel gives to whoever asks for any: between a test's asking and its server's start, dozens of
# other processes of the run ask.
FIRST, COUNT = 12_000, 20_000
_LAST = Path(tempfile.gettempdir()) / f"greenserve-test-ports-{os.getuid()}"


def free_port() -> int:
    """One that no other test of this machine was given recently, and nobody listens on."""
    with _LAST.open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        given = int(last.read() or 0)
        for number in range(given + 1, given + 1 + COUNT):
            port = FIRST + number % COUNT
            if _free(port):
                last.truncate(0)
                last.write(str(number))
                return port
    raise AssertionError(f"no port from {FIRST} to {FIRST + COUNT - 1} is free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
