"""What clients without a key can do to the gateway: `python -m benchmarks.hostile_clients [--connections 2000]`.

A crowd in a process of its own opens connections from many addresses of 127.0.0.0/8 and opens another for each that is
closed. Meanwhile a client with a key, at an address of its own, sends one request after the other, half of them over a
new connection. The gateway has a core to itself. Printed are its memory before and at its most, its processor time, and
the good client's share of answers and its latencies, without the crowd and with it: their ratio depends less on the
machine than they do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks import gateway_proxies as proxies
from benchmarks.gateway_load import PAGE_BYTES, TICKS_PER_S, Order, _stat, quantile_ms

CORES = 0, 1  # the gateway's; that of all others
GOOD_ADDRESS = "127.0.200.1"
ADDRESSES = 64  # that the crowd comes from
OPENED_PER_S = 2_000  # connections, also in place of those that were closed
BODY_BYTES = 256 << 10  # that a hostile client sends of the 8 MiB which it announces
PATIENCE_S = 5.0  # of the good client, for a whole answer
WATCH_S = 0.1

_POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
_WRONG_KEY = b"Authorization: Bearer gs-nobody-0123456789abcdef\r\n"
_LENGTH = b"Content-Length: %d\r\n" % (8 << 20)
_CHUNK = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"


class Hostile(asyncio.Protocol):
    """One of the crowd: sends its first bytes, then a few more each second; it never reads an answer's meaning."""

    KINDS: tuple[tuple[str, bytes, bytes], ...] = (  # name, first bytes, what follows each second
        ("idle", b"", b""),
        ("slow head", _POST, b"X"),
        ("head without an end", _POST + b"X-Long: ", b"x" * 4096),
        ("long key without an end", _POST + b"Authorization: Bearer " + b"k" * 60_000, b""),
        ("long target without an end", b"GET /" + b"t" * 60_000, b""),
        ("body without a key", _POST + _LENGTH + b"\r\n" + b"x" * BODY_BYTES, b"x"),
        ("body with a wrong key", _POST + _WRONG_KEY + _LENGTH + b"\r\n" + b"x" * BODY_BYTES, b"x"),
        ("chunks without a key", _POST + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNK * 64, _CHUNK),
        ("many requests at once", b"GET /nothing HTTP/1.1\r\n\r\n" * 200, b""),
        ("kept alive", b"GET /live HTTP/1.1\r\n\r\n", b"GET /live HTTP/1.1\r\n\r\n"),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b""),
        ("half-closed", _POST, b""),
    )

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd, self._number = crowd, number
        kinds = [kind for kind in self.KINDS if crowd.only in (None, kind[0])]
        self._kind, self._first, self._then = kinds[number % len(kinds)]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._crowd.open[self] = None
        self._transport.write(self._first)
        if self._kind == "half-closed":
            self._transport.write_eof()

    def more(self) -> None:
        if self._then and not self._transport.is_closing():
            self._transport.write(self._then)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.open.pop(self, None)
        self._crowd.missing.append(self._number)


