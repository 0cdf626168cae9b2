"""A receiver of webhooks on the loopback: keeps what came, answers as it is told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    class Handler(BaseHTTPRequestHandler):
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

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    sink.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield sink
    finally:
        if sink.hold is not None:
            sink.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
