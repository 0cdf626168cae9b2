"""Lets nodes reach the control plane by TLS: the embedded Redis, and the web process for joining.

    python -m greenserve.servers.node_relay --secrets FOLDER --host HOST --redis-port PORT --redis-socket SOCKET
        --redis-url-file FILE --join-port PORT --web-port PORT --name NAME

Bytes of Redis pass as they are. To it come only connections that show a certificate of the authority for nodes whose
serial number holds now; there the node gives its own user's name and password. To the web process comes who will: a
machine that is to join has no certificate yet, and knows ours by its fingerprint. So nothing but requests of joining
passes there, one for each connection: the web process would take others for this machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from redis.exceptions import RedisError

from pools import masking, own_address, redis_address, wire
from pools.agent.node_identity import names_of_machine
from pools.registration.authority import CONTROL_PLANE, NODES, Authority

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
CONNECT_S = 5.0
IDLE_S = 120.0  # agents say something each second, and listeners ping
RENEWED_S = 86_400.0  # how often the servers' own certificate is made anew
MOST_TO_REDIS, MOST_TO_WEB = 10_000, 64
CHUNK_BYTES = 65_536
JOINING = (b"POST /api/v1/nodes/join/ ", b"GET /api/v1/nodes/authority/ ")
MOST_BODY_BYTES = 1 << 20
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Door:
    """A listener: where it leads to, who may come in, and how many at a time.

    Attributes:
        admits: Asked with the certificate's serial number, hexadecimal; None: all may come in.
        only: Reads what may pass from a connection of this address, once; None: all that comes passes.
    """

    name: str
    lead: Callable[[], Awaitable[Streams]]
    most: int
    admits: Callable[[str], Awaitable[bool]] | None = None
    only: Callable[[asyncio.StreamReader, str], Awaitable[bytes]] | None = None


class NotForJoining(Exception):
    """What came is no request of a machine that joins."""


async def joining_request(reader: asyncio.StreamReader, address: str) -> bytes:
    """Reads one request of a machine that joins, and returns it in words that end the connection after its answer.

    Raises NotForJoining.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n").split(b"\r\n")
            fields = [(line.partition(b":")[0].strip().lower(), line) for line in lines]
            names = [name for name, _ in fields]
            if not first.startswith(JOINING) or b"transfer-encoding" in names or names.count(b"content-length") > 1:
                raise NotForJoining
            if any(byte in line for line in (first, *lines) for byte in (b"\n", b"\r")):  # other ends of lines, to some
                raise NotForJoining
            size = next((int(line.partition(b":")[2]) for name, line in fields if name == b"content-length"), 0)
            if not 0 <= size <= MOST_BODY_BYTES:
                raise NotForJoining
            body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError) as error:
        raise NotForJoining from error
    kept = [line for name, line in fields if name not in (b"connection", b"forwarded") and b"x-forwarded" not in name]
    ours = (b"Connection: close", b"X-Forwarded-For: " + address.encode())
    return b"\r\n".join((first, *kept, *ours, b"", b"")) + body


