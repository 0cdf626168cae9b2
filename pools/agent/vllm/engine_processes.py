"""Processes of engines: started in a group of their own, known again by when they began, ended as a group.

A pid alone says nothing after the agent was away: another process may have it by then. What the kernel says of when the
process began, and of which boot of the machine, makes it certain.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LONGEST_LOG_BYTES = 16 << 20
_TAIL_BYTES = 32_768
# A line of vLLM's log at level ERROR, or the last line of a traceback; vLLM says first which of its processes speaks.
_ERROR = re.compile(r"(\(\S+ pid=\d+\) )?(ERROR\b|[\w.]*(Error|Exception)\b)")
_REST_S = 2.0  # for what is left of a group that got SIGKILL


def boot_id() -> str:
    """Returns the identifier of this run of the machine."""
    return _BOOT_ID.read_text().strip()


def began_ticks(pid: int) -> int | None:
    """Returns when a process began, in clock ticks since the boot (proc_pid_stat(5), field 22); None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def runs(group: int) -> bool:
    """Whether any process of a group does: one that has ended, the last of its threads too, is init's to reap."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, own, *_ = fields
        if int(own) == group and (state not in "ZX" or int(fields[17]) > 1):  # field 20: threads
            return True
    return False


@dataclass(slots=True)
class EngineProcess:
    """The leader of a process group. `child` None: a former agent's, which init has inherited."""

    pid: int
    began: int
    child: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> EngineProcess:
        """Raises OSError: there is no such program, or it may not be run."""
        with _open_log(log) as output:
            with contextlib.suppress(OSError):
                output.write(f"\n--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}\n".encode())
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(child.pid, began_ticks(child.pid) or 0, child)

    @classmethod
    def known_again(cls, pid: int, began: int) -> EngineProcess | None:
        """None: it has ended, and another process may have its pid."""
        return cls(pid, began) if began_ticks(pid) == began else None

    @property
    def alive(self) -> bool:
        return self.exit_code() is None and began_ticks(self.pid) == self.began

    def exit_code(self) -> int | None:
        """None: it runs, or is not this agent's child."""
        return None if self.child is None else self.child.poll()

    def ask_to_end(self) -> None:
        """SIGTERM to the leader alone: it ends its workers in order."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the whole group: workers outlive a leader that was killed. Blocks for at most 2 s."""
        # The pid stays the group's while it has members, so it is nobody else's unless a process has it as its own.
        if began_ticks(self.pid) not in (None, self.began):
            return
        deadline_s = time.monotonic() + _REST_S
        while time.monotonic() < deadline_s:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                break
            reaped = self.child is None or self.exit_code() is not None
            if reaped and not runs(self.pid):
                break
            time.sleep(0.02)
        self.exit_code()


def _open_log(path: Path) -> IO[bytes]:
    """An engine without its log is better than none: where the disk takes none, what it says goes nowhere."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    except OSError:
        return Path(os.devnull).open("ab", buffering=0)


def last_lines(log: Path, lines: int = 6) -> str:
    """Returns the last lines of an engine's log, for an operator: its errors before anything else."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    found = [line.strip() for line in text.rpartition("\n--- ")[2].splitlines()[1:] if line.strip()]
    errors = [line for line in found if _ERROR.match(line)]
    return " | ".join((errors or found)[-lines:])


def rotate(log: Path, longest_bytes: int = LONGEST_LOG_BYTES) -> None:
    """Keeps one log before this one. The engine has the file open for appending, so it is copied and cut off; on a disk
    without room for the copy it is cut off alone. Raises nothing."""
    copy = log.with_suffix(".log.1")
    with contextlib.suppress(OSError):
        if log.stat().st_size <= longest_bytes:
            return
        try:
            copy.write_bytes(log.read_bytes())
        except OSError:
            copy.unlink(missing_ok=True)
        os.truncate(log, 0)
