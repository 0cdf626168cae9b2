"""The product's embedded servers for the length of a block, for tests, benchmarks and scripts/smoke."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from greenserve import env
from greenserve.process import Child, Spec
from greenserve.servers import embedded, postgres_server
from greenserve.servers.server_folders import folders_of


@contextlib.contextmanager
def running(var_dir: Path, *, durable: bool = True) -> Iterator[tuple[str, str]]:
    """Both servers for the length of a block; yields (database_url, redis_url). Raises StartError."""
    with _started(var_dir, postgres_server.spec(var_dir, durable=durable), embedded.redis(var_dir)):
        yield embedded.owner_url(var_dir), embedded.redis_url(var_dir)


@contextlib.contextmanager
def redis_running(var_dir: Path, program: Path | None = None) -> Iterator[str]:
    """Redis alone for the length of a block; yields its address. `program`: another server's. Raises StartError."""
    spec = embedded.redis(var_dir)
    if program is not None:
        spec = replace(spec, argv=(str(program), *spec.argv[1:]))
    with _started(var_dir, spec):
        yield embedded.redis_url(var_dir)


def redis_7_0() -> Path | None:
    """Returns the machine's redis-server where it is one of 7.0, the oldest that nodes can have users in."""
    program = env.find_program("redis-server")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return program if said.startswith("Redis server v=7.0.") else None


@contextlib.contextmanager
def _started(var_dir: Path, *specs: Spec) -> Iterator[None]:
    children: list[Child] = []
    try:
        for spec in specs:
            children.append(Child(spec, var_dir / "log" / f"{spec.name}.log"))
            children[-1].start()
        for child in children:
            embedded.wait_ready(child, timeout_s=30)
        yield
    finally:
        for child in reversed(children):
            child.stop()


def remove(var_dir: Path) -> None:
    """Deletes the data and sockets of the stopped servers of `var_dir`, also those outside it."""
    where = folders_of(var_dir)
    for path in (where.postgres_home, where.postgres_sockets, where.redis_socket.parent):
        shutil.rmtree(path, ignore_errors=True)


def redis_words(folder: Path, url: str) -> tuple[str, str]:
    """Returns the arguments that name Redis to a gateway: its address has a password, and stands in a file."""
    return "--redis-url-file", str(env.keep_secret(folder / "redis-url", url))