class Relay:
    """Passes the connections of one listener on. Use as `asyncio.start_server`'s callback."""

    def __init__(self, door: Door, idle_s: float = IDLE_S) -> None:
        self._door = door
        self._idle_s = idle_s
        self._open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= self._door.most:
            log.warning("%s: %d connections are open; another is refused", self._door.name, self._open)
            writer.transport.abort()
            return
        self._open += 1
        try:
            if await self._may_enter(writer):
                await self._relay(reader, writer)
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                async with asyncio.timeout(CONNECT_S):
                    await writer.wait_closed()
            writer.transport.abort()

    async def _may_enter(self, writer: asyncio.StreamWriter) -> bool:
        if self._door.admits is None:
            return True
        shown = writer.get_extra_info("peercert") or {}
        serial = f"{int(shown.get('serialNumber', '0'), 16):x}"
        try:
            if await self._door.admits(serial):
                return True
            log.warning("%s: certificate %s is revoked, or not known; refused", self._door.name, serial)
        except (RedisError, OSError) as error:
            log.warning("%s: nobody can be let in: %s", self._door.name, error)
        return False

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = b""
        if self._door.only is not None:
            try:
                said = await self._door.only(reader, writer.get_extra_info("peername")[0])
            except NotForJoining:
                writer.write(NOT_FOUND)
                return
        try:
            async with asyncio.timeout(CONNECT_S):
                inner_reader, inner_writer = await self._door.lead()
        except OSError as error:  # a time-out is one
            log.warning("%s: what is behind it does not answer: %s", self._door.name, error)
            return
        if self._door.only is not None:
            inner_writer.write(said)
            await self._pass_on(inner_reader, writer)
            inner_writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self._pass_on(reader, inner_writer)),
            asyncio.create_task(self._pass_on(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(ways[1:], timeout=CONNECT_S)  # the answer to who has said all
        finally:
            for way in ways:
                way.cancel()
            inner_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes bytes on until there are no more, or none have come for too long."""
        with contextlib.suppress(OSError, ssl.SSLError):
            while True:
                async with asyncio.timeout(self._idle_s):
                    data = await reader.read(CHUNK_BYTES)
                if not data:
                    break
                writer.write(data)
                async with asyncio.timeout(self._idle_s):
                    await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()


class ServerTls:
    """The TLS of both listeners, with a certificate that `renew` makes anew."""

    def __init__(self, secrets_dir: Path, names: Sequence[str]) -> None:
        self._secrets_dir = secrets_dir
        self._names = [*own_address.OWN, *names]
        self.open = self._context()
        self.for_nodes = self._context()
        self.for_nodes.verify_mode = ssl.CERT_REQUIRED
        nodes = Authority.open(secrets_dir, NODES, datetime.now(UTC))
        self.for_nodes.load_verify_locations(cadata=nodes.certificate_pem)
        self.renew()

    @staticmethod
    def _context() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def renew(self) -> None:
        """Makes a new certificate: connections from now on see it."""
        now = datetime.now(UTC)
        authority = Authority.open(self._secrets_dir, CONTROL_PLANE, now)
        made, key = authority.server("control-plane", self._names, now)
        with tempfile.NamedTemporaryFile(dir=self._secrets_dir) as file:  # 0600; ssl reads files alone
            file.write(key + made.pem.encode() + authority.certificate_pem.encode())
            file.flush()
            for context in (self.open, self.for_nodes):
                context.load_cert_chain(file.name)


async def serve(given: argparse.Namespace, ready: Callable[[list[int]], None] = lambda _: None) -> None:
    """Serves until it is cancelled. `ready` gets the ports, of Redis' door first. Raises OSError."""
    tls = ServerTls(given.secrets, [*given.name, *names_of_machine()])
    client = redis_address.connect_async(given.redis_url, socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S)
    servers: list[asyncio.Server] = []

    async def holds(serial: str) -> bool:
        return bool(await client.hexists(wire.CERTIFICATES_KEY, serial))

    async def listen(door: Door, port: int, context: ssl.SSLContext) -> None:
        servers.append(
            await asyncio.start_server(Relay(door), given.host, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S)
        )

    try:
        if given.redis_port is not None:
            to_redis = Door(
                "Redis", lambda: asyncio.open_unix_connection(str(given.redis_socket)), MOST_TO_REDIS, holds
            )
            await listen(to_redis, given.redis_port, tls.for_nodes)
        if given.join_port is not None:
            to_web = Door(
                "joining",
                lambda: asyncio.open_connection("127.0.0.1", given.web_port),
                MOST_TO_WEB,
                only=joining_request,
            )
            await listen(to_web, given.join_port, tls.open)
        ready([server.sockets[0].getsockname()[1] for server in servers])
        while True:
            await asyncio.sleep(RENEWED_S)
            tls.renew()
    finally:
        for server in servers:
            server.close()
        await redis_address.close_async(client)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Lets nodes reach the control plane by TLS.")
    parser.add_argument("--secrets", type=Path, required=True, help="folder of the authorities")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument("--redis-port", type=int, help="where nodes reach Redis")
    parser.add_argument("--redis-socket", type=Path, help="of the embedded Redis")
    parser.add_argument(
        "--redis-url-file",
        dest="redis_url",
        required=True,
        type=lambda path: Path(path).read_text().strip(),
        help="file with its address, which has the password in it",
    )
    parser.add_argument("--join-port", type=int, help="where machines join")
    parser.add_argument("--web-port", type=int, help="of the web process, on this machine")
    parser.add_argument("--name", action="append", default=[], help="by which nodes reach this machine; repeat it")
    return parser.parse_args(words)


def main() -> None:
    given = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    masking.mask_logs(*masking.passwords(given.redis_url))

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serve(given)

    asyncio.run(run())


if __name__ == "__main__":
    main()
