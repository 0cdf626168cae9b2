"""The agent's connections: Redis that is away or silent, broker URLs, and its HTTP client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.ports import PermanentError, RetryableError
from pools.agent.http_client import HttpClient
from pools.agent.redis_link import TIMEOUT_S, LinkError, RedisLink, redis_url
from pools.wire import AgentState, Heartbeat
from tests.ports import free_port


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
        ("redis+socket:///run/redis.sock", "unix:///run/redis.sock?db=0"),
        ("redis+socket:///run/redis.sock?virtual_host=3", "unix:///run/redis.sock?db=3"),
        ("unix:///run/redis.sock?db=4", "unix:///run/redis.sock?db=4"),
    ],
)
def test_redis_url_is_made_from_the_broker_url_when_it_is_redis(broker: str, url: str) -> None:
    assert redis_url(broker) == url


def test_broker_is_refused_when_it_is_not_redis() -> None:
    with pytest.raises(ValueError, match="must be Redis, not amqp"):
        redis_url("amqp://guest@localhost//")


def test_link_fails_at_once_when_redis_is_not_there(tmp_path: Path) -> None:
    link = RedisLink(f"unix://{tmp_path}/none.sock", "n1")
    started_s = time.monotonic()
    with pytest.raises(LinkError, match="Redis"):
        link.desired()
    with pytest.raises(LinkError, match="Redis"):
        link.send(AgentState("n1", "b", 1.0, None, []), Heartbeat("node.n1", 1.0, 1.0), [])
    assert time.monotonic() - started_s < TIMEOUT_S, "not waited for"
    link.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_link_fails_within_its_time_out_when_redis_is_silent(silent_port: int) -> None:
    link = RedisLink(f"redis://127.0.0.1:{silent_port}/0", "n1", timeout_s=0.1)
    with pytest.raises(LinkError, match=r"[Tt]imeout"):
        link.desired()
    link.close()


def answering(*answers: bytes) -> int:
    """A server whose connections get one answer each and are closed then."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def reply(status: int, body: bytes = b"ok") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def test_call_is_made_again_when_the_kept_connection_was_closed() -> None:
    client = HttpClient(f"http://127.0.0.1:{answering(reply(200, b'one'), reply(200, b'two'))}", 1.0)
    assert client.call("GET", "/") == b"one"
    assert client.call("GET", "/") == b"two"
    client.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reply(400, b"bad clock"), PermanentError),
        (reply(404), PermanentError),
        (reply(409), RetryableError),
        (reply(503), RetryableError),
        (b"", RetryableError),
        (b"SSH-2.0-nope\r\n", RetryableError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", RetryableError),
    ],
)
def test_fault_is_translated_when_the_answer_is_none(answer: bytes, error: type[Exception]) -> None:
    client = HttpClient(f"http://127.0.0.1:{answering(answer)}", 1.0)
    with pytest.raises(error):
        client.call("GET", "/")
    client.close()


def test_call_ends_within_its_time_out_when_the_server_is_silent(silent_port: int) -> None:
    client = HttpClient(f"http://127.0.0.1:{silent_port}", 0.2)
    started_s = time.monotonic()
    with pytest.raises(RetryableError, match="did not answer in time"):
        client.call("GET", "/")
    assert time.monotonic() - started_s < 5.0


def test_call_is_retryable_when_nothing_listens() -> None:
    with pytest.raises(RetryableError, match="refused"):
        HttpClient(f"http://127.0.0.1:{free_port()}", 1.0).call("GET", "/")


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://127.0.0.1:1", "http://127.0.0.1", "http://:5"])
def test_url_is_refused_when_it_is_no_host_and_port(url: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        HttpClient(url, 1.0)
