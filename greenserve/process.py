"""One child process: how it is started on a leash, watched, and ended together with whatever it started.

A leash is Linux's parent-death signal: when the process that called `Child.start` dies, however it dies, the kernel
signals the child. The signal is tied to the parent's *thread*, so children are started from the main thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypedDict

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class StartError(Exception):
    """Something that keeps a process from starting, in one line that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A process as it is to be started.

    `account` is the user to run as (root only). `death_signal` is what it gets when its parent dies. `before` is run
    ahead of every start, to clear what a killed predecessor left. `ready` says whether it answers; None: once started.
    Children of a higher `rank` lean on those of a lower one, and are stopped before them.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    rank: int = 1
    account: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 8.0
    death_signal: signal.Signals = signal.SIGKILL
    before: Callable[[], None] | None = None
    ready: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of this boot: its pid may be given to another one later, its start time then differs."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Returns None where there is no such process, or it is a zombie."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]), boot_id)

    def alive(self) -> bool:
        return Identity.of(self.pid) == self


def end(identity: Identity, timeout_s: float = 5.0) -> None:
    """Ends a process that is not this one's child: SIGTERM, and SIGKILL after `timeout_s`."""
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + wait_s
        if not identity.alive():
            return
        _signal(identity.pid, number)
        while identity.alive() and time.monotonic() < deadline:
            time.sleep(0.05)


def set_leash(death_signal: signal.Signals) -> None:
    """Asks the kernel to send `death_signal` to this process when its parent dies. Raises OSError."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def leash(death_signal: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Returns a `preexec_fn` that ties a child to this process. It runs after the change of user, which undoes it."""
    parent = os.getpid()

    def attach() -> None:
        set_leash(death_signal)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the leash was on

    return attach


@dataclass(slots=True)
class Child:
    spec: Spec
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at_s: float | None = None  # Unix time
    started_mono_s: float = 0.0
    identity: Identity | None = field(default=None)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self) -> None:
        """Starts the process, output appended to its log; to no log where the disk takes none. Raises StartError."""
        spec = self.spec
        try:
            if spec.before:
                spec.before()
            with _open_log(self.log) as log:
                self.process = _popen(spec, log)
        except (OSError, subprocess.SubprocessError) as error:
            raise StartError(f"{spec.name} cannot be started ({spec.argv[0]}): {error}") from error
        self.started_at_s, self.started_mono_s = time.time(), time.monotonic()
        self.identity = Identity.of(self.process.pid)

    def poll(self) -> int | None:
        """Returns the exit status of a process that has ended (negative: the signal), None while it runs.

        What it leaves behind in its process group is ended before its pid is given back to the kernel.
        """
        if self.process is None:
            return None
        if self.process.returncode is None and os.waitid(
            os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            _sweep(self.process.pid)
        return self.process.poll()

    def ask_to_stop(self) -> None:
        if self.process and self.poll() is None:
            _signal(self.process.pid, self.spec.stop_signal)

    def wait_stopped(self, deadline_mono_s: float) -> bool:
        """Waits until `deadline_mono_s` and then kills; says whether it ended by itself."""
        if self.process is None:
            return True
        while self.poll() is None and time.monotonic() < deadline_mono_s:
            time.sleep(0.02)
        by_itself = self.poll() is not None
        if not by_itself:
            _sweep(self.process.pid)
            self.process.wait()
        return by_itself

    def stop(self) -> bool:
        self.ask_to_stop()
        return self.wait_stopped(time.monotonic() + self.spec.stop_timeout_s)

    def log_tail(self, lines: int = 5) -> str:
        return tail(self.log, lines)


def tail(path: Path, lines: int) -> str:
    """Returns the last lines of a log, of its last 64 KiB at most; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def last_words(text: str) -> str:
    """The line of a log's end that tells most: the last that is fatal or an exception's, else simply the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if re.search(r"\b(FATAL|PANIC)\b|^[\w.]+(Error|Exception)\b", line)]
    return (fatal or lines or ["no message"])[-1]


def exit_reason(status: int) -> str:
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit status {status}"


def account_ids(account: str) -> tuple[int, int]:
    entry = pwd.getpwnam(account)
    return entry.pw_uid, entry.pw_gid


class AccountArguments(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def as_account(account: str | None) -> AccountArguments:
    """Returns arguments for subprocess that run a program as `account`, with no other group of this process's."""
    if account is None:
        return {}
    uid, gid = account_ids(account)
    return {"user": uid, "group": gid, "extra_groups": []}


def _open_log(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")  # a process without its log is better than none


def _popen(spec: Spec, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec.argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=spec.cwd,
        env=dict(spec.env),
        process_group=0,
        preexec_fn=leash(spec.death_signal),
        **as_account(spec.account),
    )


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _sweep(group: int) -> None:
    """Kills what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody there
        os.killpg(group, signal.SIGKILL)
