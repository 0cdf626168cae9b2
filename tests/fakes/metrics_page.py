"""An engine of which only `/metrics` is there."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class MetricsPage:
    """Serves `text` with `status`; both may be changed. `trickles`: a byte each half second, without an end."""

    def __init__(self, text: str = "", trickles: bool = False) -> None:
        self.text, self.status, self.asked = text, 200, 0
        self._over = threading.Event()
        page = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page.asked += 1
                data = page.text.encode()
                self.send_response(page.status)
                self.send_header("Content-Length", "1000000" if trickles else str(len(data)))
                self.end_headers()
                while trickles and not page._over.wait(0.5):
                    self.wfile.write(b"#")
                    self.wfile.flush()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> MetricsPage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
