"""Connections are taken in many a turn, and those with no right to come are closed before anything is made for them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from pools.gateway.http import listener as listener_module
from pools.gateway.http.connections import ConnectionLimits, Connections
from pools.gateway.http.listener import Listener
from tests.unit.pools.gateway.conftest import until

NONE: tuple[()] = ()


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """The loop that the gateway runs on."""
    return {"uvloop": uvloop.new_event_loop}


class Made(asyncio.Protocol):
    """Notes that a connection was made."""

    all: list[Made]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.all.append(self)
        self.transport = transport


@pytest.fixture
async def made() -> AsyncIterator[list[Made]]:
    Made.all = []
    yield Made.all
    for one in Made.all:
        one.transport.close()


async def listening(connections: Connections) -> Listener:
    found = Listener(connections, Made)
    await found.start("127.0.0.1", 0)
    return found


async def clients(port: int, count: int) -> list[socket.socket]:
    """So many connections that the kernel has made, each from 127.0.0.2."""
    opened = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), 5, source_address=("127.0.0.2", 0))
        client.setblocking(False)
        opened.append(client)
    return opened


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_that_have_come_are_taken_in_within_a_few_turns(made: list[Made]) -> None:
    listener = await listening(Connections())
    opened = await clients(listener.port, 60)
    await turns(10)
    assert len(made) == 60
    listener.close()
    for client in opened:
        client.close()


async def test_those_beyond_the_rate_of_their_address_are_reset_and_nothing_is_made_for_them(made: list[Made]) -> None:
    now_s = 100.0
    connections = Connections(ConnectionLimits(unkeyed=40, unkeyed_per_s=10, proxies=NONE), lambda: now_s)
    listener = await listening(connections)
    opened = await clients(listener.port, 30)
    await turns(10)
    assert len(made) == 10, "a quarter of 40"
    assert connections.too_many == 20
    loop = asyncio.get_running_loop()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(loop.sock_recv(opened[-1], 1), 5)
    now_s += 100.0
    opened += await clients(listener.port, 1)
    await turns(10)
    assert len(made) == 11, "and later the address may come again"
    listener.close()
    for client in opened:
        client.close()


async def test_listening_goes_on_after_the_system_had_no_file_for_a_connection(
    made: list[Made], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(socket.socket):
        """Has no file for the first connection that is taken in."""

        refusals = 1

        def accept(self) -> Any:
            if Full.refusals:
                Full.refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "create_server", lambda address, **_: _listening(Full(), address))
    monkeypatch.setattr(listener_module, "PAUSE_S", 0.01)
    listener = await listening(Connections())
    opened = await clients(listener.port, 1)
    await until(lambda: bool(made))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Too many open files" in caplog.text
    listener.close()
    opened[0].close()


def _listening(made: socket.socket, address: Any) -> socket.socket:
    made.bind(address)
    made.listen()
    return made


async def test_port_that_is_taken_is_refused_and_nothing_stays_open() -> None:
    listener = await listening(Connections())
    second = Listener(Connections(), Made)
    with pytest.raises(OSError, match=rf"\[Errno {errno.EADDRINUSE}\]"):
        await second.start("127.0.0.1", listener.port)
    assert second._sockets == []
    listener.close()


async def test_name_with_two_addresses_is_listened_on_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = socket.SOCK_STREAM

    async def two(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in ("127.0.0.1", "127.0.0.3", "127.0.0.1")]

    listener = Listener(Connections(), Made)
    monkeypatch.setattr(listener, "_loop", _Loop(two))
    await listener.start("here", 0)
    assert [s.getsockname()[0] for s in listener._sockets] == ["127.0.0.1", "127.0.0.3"]
    listener.close()


class _Loop:
    def __init__(self, getaddrinfo: Any) -> None:
        self.getaddrinfo = getaddrinfo
        running = asyncio.get_running_loop()
        self.add_reader, self.remove_reader = running.add_reader, running.remove_reader
