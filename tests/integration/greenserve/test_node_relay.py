"""Nodes reach the embedded Redis by TLS: who shows what, who is refused, and what can be done through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings

from greenserve.servers import node_relay
from pools import wire
from pools.agent.node_identity import NodeIdentity
from pools.registration import node_users
from pools.registration.authority import CONTROL_PLANE, NODES, Authority, Certificate

PASSWORD = "password-of-n1"
HASH = sha256(PASSWORD.encode()).hexdigest()


class Relayed:
    """The relay before the tests' Redis, and a node with an identity."""

    def __init__(self, folder: Path, client: redis.Redis) -> None:
        self.folder, self.redis = folder, client
        self.secrets = folder / "secrets"
        self.now = datetime.now(UTC)
        self.identity = NodeIdentity.of(folder, "n1")
        self.signed = self.sign(Authority.open(self.secrets, NODES, self.now), self.identity)
        (folder / "redis-url").write_text(settings.REDIS_URL)
        self.ports: list[int] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def sign(self, authority: Authority, identity: NodeIdentity) -> Certificate:
        signed = authority.sign_node(identity.request("n1"), "n1", frozenset(), self.now)
        trusted = Authority.open(self.secrets, CONTROL_PLANE, self.now).certificate_pem
        identity.keep(signed.pem, authority.certificate_pem, trusted)
        return signed

    def start(self, web_port: int) -> None:
        words = ["--secrets", str(self.secrets), "--redis-port", "0", "--join-port", "0", "--web-port", str(web_port)]
        words += [
            "--redis-socket",
            urlsplit(settings.REDIS_URL).path,
            "--redis-url-file",
            str(self.folder / "redis-url"),
        ]
        self._given = node_relay.arguments(words)
        self._thread.start()
        assert self._ready.wait(5.0)

    def _run(self) -> None:
        def ready(ports: list[int]) -> None:
            self.ports = ports
            self._ready.set()

        async def run() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            await node_relay.serve(self._given, ready)

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(run())

    def end(self) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(5.0)

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=Authority.open(self.secrets, CONTROL_PLANE, self.now).certificate_pem)

    def say(self, words: bytes) -> bytes:
        """Sends this to the door for joining, and returns all that comes back."""
        with (
            socket.create_connection(("localhost", self.ports[1]), timeout=3) as plain,
            self.trust().wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(words)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def client(self, identity: NodeIdentity, host: str = "127.0.0.1") -> redis.Redis:
        url = f"rediss://node-n1:{PASSWORD}@{host}:{self.ports[0]}/0"
        return redis.Redis.from_url(identity.through_tls(url), socket_timeout=3, socket_connect_timeout=3)


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} for {self.headers['X-Forwarded-For']}".encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def relayed(redis_client: redis.Redis, tmp_path: Path) -> Iterator[Relayed]:
    made = Relayed(tmp_path, redis_client)
    node_users.admit(redis_client, "n1", HASH, made.signed.serial)
    with HTTPServer(("127.0.0.1", 0), Page) as web:
        serving = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        made.start(web.server_port)
        yield made
        made.end()
        web.shutdown()
        serving.join(5.0)
    node_users.bring_up_to_date(redis_client, node_users.Wanted({}, {}))


def test_node_reaches_its_own_keys_and_no_others(relayed: Relayed) -> None:
    with relayed.client(relayed.identity) as client:
        assert client.set(wire.agent_key("n1"), "state")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get(wire.FLEET_INDEX_KEY)
    assert relayed.redis.get(wire.agent_key("n1")) == b"state"


def test_nobody_comes_in_as_the_user_who_may_do_everything(relayed: Relayed) -> None:
    with relayed.client(relayed.identity).client() as client:
        client.ping()
        connection = client.connection
        assert connection is not None
        connection.send_command("RESET")
        connection.read_response()
        connection.send_command("GET", wire.FLEET_INDEX_KEY)
        with pytest.raises(redis.AuthenticationError):
            connection.read_response()
        connection.send_command("AUTH", "default", "")
        with pytest.raises(redis.AuthenticationError):
            connection.read_response()


