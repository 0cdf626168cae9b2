"""Runs the real clock actuator as a process over the NVML stand-in. It need not be root there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pools.actuator.__main__ import main
from tests.fakes.nvml import Boards
from tests.fakes.simnode import ROOT, eventually


class ActuatorProcess:
    def __init__(self, folder: Path, boards: Boards, *options: str) -> None:
        self.socket = folder / "actuator.sock"
        self.state = folder / "actuator.json"
        self._log = folder / "actuator.log"
        self._command = [sys.executable, "-m", "tests.fakes.actuator", "--socket", str(self.socket)]
        self._command += ["--state", str(self.state), *options]
        self._environment = {**os.environ, **boards.environment}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> ActuatorProcess:
        self.socket.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)
        eventually(self._listens, 20.0, "socket of the actuator")
        return self

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        return self.socket.exists()

    def log(self) -> str:
        return self._log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(15.0)


if __name__ == "__main__":
    sys.exit(main(lacks=lambda: ""))
