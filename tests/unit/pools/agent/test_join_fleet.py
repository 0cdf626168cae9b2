"""The machine's side of a join: each way in which it can fail is a sentence with its remedy."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from core.ports import AdapterError, PermanentError, RetryableError
from pools.agent import join_faults, join_fleet, join_versions
from pools.agent.join_messages import Joined, NodeOffer
from pools.agent.node_identity import NodeIdentity
from pools.agent.vllm.vllm_options import _tls
from pools.registration.authority import NODES, Authority
from tests.fakes.certificates import self_signed
from tests.fakes.loopback import QuietHandler, listening
from tests.ports import free_port

OFFER = NodeOffer("gsj_secret", "box-1", "570", [])
PROBLEM = "application/problem+json"


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """A web server that answers each join so."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

    with listening(Handler) as url:
        yield url


def refusal(url: str, kind: type[AdapterError] = PermanentError, timeout_s: float = 5.0) -> str:
    with pytest.raises(kind) as found:
        join_fleet.send(url, OFFER, timeout_s)
    assert OFFER.token not in str(found.value)
    return str(found.value)


def problem(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_problem_is_shown_with_its_fields_and_remedy() -> None:
    errors = [{"field": "name", "detail": "It is taken.", "remedy": "Use --name."}, {"field": "", "detail": "Else."}]
    with answering(400, problem(detail="x", errors=errors), Content_Type=PROBLEM) as url:
        assert refusal(url).endswith("answered 400: name: It is taken. Use --name.; Else.")
    with answering(400, problem(detail="No such host.", remedy="Add it."), Content_Type=PROBLEM) as url:
        assert refusal(url).endswith("answered 400: No such host. Add it.")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (502, RetryableError, "GreenServe does not answer it: see `greenserve status` there"),
        (413, PermanentError, "raise the largest body that it takes"),
        (418, PermanentError, "is this the address that `greenserve node token` prints?"),
    ],
)
def test_page_of_a_proxy_is_distinguished_from_an_answer_of_greenserve(
    status: int, kind: type[AdapterError], words: str
) -> None:
    page = b"<html><head><title>Bad\n Gateway</title></head><body>nginx</body></html>"
    with answering(status, page, Content_Type="text/html") as url:
        found = refusal(url, kind)
    assert f"answered {status} with a web page that is not GreenServe's ('Bad Gateway')" in found
    assert words in found


def test_answer_of_another_program_is_no_welcome() -> None:
    with answering(200, b"<p>It works!</p>", Content_Type="text/html") as url:
        assert "'It works!', which is no answer of GreenServe's" in refusal(url)


def test_token_is_not_sent_on_when_the_address_redirects() -> None:
    with answering(301, b"", Location="https://control.example/api/v1/nodes/join/") as url:
        assert "sends on to https://control.example/api/v1/nodes/join/" in refusal(url)


def test_nobody_who_listens_and_nobody_who_answers_are_distinguished() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert "nothing listens at 127.0.0.1:" in refusal(url, RetryableError)
        taken.listen()
        assert "no answer from 127.0.0.1" in refusal(url, RetryableError, timeout_s=0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=lambda: other.accept()[0].close())
        thread.start()
        found = refusal(f"http://127.0.0.1:{other.getsockname()[1]}", RetryableError)
        thread.join()
    assert "without an answer that is HTTP" in found


