"""Reads and writes what a control plane keeps beside its database: files, messages in Redis, and its settings."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from greenserve import env
from pools import redis_address, wire

from .archive import BackupError

FILES, STREAMS, SETTINGS, DATABASE = "files/", "streams", "settings.env", "database.dump"
SETTINGS_KEPT_AS = "settings-of-backup.env"
# Of the data folder: servers' own data (a dump and `streams` have what is in them), what each start makes anew, logs.
SERVERS_OWN = frozenset({"postgres", "postgres-id", "redis"})
LEFT_OUT = SERVERS_OWN | {"redis-url", "snapshot-key.pub", "engine-authorities.pem", "sockets", "run", "log"}
NOT_IN_THE_WAY = frozenset({"secret-key", env.SECRETS, "run", "log"})  # of a folder that is empty otherwise
REDIS_TIMEOUT_S = 10.0


def copy_files(var_dir: Path, to: Path) -> dict[str, Path]:
    """Copies what is kept in the data folder, as it is now; returns the copies by member.

    A journal that grows meanwhile is copied as far as it is. One that is gone has been handed to Redis, which is read
    later.
    """
    found = {}
    for path in sorted(_files(var_dir)):
        name = path.relative_to(var_dir)
        copy = to / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(path, copy)
        except FileNotFoundError:
            continue
        found[FILES + name.as_posix()] = copy
    return found


def _files(var_dir: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(var_dir):
        if Path(folder) == var_dir:
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            names = [name for name in names if name not in LEFT_OUT | {SETTINGS_KEPT_AS}]
        yield from (path for name in names if (path := Path(folder, name)).is_file() and not path.is_symlink())


def in_the_way(var_dir: Path) -> list[str]:
    """Returns what a data folder has that a restore would write over."""
    return (
        sorted(path.name for path in var_dir.iterdir() if path.name not in NOT_IN_THE_WAY) if var_dir.exists() else []
    )


def write_file(var_dir: Path, name: str, content: IO[bytes], mode: int) -> None:
    path = var_dir / name.removeprefix(FILES)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(mode)


def read_streams(url: str) -> bytes:
    """Returns what gateways and agents have sent and the database does not have yet. Raises BackupError."""
    import redis

    found: dict[str, list[bytes]] = {}
    try:
        with redis_address.connect(url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=5) as client:
            own = [key.decode() for key in client.scan_iter(match=f"{wire.NODE_STREAM_PREFIX}*", count=1_000)]
            for stream in (wire.BATCH_STREAM, wire.REQUEST_STREAM, *sorted(own)):
                entries: Any = client.xrange(stream)
                found[stream] = [fields[b"b"] for _, fields in entries if b"b" in fields]
    except redis.RedisError as error:
        raise BackupError(f"Redis cannot be read: {error}") from None
    return msgspec.msgpack.encode(found)


def write_streams(url: str, content: bytes) -> int:
    """Puts the messages back for the ingester, which stores each once; returns how many. Raises BackupError."""
    import redis

    messages = msgspec.msgpack.decode(content, type=dict[str, list[bytes]])
    try:
        with redis_address.connect(url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=5) as client:
            for stream, bodies in messages.items():
                for body in bodies:
                    client.xadd(stream, {"b": body})
    except redis.RedisError as error:
        raise BackupError(f"Redis cannot be written: {error}") from None
    return sum(map(len, messages.values()))


def settings_file(variables: Mapping[str, str]) -> bytes:
    """Returns the variables as lines that a shell reads."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())).encode()
