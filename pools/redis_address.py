"""Reads where Redis is, from one setting for all clients: a server, or sentinels that know which server is the master.

`redis://`, `rediss://` and `unix://` are redis-py's own. With sentinels:

    sentinel://USER:PASSWORD@HOST1:26379,HOST2:26379,HOST3:26379/SERVICE?db=0&sentinel_password=SECRET

USER and PASSWORD are the servers', SERVICE is the name that the sentinels know the master by. A client asks a sentinel
for each new connection, so that it finds the new master after a failover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    import redis
    import redis.asyncio

SCHEME = "sentinel"
PORT = 26379
SERVER_PORT = 6379
OPTIONS = {"db", "password", "sentinel_username", "sentinel_password"}


@dataclass(frozen=True, slots=True)
class Sentinels:
    """`server`: credentials of the servers and the database's number. `own`: credentials of the sentinels."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    server: dict[str, Any]
    own: dict[str, str]


def sentinels(url: str) -> Sentinels | None:
    """Returns what an address of sentinels says; None: it is that of a server. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME:
        return None
    credentials, _, hosts = parts.netloc.rpartition("@")
    query = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    if unknown := query.keys() - OPTIONS:
        raise ValueError(f"unknown options: {', '.join(sorted(unknown))}")
    service = unquote(parts.path.strip("/"))
    if not service or "/" in service:
        raise ValueError("the name of the master's service is missing")
    user, _, password = credentials.partition(":")
    server: dict[str, Any] = {"db": int(query.get("db", "0"))}
    if user:
        server["username"] = unquote(user)
    if word := unquote(password) or query.get("password"):
        server["password"] = word
    own = {name.removeprefix("sentinel_"): word for name, word in query.items() if name.startswith("sentinel_")}
    return Sentinels(tuple(_host(word) for word in hosts.split(",")), service, server, own)


def _host(word: str) -> tuple[str, int]:
    parts = urlsplit(f"//{word}")
    if not parts.hostname:
        raise ValueError("a sentinel's host is missing")
    return parts.hostname, parts.port or PORT


def hosts(url: str) -> tuple[tuple[str, int], ...]:
    """Returns the hosts and ports that are connected to first: the server's or the sentinels'; none of a socket.

    Raises ValueError.
    """
    found = sentinels(url)
    if found is not None:
        return found.hosts
    parts = urlsplit(url)
    return () if parts.hostname is None else ((parts.hostname, parts.port or SERVER_PORT),)


def as_user(url: str, user: str, password: str) -> str:
    """Returns the same address for another user. Of its options, the database and the sentinels' credentials stay."""
    parts = urlsplit(url)
    kept = {name: value for name, value in parse_qsl(parts.query) if name in OPTIONS - {"password"}}
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
    where = f"{parts.scheme}://{credentials}@{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{where}?{urlencode(kept)}" if kept else where


def connect(url: str, **options: Any) -> redis.Redis:
    """Returns a client of the server, or of the sentinels' master. `options` are those of a connection."""
    import redis.sentinel

    found = sentinels(url)
    if found is None:
        return redis.Redis.from_url(url, **options)
    asking = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        list(found.hosts), sentinel_kwargs=_asking(found, options)
    )
    return asking.master_for(found.service, **found.server, **options)  # type: ignore[no-any-return,no-untyped-call]


def connect_async(url: str, **options: Any) -> redis.asyncio.Redis:
    """Returns the same for asyncio."""
    import redis.asyncio.sentinel

    found = sentinels(url)
    if found is None:
        return redis.asyncio.Redis.from_url(url, **options)
    asking = redis.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        list(found.hosts), sentinel_kwargs=_asking(found, options)
    )
    return asking.master_for(found.service, **found.server, **options)  # type: ignore[no-any-return]


async def close_async(client: redis.asyncio.Redis) -> None:
    """Closes a client's connections, and those to the sentinels that it asked."""
    await client.aclose()
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    for asked in manager.sentinels if manager is not None else ():
        await asked.aclose()


def _asking(found: Sentinels, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of connections to sentinels: their credentials, and the time-outs of the others."""
    return found.own | {name: value for name, value in options.items() if name.startswith("socket_")}


def broker_url(url: str) -> str:
    """Returns the address that an agent takes for its broker; of sentinels it tells Celery by itself.

    Celery names the socket and the database of one otherwise than redis-py does.
    """
    if not url.startswith("unix://"):
        return url
    return url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=", 1)


def celery_broker(url: str) -> tuple[str, dict[str, Any]]:
    """Returns the address as Celery writes it, and the transport options that belong to it."""
    found = sentinels(url)
    if found is None:
        return broker_url(url), {}
    user, password = (quote(found.server.get(name, ""), safe="") for name in ("username", "password"))
    credentials = f"{user}:{password}@" if user or password else ""
    words = [f"{SCHEME}://{credentials}{_written(host)}:{port}" for host, port in found.hosts]
    options = {"master_name": found.service, **({"sentinel_kwargs": found.own} if found.own else {})}
    return f"{';'.join(words)}/{found.server['db']}", options


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
