"""A load client for timing proxies: closed loop, raw protocol. Prints one JSON object.

`python -m benchmarks.gateway_load URL --connections 50 --seconds 3 [--tokens 200 --pace-ms 10] --pid PROXY`

It says what came of the requests in a window after a warm-up, and how much CPU the proxy's process tree used meanwhile
(from /proc). Every stream is held to be wrong unless all its events, the end marker and the last chunk are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TEXT = 'The quick brown fox asked: "How much energy does a token cost?"\nNobody knew; they went on to measure it. '
_EVENT = b"data: {"
_STAMP = b'"content":" '
_TAIL_BYTES = 40  # kept of what was read before: the end marker and the last chunk may come apart
_LATENCY_EVERY = 16  # one chunk in so many has its latency taken
# What the official Python client sends beside the body's own headers.
_OPENAI_HEAD = (
    "accept-encoding: gzip, deflate\r\nconnection: keep-alive\r\nuser-agent: OpenAI/Python 2.8.0\r\n"
    "x-stainless-lang: python\r\nx-stainless-package-version: 2.8.0\r\nx-stainless-os: Linux\r\n"
    "x-stainless-arch: x64\r\nx-stainless-runtime: CPython\r\nx-stainless-runtime-version: 3.11.7\r\n"
    "x-stainless-async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n"
)
_PLAIN_HEAD = "user-agent: load\r\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process tree: CPU in seconds, resident memory in bytes."""

    user_s: float
    system_s: float
    rss_bytes: int
    processes: int = 1


def tree_usage(root: int) -> Usage:
    """Adds up `root` and all that descends from it. Ended children count only once their parent has waited for them."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(int(entry))):
            children.setdefault(int(found[1]), []).append(int(entry))
    user = system = rss = processes = 0
    queue = [root]
    while queue:
        pid = queue.pop()
        queue += children.get(pid, [])
        if found := _stat(pid):
            user += int(found[11]) + int(found[13])
            system += int(found[12]) + int(found[14])
            rss += int(found[21]) * PAGE_BYTES
            processes += 1
    return Usage(user / TICKS_PER_S, system / TICKS_PER_S, rss, processes)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return []


class Order:
    """What each request says: the same but for a number, so that no two prompts are alike."""

    def __init__(
        self, url: str, model: str, key: str, prompt_bytes: int, tokens: int, pace_ms: int, **more: Any
    ) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.tokens = tokens
        self.stream = tokens > 0
        marker = f"#NUMBER##### [tokens={tokens} pace={pace_ms} first={more.get('first_ms', 0)}] "
        text = marker + (_TEXT * (prompt_bytes // len(_TEXT) + 1))[: max(0, prompt_bytes - len(marker))]
        body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "model": model}
        body["max_tokens"] = more.get("max_tokens") or max(tokens, 16)
        if self.stream:
            body["stream"] = True
        raw = json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\naccept: application/json\r\n"
            f"content-type: application/json\r\nauthorization: Bearer {key}\r\n"
            f"{_PLAIN_HEAD if more.get('head') == 'plain' else _OPENAI_HEAD}content-length: {len(raw)}\r\n\r\n"
        )
        self._before, self._after = (head.encode() + raw).split(b"#NUMBER#####")
        self._number = 0

    def next(self) -> bytes:
        self._number += 1
        return b"%b%012d%b" % (self._before, self._number, self._after)


@dataclass(slots=True)
class Tally:
    """What was seen, in the window alone but for the faults."""

    counting: bool = False
    stopping: bool = False
    requests: int = 0
    chunks: int = 0
    reads: int = 0  # that brought chunks
    faults: Counter[str] = field(default_factory=Counter)
    ttft_us: list[int] = field(default_factory=list)
    request_us: list[int] = field(default_factory=list)
    chunk_us: list[int] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, order: Order, tally: Tally) -> None:
        self._loop, self._order, self._tally = loop, order, tally

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send()

    def _send(self) -> None:
        if self._tally.stopping:
            self._serving = False
            self._transport.close()
            return
        self._serving = True
        self._head: bytes | None = b""
        self._length: int | None = None
        self._events = 0
        self._tail = b""
        self._began_us = time.monotonic_ns() // 1000
        self._transport.write(self._order.next())

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            data = self._read_head(self._head + data)
            if self._head is not None or (not data and self._length != 0):
                return
        if self._length is not None:
            self._length -= len(data)
            if self._length <= 0:
                self._finish()
            return
        joined = self._tail + data
        events = joined.count(_EVENT) - self._tail.count(_EVENT)
        if events:
            self._count(events, data)
        if joined.endswith(b"\r\n0\r\n\r\n"):
            if self._order.stream and (self._events != self._order.tokens or b"[DONE]" not in joined):
                self._tally.faults["incomplete stream"] += 1
            self._finish()
        self._tail = joined[-_TAIL_BYTES:]

    def _read_head(self, head: bytes) -> bytes:
        end = head.find(b"\r\n\r\n")
        if end < 0:
            self._head = head
            return b""
        self._head = None
        lower = head[:end].lower()
        status = head[9:12].decode(errors="replace")
        if status != "200":
            self._tally.faults[f"HTTP {status}"] += 1
        at = lower.find(b"content-length:")
        if at >= 0:
            self._length = int(lower[at + 15 :].split(b"\r", 1)[0])
        return head[end + 4 :]

    def _count(self, events: int, data: bytes) -> None:
        tally = self._tally
        first = not self._events
        self._events += events
        if not tally.counting:
            return
        tally.chunks += events
        tally.reads += 1
        if not first and self._events % _LATENCY_EVERY:
            return
        now_us = time.monotonic_ns() // 1000
        if first:
            tally.ttft_us.append(now_us - self._began_us)
        at = data.rfind(_STAMP) + len(_STAMP)
        stamp = data[at : at + 15]
        if stamp.isdigit():
            tally.chunk_us.append(now_us - int(stamp))

    def _finish(self) -> None:
        self._serving = False
        if self._tally.counting:
            self._tally.requests += 1
            self._tally.request_us.append(time.monotonic_ns() // 1000 - self._began_us)
        self._loop.call_soon(self._again)

    def _again(self) -> None:
        if not self._transport.is_closing():
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tally.stopping:
            return
        if self._serving:
            self._tally.faults["connection lost"] += 1
        self._loop.create_task(connect(self._loop, self._order, self._tally))


async def connect(loop: asyncio.AbstractEventLoop, order: Order, tally: Tally) -> None:
    try:
        await loop.create_connection(lambda: Client(loop, order, tally), order.host, order.port)
    except OSError:
        tally.faults["not connected"] += 1


def quantile_ms(values_us: list[int], share: float) -> float | None:
    ordered = sorted(values_us)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000 if ordered else None


async def drive(order: Order, args: argparse.Namespace) -> dict[str, Any]:
    """Warms up, measures for `args.seconds`, says what there was."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    spread_s = args.tokens * args.pace_ms / 1000  # streams begin evenly spread over the length of one
    gap_s = spread_s / args.connections
    began_s = time.monotonic()
    for number in range(args.connections):
        await connect(loop, order, tally)
        if gap_s and (ahead_s := began_s + (number + 1) * gap_s - time.monotonic()) > 0:
            await asyncio.sleep(ahead_s)
    await asyncio.sleep(args.warm_s)
    before = tree_usage(args.pid)
    since_s = time.monotonic()
    tally.counting = True
    samples = await _watch(args, since_s)
    tally.counting = False
    wall_s = time.monotonic() - since_s
    after = tree_usage(args.pid)
    tally.stopping = True
    user_s, system_s = after.user_s - before.user_s, after.system_s - before.system_s
    return {
        "wall_s": wall_s,
        "requests": tally.requests,
        "chunks": tally.chunks,
        "chunks_per_read": tally.chunks / tally.reads if tally.reads else None,
        "faults": dict(tally.faults),
        "cpu_s": user_s + system_s,
        "user_s": user_s,
        "system_s": system_s,
        "rss_mb": after.rss_bytes / 1e6,
        "rss_mb_over_time": samples,
        "ttft_p50_ms": quantile_ms(tally.ttft_us, 0.5),
        "ttft_p99_ms": quantile_ms(tally.ttft_us, 0.99),
        "request_p50_ms": quantile_ms(tally.request_us, 0.5),
        "request_p99_ms": quantile_ms(tally.request_us, 0.99),
        "chunk_p50_ms": quantile_ms(tally.chunk_us, 0.5),
        "chunk_p99_ms": quantile_ms(tally.chunk_us, 0.99),
    }


