"""A receiver of webhooks on the loopback: keeps what came, answers as it is set to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .loopback import QuietHandler, listening


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes


class Sink:
    """`statuses` are answered in turn, the last one from then on; `hold` keeps answers back until it is set."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.statuses = [204]
        self.headers: dict[str, str] = {}
        self.hold: threading.Event | None = None


@contextlib.contextmanager
def receiving() -> Iterator[Sink]:
    sink = Sink()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sink.received.append(Received(self.path, dict(self.headers), body))
            if sink.hold is not None:
                sink.hold.wait(20)
            status = sink.statuses.pop(0) if len(sink.statuses) > 1 else sink.statuses[0]
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in sink.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

    with listening(Handler) as sink.url:
        try:
            yield sink
        finally:
            if sink.hold is not None:
                sink.hold.set()
