"""A real vLLM as a process, on a machine without a GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes.simnode import ROOT, eventually
from tests.ports import free_port

VENV = ROOT / ".venv-vllm"
VLLM = VENV / "bin" / "vllm"
PYTHON = VENV / "bin" / "python"
MODEL = "tiny"

STARTS_WITHIN_S = 300.0  # 30 s when nothing else runs
STOPS_WITHIN_S = 60.0

# What a vLLM on CPUs needs; an agent gives the same by its options (pools/agent/vllm).
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # sleep, pause and abort
}
# With bfloat16 vLLM 0.32.0 computes attention by AMX where the processor has it, without asking Linux for the
# permission: its worker dies of an illegal instruction at the first request.
DTYPE = "float32"
ARGUMENTS = {
    "dtype": DTYPE,
    "max-model-len": 2048,
    "enforce-eager": True,
    "kv-cache-memory-bytes": 64 << 20,
    "shutdown-timeout": 20,
}


class VllmServer:
    """`vllm serve` in a process group of its own. Arguments: `max_model_len=512` is `--max-model-len 512`.

    True: the flag alone; None: without it; a dictionary goes as JSON. `within`: words before the command, that have it
    run elsewhere, and `host`, where it listens.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        env: dict[str, str] | None = None,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        self.port = free_port()
        self.url = f"http://{host}:{self.port}"
        self.model = str(arguments.pop("served_model_name", MODEL))
        self._log = folder / f"vllm-{self.port}.log"
        self._env = {**os.environ, **ENVIRONMENT, **(env or {})}
        self._command = [*within, str(VLLM), "serve", str(model), "--host", host, "--port", str(self.port)]
        self._command += ["--served-model-name", self.model]
        chosen = {**ARGUMENTS, **{name.replace("_", "-"): value for name, value in arguments.items()}}
        for name, value in chosen.items():
            if value is not None and value is not False:
                self._command += [f"--{name}", *_words(value)]
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> VllmServer:
        """Starts it, and does not wait: two start in the time of one and a half."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def start(self) -> VllmServer:
        """Starts it, waits until it answers, and warms it up: the first request takes seconds."""
        if self.process is None:
            self.begin()
        eventually(self._answers, STARTS_WITHIN_S, f"answer of vLLM; its log: {self._log}")
        self.complete("hello", max_tokens=2)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"vLLM ended:\n{self.log()[-4000:]}"
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def complete(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        """A completion, whole. `ignore_eos` is set: exactly `max_tokens` come."""
        whole = {"model": self.model, "prompt": prompt, "ignore_eos": True, "temperature": 0.0, **body}
        return dict(self.post("/v1/completions", whole))

    def post(self, path: str, body: object, timeout_s: float = 180.0) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.loads(response.read() or b"null")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what is left of its group."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOPS_WITHIN_S)
        _kill_group(self.process.pid)
        self.process.wait(10)
        self.process = None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing is left of it
        os.killpg(pid, signal.SIGKILL)


def _words(value: object) -> list[str]:
    if value is True:
        return []
    return [json.dumps(value) if isinstance(value, (dict, list)) else str(value)]
