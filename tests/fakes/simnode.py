"""Runs a real simulated node as a process, for contract and integration tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


def eventually(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "condition") -> Any:
    """The first true value of `condition`, tried every 50 ms; fails the test after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline_s, f"no {what} within {timeout_s} s"
        time.sleep(0.05)


class SimnodeProcess:
    def __init__(
        self,
        var_dir: Path,
        node: str,
        gpus: tuple[str, ...] = ("A100-80GB:4",),
        speedup: float = 300.0,
        more: tuple[str, ...] = (),
    ):
        self.node = node
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "pools.simnode", "--node", node, "--port", str(self.port)]
        self._command += ["--var", str(var_dir), "--transition-speedup", str(speedup)]
        self._command += more
        for group in gpus:
            self._command += ["--gpu", group]
        self._log = var_dir / f"{node}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> SimnodeProcess:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        eventually(self._answers, 15.0, f"answer from the simulated node; its log: {self._log}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            self.get("/instances")
        except OSError:
            return False
        return True

    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=5) as response:
            return json.load(response)

    def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = json.dumps(body).encode() if body is not None else b""
        request = urllib.request.Request(self.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def run_instance(self, uid: str, gpus: list[int], model: str = "Llama3-70B", max_model_len: int = 16384) -> str:
        """Starts an instance and waits until it is ready; returns its URL."""
        spec = {"uid": uid, "model": model, "engine": "vllm-v1", "max_model_len": max_model_len}
        status, answer = self.send("POST", "/instances", {**spec, "gpu_uuids": [self.uuid(index) for index in gpus]})
        assert status == 201, answer
        return str(eventually(lambda: self.ready_url(uid), 10.0, f"ready instance {uid}"))

    def ready_url(self, uid: str) -> str | None:
        return next((i["url"] for i in self.get("/instances") if i["uid"] == uid and i["state"] == "ready"), None)

    def uuid(self, index: int) -> str:
        return f"SIM-{self.node}-{index}"

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; returns the exit code, which must come within 5 seconds."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