@dataclass
class Crowd:
    """Keeps so many connections open."""

    host: str
    port: int
    size: int
    only: str | None = None  # a kind; None: all of them
    open: dict[Hostile, None] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)

    async def run(self) -> None:
        self.missing = list(range(self.size))
        loop, opened, announced = asyncio.get_running_loop(), 0, False
        while True:
            began_s = time.monotonic()
            these, self.missing = self.missing[: OPENED_PER_S // 10], self.missing[OPENED_PER_S // 10 :]
            opened += len(these)
            await asyncio.gather(*(self._open(loop, number) for number in these))
            for one in list(self.open)[int(began_s * 10) % 10 :: 10]:
                one.more()
            if opened >= self.size and not announced:
                announced = True
                print("all have come", flush=True)
            await asyncio.sleep(max(0.0, began_s + 0.1 - time.monotonic()))

    async def _open(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        address = f"127.0.{1 + number % ADDRESSES}.1"
        try:
            await loop.create_connection(lambda: Hostile(self, number), self.host, self.port, local_addr=(address, 0))
        except OSError:
            self.missing.append(number)


@dataclass
class Answers:
    """What the good client got. Latencies in microseconds."""

    sent: int = 0
    served_us: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        p50_ms, p99_ms = quantile_ms(self.served_us, 0.5), quantile_ms(self.served_us, 0.99)
        return {"sent": self.sent, "served": len(self.served_us), "p50_ms": p50_ms, "p99_ms": p99_ms}


async def be_served(order: Order, seconds: float) -> Answers:
    """Sends requests for so long: every other one over a connection of its own."""
    answers, until_s = Answers(), time.monotonic() + seconds
    kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    while time.monotonic() < until_s:
        answers.sent += 1
        began_us = time.monotonic_ns() // 1000
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = (
                    kept.pop()
                    if kept
                    else await asyncio.open_connection(order.host, order.port, local_addr=(GOOD_ADDRESS, 0))
                )
                writer.write(order.next())
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r")[0] or 0)
                await reader.readexactly(length)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            continue
        if head.startswith(b"HTTP/1.1 200 "):
            answers.served_us.append(time.monotonic_ns() // 1000 - began_us)
        if answers.sent % 2:
            kept.append((reader, writer))
        else:
            writer.close()
        await asyncio.sleep(0.002)
    return answers


async def _watch_memory(pid: int, most: list[int]) -> None:
    while True:
        most[0] = max(most[0], _memory_bytes(pid))
        await asyncio.sleep(WATCH_S)


def _memory_bytes(pid: int) -> int:
    return int((_stat(pid) or ["0"] * 22)[21]) * PAGE_BYTES


@contextlib.contextmanager
def _crowd(order: Order, args: argparse.Namespace) -> Any:
    argv = [sys.executable, "-m", "benchmarks.hostile_clients", "--crowd", f"{order.host}:{order.port}"]
    argv += ["--connections", str(args.connections), *(["--only", args.only] if args.only else [])]
    with proxies.pinned(CORES[1]):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def _figures(target: proxies.Target, order: Order, seconds: float) -> dict[str, Any]:
    before_s, began_s = _busy_s(target.pid), time.monotonic()
    figures = (await be_served(order, seconds)).figures()
    busy_s, took_s = _busy_s(target.pid) - before_s, time.monotonic() - began_s
    return {**figures, "gateway_share_of_a_core": round(busy_s / took_s, 3)}


def _busy_s(pid: int) -> float:
    """Returns the processor time of the gateway itself: what it learns, it learns in another process."""
    found = _stat(pid)
    return (int(found[11]) + int(found[12])) / TICKS_PER_S


async def measure(target: proxies.Target, args: argparse.Namespace) -> dict[str, Any]:
    order = Order(target.url, proxies.MODEL, proxies.KEY, 400, 0, 0)
    await be_served(order, 1.0)
    before_bytes = _memory_bytes(target.pid)
    alone = await _figures(target, order, args.seconds)
    most = [before_bytes]
    watching = asyncio.create_task(_watch_memory(target.pid, most))
    with _crowd(order, args) as crowd:
        arriving = asyncio.create_task(be_served(order, 1e9))
        assert crowd.stdout is not None
        await asyncio.to_thread(crowd.stdout.readline)
        arriving.cancel()
        beside = await _figures(target, order, args.seconds)
    watching.cancel()
    return {
        "connections": args.connections,
        "memory_before_mib": before_bytes / 2**20,
        "memory_gained_mib": (most[0] - before_bytes) / 2**20,
        "alone": alone,
        "beside_the_crowd": beside,
        "p50_ratio": _ratio(beside["p50_ms"], alone["p50_ms"]),
        "p99_ratio": _ratio(beside["p99_ms"], alone["p99_ms"]),
    }


def _ratio(value: float | None, to: float | None) -> float | None:
    return None if value is None or not to else value / to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the two measurements")
    parser.add_argument("--only", choices=[kind[0] for kind in Hostile.KINDS], help="of the hostile clients")
    parser.add_argument("--gateway-option", action="append", default=[], help="for the gateway, like --x=y")
    parser.add_argument("--crowd", metavar="HOST:PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, {CORES[1]})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.crowd:
        os.nice(10)  # engines and the good client, on the same core, do not wait for it
        host, _, port = args.crowd.partition(":")
        uvloop.run(Crowd(host, int(port), args.connections, args.only).run())
        return
    folder = Path(tempfile.mkdtemp(prefix="hostile-clients-"))
    with (
        proxies.engines(4, folder, CORES[1]) as (_, urls),
        proxies.greenserve(urls, folder, *CORES, sys.executable, options=args.gateway_option) as target,
    ):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(json.dumps(uvloop.run(measure(target, args)), indent=1))


if __name__ == "__main__":
    main()
