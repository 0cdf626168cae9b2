"""Whom a joining machine talks to: the control plane that made its token, and nobody in between."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from core.ports import PermanentError, RetryableError
from pools.agent import join_trust
from pools.registration.authority import Authority


class ControlPlane:
    def __init__(self, folder: Path, names: list[str]) -> None:
        now = datetime.now(UTC)
        self.authority = Authority.open(folder, "control-plane", now)
        made, key = self.authority.server("control-plane", names, now)
        (folder / "server.pem").write_bytes(key + made.pem.encode())
        said = json.dumps({"certificate": self.authority.certificate_pem}).encode()

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == join_trust.AUTHORITY_PATH else 404)
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def plane(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    made = ControlPlane(tmp_path, getattr(request, "param", ["127.0.0.1"]))
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join(5.0)
    made.server.server_close()


def open_there(plane: ControlPlane, context: ssl.SSLContext | None) -> int:
    with urllib.request.urlopen(plane.url + join_trust.AUTHORITY_PATH, timeout=3, context=context) as answer:
        return int(answer.status)


def test_control_plane_is_trusted_by_the_fingerprint_in_the_token(plane: ControlPlane) -> None:
    secret, fingerprint = join_trust.parts_of(f"gsj_secret.{plane.authority.fingerprint}")
    assert secret == "gsj_secret"
    assert open_there(plane, join_trust.context_for(plane.url, fingerprint)) == 200


def test_another_server_is_refused_before_it_gets_the_token(plane: ControlPlane) -> None:
    with pytest.raises(PermanentError, match="not the control plane that made the token"):
        join_trust.context_for(plane.url, "0" * 64)


@pytest.mark.parametrize("plane", [["control.example"]], indirect=True)
def test_server_is_refused_when_it_shows_the_authority_but_not_the_name(plane: ControlPlane) -> None:
    context = join_trust.context_for(plane.url, plane.authority.fingerprint)
    with pytest.raises(urllib.error.URLError, match=r"(?i)certificate"):
        open_there(plane, context)


def test_server_that_is_not_there_can_be_tried_again(plane: ControlPlane) -> None:
    with pytest.raises(RetryableError, match="nodes/authority"):
        join_trust.context_for("https://127.0.0.1:1", "0" * 64)


def test_token_without_a_fingerprint_needs_a_server_that_the_machine_trusts(plane: ControlPlane) -> None:
    with pytest.raises(urllib.error.URLError, match=r"(?i)certificate"):
        open_there(plane, join_trust.context_for(plane.url, ""))


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "http://control.example"])
def test_plain_http_is_refused_unless_it_is_asked_for(url: str) -> None:
    with pytest.raises(PermanentError, match="--plain-http"):
        join_trust.context_for(url, "")
    assert join_trust.context_for(url, "", plain_http=True) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"])
def test_plain_http_is_fine_on_one_machine(url: str) -> None:
    assert join_trust.context_for(url, "") is None
