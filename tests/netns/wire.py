"""The network between machines: it carries IP packets late, loses some, and cuts machines off.

`python -m tests.netns.wire DELAY_MS LOSS NAME=PID=ADDRESS ...` gives each process's network namespace an interface
`net0` with this address, and forwards between them until its input ends. It hears `cut NAME` and `mend NAME` there, and
answers each with `done`. A queueing discipline could do it (netem), where the kernel has it; a TUN device is enough
everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import sys
import time

INTERFACE = "net0"
BYTES_MOST = 65_535
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_DESTINATION = slice(16, 20)  # of an IPv4 header


def open_interface(pid: int, address: str) -> int:
    """Makes the interface in the network namespace of a process and returns its file descriptor."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    _enter(there)
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI))
        for words in (f"addr add {address}/24 dev {INTERFACE}", f"link set {INTERFACE} mtu 1400 up", "link set lo up"):
            subprocess.run(["ip", *words.split()], check=True, timeout=20)
    finally:
        _enter(home)
        os.close(there)
        os.close(home)
    return tun


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Wire:
    """Forwards packets by their destination; `random` decides which are lost."""

    def __init__(self, interfaces: dict[str, tuple[int, str]], delay_s: float, loss: float, chance: random.Random):
        self._by_address = {
            bytes(map(int, address.split("."))): (name, tun) for name, (tun, address) in interfaces.items()
        }
        self._names = {tun: name for name, (tun, _) in interfaces.items()}
        self._delay_s, self._loss, self._chance = delay_s, loss, chance
        self._away: set[str] = set()
        self._late: list[tuple[float, int, int, bytes]] = []
        self._number = 0

    def hear(self, words: str) -> None:
        """Cuts a machine off, or mends it. Raises ValueError."""
        match words.split():
            case ["cut", name] if name in self._names.values():
                self._away.add(name)
            case ["mend", name] if name in self._names.values():
                self._away.discard(name)
            case _:
                raise ValueError(f"neither `cut NAME` nor `mend NAME`: {words}")

    def take(self, tun: int, packet: bytes, now_s: float) -> None:
        """Takes a packet that came from an interface. What has no destination here, or is lost, is dropped."""
        found = self._by_address.get(packet[_DESTINATION])
        if found is None or {found[0], self._names[tun]} & self._away or self._chance.random() < self._loss:
            return
        self._number += 1
        heapq.heappush(self._late, (now_s + self._delay_s, self._number, found[1], packet))

    def due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Returns what arrives by now, with the interface that it arrives at."""
        arrived = []
        while self._late and self._late[0][0] <= now_s:
            _, _, tun, packet = heapq.heappop(self._late)
            arrived.append((tun, packet))
        return arrived

    def wait_s(self, now_s: float) -> float | None:
        return max(0.0, self._late[0][0] - now_s) if self._late else None


def forward(wire: Wire, tuns: list[int]) -> None:
    """Forwards until the input ends."""
    with selectors.DefaultSelector() as selector:
        for descriptor in (*tuns, sys.stdin.fileno()):
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(wire.wait_s(time.monotonic())):
                if key.fd == sys.stdin.fileno():
                    words = os.read(key.fd, BYTES_MOST).decode()  # a line: the next comes after `done`
                    if not words:
                        return
                    wire.hear(words)
                    print("done", flush=True)
                else:
                    _read(wire, key.fd)
            for tun, packet in wire.due(time.monotonic()):
                with contextlib.suppress(OSError):  # the machine is off
                    os.write(tun, packet)


def _read(wire: Wire, tun: int) -> None:
    try:
        while True:
            wire.take(tun, os.read(tun, BYTES_MOST), time.monotonic())
    except BlockingIOError:
        return


def main() -> None:
    delay_ms, loss, *machines = sys.argv[1:]
    interfaces = {}
    for machine in machines:
        name, pid, address = machine.split("=")
        interfaces[name] = open_interface(int(pid), address), address
    print("done", flush=True)
    forward(
        Wire(interfaces, float(delay_ms) / 1000.0, float(loss), random.Random(1)),
        [tun for tun, _ in interfaces.values()],
    )


if __name__ == "__main__":
    main()
