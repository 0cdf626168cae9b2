"""A fleet that serves recorded metrics pages whose counts grow in time, by a clock that tests hand in."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from pools.agent.vllm.engine_access import EngineTls
from tests.fakes.loopback import QuietHandler, listening

PAGES = Path(__file__).parents[1] / "fixtures" / "observe"
LENGTH_S = 300.0  # between the two moments of a recorded page
BEGIN_S = 1_790_000_100.0


class HandedClock:
    """A clock that only waiting moves on. `interrupted_at_s`: Ctrl-C comes in the wait that passes this moment."""

    def __init__(self, interrupted_at_s: float | None = None) -> None:
        self.at_s = BEGIN_S
        self._interrupted_at_s = interrupted_at_s

    def now_s(self) -> float:
        return self.at_s

    def wait(self, seconds: float) -> None:
        if self._interrupted_at_s is not None and self.at_s + seconds >= self._interrupted_at_s:
            raise KeyboardInterrupt
        self.at_s += seconds


def page(name: str, share: float = 0.0) -> str:
    """Returns a recorded page: `vllm`, `sglang`, `trtllm` or `dcgm`, at a share of the time between its two moments."""
    first, last = ((PAGES / f"{name}-{k}.txt").read_text(encoding="utf-8").splitlines() for k in (0, 1))
    return "".join(f"{_between(one, other, share)}\n" for one, other in zip(first, last, strict=True))


def _between(first: str, last: str, share: float) -> str:
    if first.startswith("#"):
        return first
    name, _, value = first.rpartition(" ")
    begin, end = float(value), float(last.rpartition(" ")[2])
    return f"{name} {round(begin + share * (end - begin), 6)}"


class ServedFleet:
    """Pages by path, as a loopback server serves them. `down` has the paths that answer 503, `moved` where others are.

    `key`: what the pages ask for; empty: nothing. `shown` has by path what they were shown last.
    """

    def __init__(self, pages: Mapping[str, str], clock: HandedClock) -> None:
        self.down: set[str] = set()
        self.moved: dict[str, str] = {}
        self.key = ""
        self.shown: dict[str, str | None] = {}
        self.address = ""
        self._pages, self._clock = pages, clock

    def url(self, path: str) -> str:
        return f"{self.address}{path}"

    def body(self, path: str) -> str | None:
        name = None if path in self.down else self._pages.get(path)
        return None if name is None else page(name, min(1.0, (self._clock.at_s - BEGIN_S) / LENGTH_S))


@contextlib.contextmanager
def served(pages: Mapping[str, str], clock: HandedClock, tls: EngineTls | None = None) -> Iterator[ServedFleet]:
    """Serves the pages, named by path, on a port of this machine. `tls`: with this certificate."""
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
    fleet = ServedFleet(pages, clock)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = fleet.body(self.path)
            shown = fleet.shown[self.path] = self.headers["Authorization"]
            status = 503 if body is None else 200
            if fleet.key and shown != f"Bearer {fleet.key}":
                status, body = 401, None
            if self.path in fleet.moved:
                status = 302
            self.send_response(status)
            if status == 302:
                self.send_header("Location", fleet.url(fleet.moved[self.path]))
            self.end_headers()
            self.wfile.write((body or "").encode())

    with listening(Handler, context) as fleet.address:
        yield fleet