async def _watch(args: argparse.Namespace, since_s: float) -> list[tuple[float, float, float]]:
    """Sleeps through the window; where asked for, takes (seconds, MB of the process, MB of its tree) now and then."""
    samples: list[tuple[float, float, float]] = []
    while (left_s := since_s + args.seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, args.sample_s) if args.sample_s else left_s)
        if args.sample_s:
            own_mb = int((_stat(args.pid) or ["0"] * 22)[21]) * PAGE_BYTES / 1e6
            samples.append((round(time.monotonic() - since_s, 1), own_mb, tree_usage(args.pid).rss_bytes / 1e6))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-s", type=float, default=0.7)
    parser.add_argument("--tokens", type=int, default=0, help="of each stream; 0: responses that are no streams")
    parser.add_argument("--pace-ms", type=int, default=0)
    parser.add_argument("--prompt-bytes", type=int, default=64)
    parser.add_argument("--head", choices=("openai", "plain"), default="openai")
    parser.add_argument("--model", default="m")
    parser.add_argument("--key", default="none")
    parser.add_argument("--pid", type=int, default=os.getpid(), help="root of the proxy's process tree")
    parser.add_argument("--sample-s", type=float, default=0.0, help="take the proxy's memory so often")
    args = parser.parse_args()
    order = Order(args.url, args.model, args.key, args.prompt_bytes, args.tokens, args.pace_ms, head=args.head)
    print(json.dumps(uvloop.run(drive(order, args))), flush=True)
    os._exit(0)  # open streams are of no more use


if __name__ == "__main__":
    main()
