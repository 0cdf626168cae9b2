"""Processes with Django set up, to be killed: one process imports what they need, and each is a fork of it.

`python -m tests.fakes.nursery CODE` forks at each line of its input; the fork runs CODE, a Python statement or more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.fakes.simnode import ROOT

_END_WITHIN_S = 20.0


class Nursery:
    """Starts one process at a time, in milliseconds. `pid` is that of the one that runs."""

    def __init__(self, code: str, env: Mapping[str, str]) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.nursery", code],
            env={**env, "DJANGO_SETTINGS_MODULE": "greenserve.settings"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid: int | None = None
        assert self._line() == "ready"

    def start(self) -> int:
        assert self._parent.stdin is not None
        self._parent.stdin.write("one more\n")
        self._parent.stdin.flush()
        self.pid = int(self._line())
        return self.pid

    def end(self, number: signal.Signals) -> int:
        """Sends the signal and waits: the exit code, negative when it died of the signal."""
        assert self.pid is not None
        os.kill(self.pid, number)
        code = int(self._line())
        self.pid = None
        return code

    def close(self) -> None:
        if self.pid is not None:
            self.end(signal.SIGKILL)
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(_END_WITHIN_S)
        self._parent.stdout.close()

    def _line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().strip()


@contextmanager
def nursery(code: str, env: Mapping[str, str]) -> Iterator[Nursery]:
    opened = Nursery(code, env)
    try:
        yield opened
    finally:
        opened.close()


def _main(code: str) -> None:
    import django

    django.setup()
    work = compile(code, "a fork's work", "exec")
    import django.db.backends.postgresql.base  # what each fork would import anew

    import telemetry.ingest.ingester  # noqa: F401

    print("ready", flush=True)
    while sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            exec(work, {})
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
