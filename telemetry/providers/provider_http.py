"""The one way out to carbon and price providers: bounded in time and size, polite, and only to hosts that are allowed.

- https only, to the provider's own host or one that the operator allowed; every address that its name resolves to must
  be public, and the connection goes to the addresses that were checked, so that a name cannot change in between;
- redirects are refused, bodies are read up to a limit, and connecting, each read and the whole have time limits;
- 5xx and broken connections are tried again after a while, 429 and Retry-After become a `CoolDownError`;
- what an error says has no query, header or key.
"""

from __future__ import annotations

import asyncio
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from core.ports import AdapterError, CoolDownError, PermanentError, RetryableError

from .addresses import is_public
from .secrets import WANTED, Secret, scrub, variable

LONGEST_WAIT_S = 86_400.0  # whatever a Retry-After says
USER_AGENT = "greenserve"
Params = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one call. `retry_s` is the first wait before another try; it doubles.

    `turn_bytes` is for all answers that a client reads: a feed has a client of its own for each turn.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 20.0
    body_bytes: int = 16 << 20
    turn_bytes: int = 64 << 20
    tries: int = 3
    retry_s: float = 0.5


class Pace:
    """Keeps calls to a provider apart, so that its rate limit is never met. For one thread."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.now, self.sleep = clock, sleep
        self._free_at: dict[str, float] = {}

    def wait_s(self, provider: str) -> float:
        return max(0.0, self._free_at.get(provider, 0.0) - self.now())

    def took(self, provider: str, gap_s: float) -> None:
        self._free_at[provider] = self.now() + gap_s


@dataclass(frozen=True, slots=True)
class Outside:
    """All that adapters get from the world: keys, allowed hosts, the pace, and when to be done (of the pace's clock).

    `feed_files` is the folder of the files that feeds may read; None: those that are shipped alone. `loopback` is for
    tests: plain http to 127.0.0.1, and nothing else, is allowed then.
    """

    secrets: Mapping[str, Secret] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()
    feed_files: Path | None = None
    pace: Pace = field(default_factory=Pace)
    deadline: float | None = None
    bounds: Bounds = Bounds()
    loopback: bool = False

    def secret(self, provider: str, what: str) -> Secret:
        name = variable(provider, what)
        if name not in self.secrets:
            raise PermanentError(f"{provider}: no key: set {name} in the environment or in the secrets file")
        return self.secrets[name]


class HttpClient:
    """GETs from one provider.

    Args:
        base_url: Where it is, if the feed's configuration says; the provider's own host otherwise.
        gap_s: The least time between two calls.
    """

    def __init__(self, provider: str, host: str, outside: Outside, base_url: object = None, gap_s: float = 0.0) -> None:
        self.provider, self._outside, self._gap_s = provider, outside, gap_s
        self._left_bytes = outside.bounds.turn_bytes
        self.base_url = self._checked(f"https://{host}" if base_url is None else base_url, host)
        self._known = list(outside.secrets.values())

    def hide(self, secret: Secret) -> None:
        """Adds a text that no error may show, such as a session's token."""
        self._known.append(secret)

    def get(
        self,
        path: str,
        params: Params = (),
        headers: Mapping[str, str] | None = None,
        accept: Sequence[int] = (),
    ) -> bytes:
        """Returns the body of a 200, or of a status in `accept`. Blocks; raises AdapterError."""
        bounds, last = self._outside.bounds, None
        for number in range(bounds.tries):
            if number:
                pause_s = bounds.retry_s * 2 ** (number - 1) * (0.5 + random.random())
                if pause_s >= self._left_s():
                    break
                self._outside.pace.sleep(pause_s)
            self._wait_for_turn()
            try:
                return self._once(path, params, headers or {}, accept)
            except CoolDownError:
                raise
            except RetryableError as error:
                last = error
        raise last or RetryableError(f"{self.provider}: no time was left to ask")

    def _wait_for_turn(self) -> None:
        pace, provider = self._outside.pace, self.provider
        wait_s = pace.wait_s(provider)
        if wait_s >= self._left_s():
            raise CoolDownError(f"{provider}: its rate limit leaves no call for now", wait_s)
        if wait_s > 0.0:
            pace.sleep(wait_s)
        pace.took(provider, self._gap_s)

    def _left_s(self) -> float:
        deadline = self._outside.deadline
        return float("inf") if deadline is None else deadline - self._outside.pace.now()

    def _once(self, path: str, params: Params, headers: Mapping[str, str], accept: Sequence[int]) -> bytes:
        bounds = self._outside.bounds
        total_s = min(bounds.total_s, self._left_s())
        if total_s <= 0.0:
            raise RetryableError(f"{self.provider}: no time was left to ask")
        addresses = self._addresses(min(bounds.connect_s, total_s))
        try:
            status, reply_headers, body = asyncio.run(self._fetch(path, params, headers, addresses, total_s))
        except AdapterError:
            raise
        # The library's errors carry the whole address, query and all: none is passed on.
        except TimeoutError:
            raise RetryableError(f"{self.provider}: {path} did not answer within {total_s:.0f} s") from None
        except aiohttp.ClientPayloadError:
            raise RetryableError(f"{self.provider}: {path}: the answer ended early") from None
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            raise RetryableError(f"{self.provider}: {path}: {type(error).__name__}") from None
        if status != 200 and status not in accept:
            self._refuse(status, path, reply_headers, body)
        return body

    async def _fetch(
        self, path: str, params: Params, headers: Mapping[str, str], addresses: list[ResolveResult], total_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        bounds = self._outside.bounds
        limits = aiohttp.ClientTimeout(total=total_s, sock_connect=bounds.connect_s, sock_read=bounds.read_s)
        asked = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers}
        connector = aiohttp.TCPConnector(resolver=_Checked(addresses), force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=limits, auto_decompress=False) as session,
            session.get(self.base_url + path, params=list(params), headers=asked, allow_redirects=False) as reply,
        ):
            body = bytearray()
            async for chunk in reply.content.iter_chunked(64 << 10):
                body += chunk
                self._left_bytes -= len(chunk)
                if len(body) > bounds.body_bytes:
                    raise PermanentError(f"{self.provider}: {path}: an answer above {bounds.body_bytes} bytes is cut")
                if self._left_bytes < 0:
                    raise PermanentError(
                        f"{self.provider}: {path}: the answers of one turn of the feed have more than "
                        f"{bounds.turn_bytes} bytes together, and the last is cut: check its zone and base_url"
                    )
            return reply.status, dict(reply.headers), bytes(body)

    def _refuse(self, status: int, path: str, headers: Mapping[str, str], body: bytes) -> NoReturn:
        """Translates a status once."""
        lower = {name.lower(): value for name, value in headers.items()}
        wait_s = _retry_after_s(lower.get("retry-after"))
        where = f"{self.provider}: {path}: {status}"
        if status == 429 or (status >= 500 and wait_s is not None):
            raise CoolDownError(
                f"{where}: it wants to be left alone" + (f" for {wait_s:.0f} s" if wait_s else ""), wait_s
            )
        if status >= 500 or status in (408, 425):
            raise RetryableError(f"{where}: its fault")
        if status in (301, 302, 303, 307, 308):
            raise PermanentError(f"{where}: a redirect, which is not followed")
        said = " ".join("".join(c if c.isprintable() else " " for c in body[:2_000].decode(errors="replace")).split())
        said = f": {scrub(said, self._known)[:160]}" if said else ""
        if status in (401, 403):
            needs = [variable(self.provider, what) for what in WANTED.get(self.provider, ())]
            raise PermanentError(f"{where}: the key is refused, or does not cover this; check {', '.join(needs)}{said}")
        raise PermanentError(f"{where}{said}")

    def _checked(self, base_url: object, host: str) -> str:
        """Refuses a base URL that could reach anything but a provider."""
        where = f"{self.provider}: base_url"
        if not isinstance(base_url, str):
            raise PermanentError(f"{where} is no text")
        try:
            parts = urlsplit(base_url)
            name, port = parts.hostname or "", parts.port
        except ValueError:
            raise PermanentError(f"{where} is no URL") from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise PermanentError(f"{where} has more than a host and a path")
        if self._outside.loopback and name == "127.0.0.1" and parts.scheme == "http":
            return base_url.rstrip("/")
        if parts.scheme != "https" or port not in (None, 443):
            raise PermanentError(f"{where}: https on port 443 only")
        if name != host and name not in self._outside.hosts:
            raise PermanentError(
                f"{where}: host {name!r} is not allowed; GREENSERVE_CARBON_HOSTS names others than {host}"
            )
        return base_url.rstrip("/")

    def _addresses(self, timeout_s: float) -> list[ResolveResult]:
        parts = urlsplit(self.base_url)
        name, port = str(parts.hostname), parts.port or (80 if parts.scheme == "http" else 443)
        found = resolve(name, port, timeout_s)
        for one in found:
            if not (is_public(one["host"]) or (self._outside.loopback and one["host"] == "127.0.0.1")):
                raise PermanentError(f"{self.provider}: {name} leads to {one['host']}, which is no public address")
        return found


class _Checked(AbstractResolver):
    """Answers with addresses that were looked at already."""

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        pass


def resolve(host: str, port: int, timeout_s: float) -> list[ResolveResult]:
    """Asks for a name's addresses in a thread, since the system's call cannot be given a time limit."""
    answers: queue.SimpleQueue[list[ResolveResult] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            answers.put(
                [
                    ResolveResult(
                        hostname=host,
                        host=str(address[0]),
                        port=port,
                        family=family,
                        proto=proto,
                        flags=socket.AI_NUMERICHOST,
                    )
                    for family, _, proto, _, address in rows
                ]
            )
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True, name=f"resolve {host}").start()
    try:
        found = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise RetryableError(f"the name {host} was not resolved within {timeout_s:.0f} s") from None
    if isinstance(found, Exception) or not found:
        raise RetryableError(f"the name {host} cannot be resolved")
    return found


def _retry_after_s(value: str | None) -> float | None:
    """Reads seconds, or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        wait_s = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        wait_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()
    return min(LONGEST_WAIT_S, max(0.0, wait_s)) if wait_s == wait_s else None
