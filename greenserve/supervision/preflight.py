"""Checks before anything is started, and finds the supervisor that runs. Each refusal is one line."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenserve import env, packages
from greenserve.supervision.supervisor import write_whole

ALREADY_RUNNING = 3
PORT_TAKEN = 4
START_FAILED = 5
LEAST_FREE_BYTES = 100_000_000


class Refusal(Exception):
    """Why GreenServe does not start: one line that says what to do, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Lock:
    """One supervisor per `var` folder. The kernel drops the lock with its holder, so a stale file holds nobody up."""

    path: Path
    _fd: int | None = None

    @classmethod
    def of(cls, var_dir: Path) -> Lock:
        return cls(var_dir / "run" / "supervisor.lock")

    def take(self) -> None:
        """Raises Refusal when another supervisor holds it, or the folder cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            message = f"cannot write to {self.path.parent}: {error.strerror}; set GREENSERVE_VAR to a folder of yours"
            raise Refusal(message, START_FAILED) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Refusal(
                f"already running (pid {self.holder() or 'unknown'}): see `greenserve status`, "
                "stop it with `greenserve down`",
                ALREADY_RUNNING,
            ) from None
        self._fd = fd
        os.ftruncate(fd, 0)
        try:
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            message = f"cannot write to {self.path.parent}: {error.strerror}; make room, or set GREENSERVE_VAR"
            raise Refusal(message, START_FAILED) from None

    def holder(self) -> int | None:
        """Returns the pid of the supervisor that runs; None: none does."""
        try:
            fd = os.open(self.path, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            for _ in range(20):  # the holder writes its pid just after taking the lock
                text = os.pread(fd, 32, 0).decode().strip()
                if text.isdigit():
                    return int(text)
                time.sleep(0.01)
            return None
        else:
            return None
        finally:
            os.close(fd)

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def close_to_others(var_dir: Path) -> None:
    """Makes what this process and its children write readable for the owner and their group at most, and so what
    earlier versions wrote. Secrets, and what gateways and agents keep of requests, are the owner's alone."""
    os.umask(0o027)
    log, private = var_dir / "log", [var_dir / "spool", var_dir / "learned", var_dir / env.SECRETS]
    for folder in (log, *private):
        folder.mkdir(parents=True, exist_ok=True)
    modes = {log: 0o750, **dict.fromkeys(log.glob("*.log*"), 0o640), **dict.fromkeys(private, 0o700)}
    for path, mode in modes.items():
        with contextlib.suppress(PermissionError):  # another account's, as of a start as root: it is theirs to close
            path.chmod(mode)


def write_state(var_dir: Path, state: str, **more: Any) -> None:
    """Writes the supervisor's state (starting, ready, stopping) for `greenserve status` and `up --detach`.

    A disk that takes nothing does not keep it from starting and stopping processes; it says so itself each second.
    """
    content = {"supervisor_pid": os.getpid(), "state": state, "at_s": time.time(), **more}
    with suppress(OSError):
        write_whole(var_dir / "run" / "supervisor.json", json.dumps(content).encode())


def read_state(var_dir: Path) -> dict[str, Any]:
    try:
        found = json.loads((var_dir / "run" / "supervisor.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_packages() -> None:
    """Raises Refusal when this is a node's installation, or another distribution's files stand where ours should."""
    if packages.of_a_node():
        raise Refusal(packages.NODE_REMEDY, START_FAILED)
    if strange := packages.not_ours():
        names = ", ".join(strange)
        raise Refusal(f"other files than GreenServe's are in the package {names}: {packages.REMEDY}", START_FAILED)


def check_room(var_dir: Path) -> None:
    """Raises Refusal when the data folder's disk is full: PostgreSQL and Redis would not come up."""
    free_bytes = shutil.disk_usage(var_dir).free
    if free_bytes < LEAST_FREE_BYTES:
        raise Refusal(
            f"the disk of {var_dir} has {free_bytes / 1e6:.0f} MB free, and GreenServe starts with "
            f"{LEAST_FREE_BYTES / 1e6:.0f} MB at least: make room, or set GREENSERVE_VAR to a folder on another disk",
            START_FAILED,
        )


def check_port(host: str, port: int, what: str, variable: str) -> None:
    """Raises Refusal when `what` could not listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = "is taken by another program" if error.errno == 98 else f"cannot be used ({error.strerror})"
        raise Refusal(
            f"port {port} of {host}, for {what}, {reason}: free it, or choose another with {variable}=PORT", PORT_TAKEN
        ) from None


def check_extra(extra: str, module: str, what: str, variable: str) -> None:
    """Raises Refusal when an optional part is asked for by `variable` and its packages are not installed."""
    if importlib.util.find_spec(module) is None:
        remedy = f"pip install 'greenserve[{extra}]', or leave {variable} out"
        raise Refusal(f"{what} needs packages that are not installed: {remedy}", START_FAILED)


def control_ports(var_dir: Path, nodes: Collection[str], running: Mapping[str, int]) -> dict[str, int]:
    """Returns a loopback port for each simulated node's control server: its own where it is `running`, else a free one,
    which stays the same while it is free."""
    path = var_dir / "run" / "simnodes.json"
    try:
        known = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        known = {}
    chosen = {node: running[node] for node in nodes if node in running}
    for node in nodes:
        if node in chosen:
            continue
        port = known.get(node)
        if not isinstance(port, int) or port in chosen.values() or not _free(port):
            port = _any_free_port(set(chosen.values()))
        chosen[node] = port
    if chosen != known:
        with suppress(OSError):  # after the next start the ports may then be others
            write_whole(path, json.dumps(chosen).encode())
    return chosen


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def _any_free_port(taken: set[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