def test_unknown_name_and_missing_route_name_their_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: OSError) -> None:
        def connect(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("socket.create_connection", connect)

    fail(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    assert "knows no address of 'control.example'" in refusal("https://control.example:8000", RetryableError)
    fail(OSError(113, "No route to host"))
    assert "see `ip route get control.example`" in refusal("https://control.example:8000", RetryableError)


@pytest.mark.parametrize("url", ["control.example", "ftp://control.example", "http://control.example:0", "http://[::1"])
def test_address_is_refused_when_it_is_none(url: str) -> None:
    assert "write it as https://HOST" in refusal(url)


def test_certificate_is_named_when_it_is_not_trusted(tmp_path: Path) -> None:
    context = self_signed(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, pytest.raises(ssl.SSLError):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        found = refusal(f"https://127.0.0.1:{server.getsockname()[1]}", RetryableError)
        thread.join()
    assert "does not trust the certificate of 127.0.0.1" in found
    assert "SSL_CERT_FILE" in found


def test_address_without_tls_is_named_when_https_was_given() -> None:
    with answering(200, b"") as url:
        assert "does not speak TLS; join with http://" in refusal(url.replace("http:", "https:"), RetryableError)


def test_clocks_that_differ_are_named_with_a_welcome_and_with_a_refusal() -> None:
    ahead = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    with answering(201, problem(node="box-1", cluster="oslo/main", broker_url="redis://r"), Date=ahead) as url:
        (note,) = join_fleet.send(url, OFFER).notes
    assert "s behind the control plane's. Set both by NTP" in note
    with answering(400, problem(detail="expired"), Date=ahead, Content_Type=PROBLEM) as url:
        assert "answered 400: expired This machine's clock is" in refusal(url)
    now = datetime.now(UTC)
    assert join_faults.clocks_apart(format_datetime(now - timedelta(seconds=20), usegmt=True), now) == ""
    assert join_faults.clocks_apart("", now) == ""


@pytest.mark.parametrize(
    ("node", "control", "words"),
    [
        ("0.3.1", "0.3.0", ""),
        ("0.2.9", "0.3.0", ""),
        ("", "0.3.0", ""),
        ("0.4.0", "0.3.7", "upgrade the control plane first"),
        ("0.1.0", "0.3.0", "too old for the control plane's 0.3.0: install 0.3.0 there"),
        ("0.9.0", "1.0.0", "too old"),
        ("new", "0.3.0", "no version"),
    ],
)
def test_versions_go_together_when_the_node_is_at_most_one_behind(node: str, control: str, words: str) -> None:
    found = join_versions.mismatch(node, control)
    assert words in found
    assert bool(found) == bool(words)


def test_engines_are_by_tls_at_names_of_the_certificate_alone(tmp_path: Path) -> None:
    identity, authority = NodeIdentity.of(tmp_path, "box-1"), Authority.open(tmp_path, NODES, datetime.now(UTC))
    signed = authority.sign_node(identity.request("box-1", ["10.0.0.7", "127.0.0.1"]), "box-1", (), datetime.now(UTC))
    joined = Joined("box-1", "oslo/main", "redis+socket:///r.sock", [], signed.pem)
    assert "gateways of this machine alone reach" in join_fleet.engine_notice(joined, None, None)
    assert "reach them at 10.0.0.7, by TLS" in join_fleet.engine_notice(joined, "0.0.0.0", "10.0.0.7")  # noqa: S104
    refused = join_fleet.engine_notice(joined, "10.0.0.8", None)
    assert "at 10.0.0.8, and the certificate is of box-1, 10.0.0.7, 127.0.0.1 alone" in refused
    identity.keep(signed.pem, authority.certificate_pem, "")
    words = [word.removeprefix("--").replace("tls-", "tls_") for word in join_fleet.engine_trust(identity)]
    tls = _tls(dict(zip(words[::2], words[1::2], strict=True)))
    assert tls is not None
    assert tls.trust("10.0.0.7").verify_mode is ssl.CERT_REQUIRED


def test_redis_can_be_reached_when_one_of_its_sentinels_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sentinel:
        port = sentinel.getsockname()[1]
        silent = free_port()
        assert join_fleet.unreachable(f"sentinel://:secret@127.0.0.1:{silent},127.0.0.1:{port}/cache") == ""
    why = join_fleet.unreachable(f"sentinel://:secret@127.0.0.1:{silent},127.0.0.1:{port}/cache")
    assert f"(127.0.0.1:{silent}, 127.0.0.1:{port}) cannot be reached" in why
    assert "secret" not in why