def test_connection_is_refused_when_its_certificate_does_not_hold(relayed: Relayed) -> None:
    with relayed.client(relayed.identity) as client:
        assert client.ping()
        node_users.expel(relayed.redis, "n1")
        for _ in range(2):  # the connection that was open, and a new one
            with pytest.raises(redis.RedisError):
                client.ping()
    node_users.admit(relayed.redis, "n1", HASH, "another")
    with relayed.client(relayed.identity) as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_connection_is_refused_without_a_certificate_of_ours(relayed: Relayed, tmp_path: Path) -> None:
    stranger = NodeIdentity.of(tmp_path / "stranger", "n1")
    relayed.sign(Authority.open(tmp_path / "elsewhere", NODES, relayed.now), stranger)
    with relayed.client(stranger) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    bare = f"rediss://node-n1:{PASSWORD}@127.0.0.1:{relayed.ports[0]}/0?ssl_ca_certs={relayed.identity.redis_authority}"
    with redis.Redis.from_url(bare, socket_timeout=3) as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_node_refuses_a_server_that_is_not_the_control_plane(relayed: Relayed) -> None:
    relayed.identity.redis_authority.write_bytes(relayed.identity.authority.read_bytes())
    with relayed.client(relayed.identity) as client, pytest.raises(redis.ConnectionError, match=r"(?i)certificate"):
        client.ping()


def test_web_process_is_reached_for_joining_by_tls_without_a_certificate_of_ones_own(relayed: Relayed) -> None:
    where = f"https://localhost:{relayed.ports[1]}/api/v1/nodes/authority/"
    with urllib.request.urlopen(where, timeout=3, context=relayed.trust()) as answer:
        assert answer.read() == b"/api/v1/nodes/authority/ for 127.0.0.1"
    with pytest.raises(OSError, match=r"(?i)certificate"):
        urllib.request.urlopen(where, timeout=3)


def test_nothing_but_one_request_of_joining_passes_to_the_web_process(relayed: Relayed) -> None:
    for path in ("/metrics", "/api/v1/nodes/", "/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"https://localhost:{relayed.ports[1]}{path}", timeout=3, context=relayed.trust())
    hidden = b"POST /api/v1/nodes/join/ HTTP/1.1\nContent-Length: 0\n\nGET /metrics HTTP/1.1\r\n\r\n"
    assert relayed.say(hidden).startswith(b"HTTP/1.1 404 ")
    join = b"POST /api/v1/nodes/join/ HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nContent-Length: 2\r\n\r\n{}"
    said = relayed.say(join + b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    assert said.endswith(b"/api/v1/nodes/join/ for 127.0.0.1")
    assert said.count(b"HTTP/1.") == 1


def test_connection_is_refused_when_too_many_are_open(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[bytes, bytes]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(10))
            await writer.drain()
            await reader.read(1)
            writer.close()

        inner = await asyncio.start_server(echo, "127.0.0.1", 0)
        where = inner.sockets[0].getsockname()
        door = node_relay.Door("test", lambda: asyncio.open_connection(*where), most=1)
        outer = await asyncio.start_server(node_relay.Relay(door, idle_s=0.3), "127.0.0.1", 0)
        port = outer.sockets[0].getsockname()[1]
        first_reader, first_writer = await asyncio.open_connection("127.0.0.1", port)
        first_writer.write(b"hello")
        said = await first_reader.read(10)
        second_reader, second_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            refused = await second_reader.read(10)
        except ConnectionError:
            refused = b""
        assert await first_reader.read(10) == b"", "it ends when nothing is said for long"
        for writer in (first_writer, second_writer):
            writer.close()
        for server in (outer, inner):
            server.close()
        return said, refused

    assert asyncio.run(run()) == (b"hello", b"")
