"""Network namespaces with the wire between them, for processes of this machine that are to be far from each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.product import ROOT


def lacking() -> str:
    """Returns what this machine lacks for namespaces; empty: nothing."""
    if os.geteuid() != 0:
        return "root, for network namespaces"
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"the program {missing[0]} (util-linux, iproute2)"
    return "" if Path("/dev/net/tun").exists() else "/dev/net/tun (modprobe tun)"


class Namespaces:
    """`within`: the words before a command that is to run in the namespace at an address."""

    def __init__(self, addresses: list[str]) -> None:
        self._keepers = {
            address: subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
            )
            for address in addresses
        }
        for keeper in self._keepers.values():
            assert keeper.stdout is not None
            keeper.stdout.readline()  # it is in a namespace of its own now
        self._wire: subprocess.Popen[str] | None = None

    def connect(self, here: str, delay_ms: float, loss: float) -> None:
        """Lets the namespaces, and this process at address `here`, reach each other."""
        ends = [f"n{n}={keeper.pid}={address}" for n, (address, keeper) in enumerate(self._keepers.items())]
        words = [
            sys.executable,
            "-m",
            "tests.netns.wire",
            str(delay_ms),
            str(loss),
            *ends,
            f"here={os.getpid()}={here}",
        ]
        self._wire = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._heard()

    def within(self, address: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._keepers[address].pid}/ns/net"]

    def cut(self, address: str) -> None:
        """Loses every packet from and to an address, until `mend`."""
        self._say(f"cut n{list(self._keepers).index(address)}")

    def mend(self, address: str) -> None:
        self._say(f"mend n{list(self._keepers).index(address)}")

    def _say(self, words: str) -> None:
        assert self._wire is not None
        assert self._wire.stdin is not None
        self._wire.stdin.write(f"{words}\n")
        self._wire.stdin.flush()
        self._heard()

    def _heard(self) -> None:
        assert self._wire is not None
        assert self._wire.stdout is not None
        assert self._wire.stdout.readline() == "done\n", "the wire has ended"

    def close(self) -> None:
        for process in (self._wire, *self._keepers.values()):
            if process is not None:
                process.kill()
                process.communicate(timeout=20)  # and closes its pipes


@contextmanager
def namespaces(addresses: list[str], here: str, delay_ms: float, loss: float) -> Iterator[Namespaces]:
    found = Namespaces(addresses)
    try:
        found.connect(here, delay_ms, loss)
        yield found
    finally:
        found.close()
