"""How commands reach the web process of their own machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from greenserve.client import GreenServeError
from greenserve.commands import apply, local_token


@pytest.mark.parametrize(("https", "proto"), [("1", "https"), ("0", None)])
def test_requests_of_this_machine_come_as_from_the_proxy_when_people_come_by_https(
    https: str, proto: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The web process sends all others on to https, and no TLS is spoken there."""
    came: list[str | None] = []

    class Web(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(self.headers["X-Forwarded-Proto"])
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    @contextmanager
    def token(name: str | None, label: str) -> Iterator[str]:
        yield "gs_token"

    monkeypatch.setattr(local_token, "local_token", token)
    for name in ("GREENSERVE_URL", "GREENSERVE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Web) as server:
        Thread(target=server.handle_request).start()
        monkeypatch.setenv("GREENSERVE_WEB_PORT", str(server.server_port))
        monkeypatch.setenv("GREENSERVE_HTTPS", https)
        monkeypatch.setenv("GREENSERVE_PROXIES", https)
        with apply.client_of(None, None, None, "test") as api, suppress(GreenServeError):
            api.call("GET", "sites/")
    assert came == [proto]
