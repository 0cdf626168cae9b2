"""An agent's end of the socket of GreenServe's scheduler in vLLM."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core.ports import EngineLimits, PermanentError, RetryableError
from pools.agent.vllm import vllm_control
from pools.agent.vllm.vllm_control import VllmScheduler
from pools.vllm_scheduler.control_socket import ControlSocket, SchedulerControl
from pools.vllm_scheduler.scheduler_settings import Most, Settings


def test_limits_are_set_up_to_what_the_engine_was_started_with(tmp_path: Path) -> None:
    control = SchedulerControl(Settings(), Most(1024, 64))
    server = ControlSocket(str(tmp_path / "s"), control)
    try:
        engine = VllmScheduler(tmp_path / "s")
        assert engine.limits() == EngineLimits(1024, 64, None, preempts_s=1.0)
        own = {"chunk_tokens": 256, "preempts_s": 2.0, "margin_s": 0.5, "window_factor": 1.6}
        assert engine.tune(EngineLimits(2048, 32, 0.05, **own)) == EngineLimits(1024, 32, 0.05, **own)
        assert engine.tune(EngineLimits()) == engine.limits() == EngineLimits(1024, 64, None)
        engine.order(by_laxity=True)
        assert control.settings.order == "llf"
        assert engine.stats() == {}
    finally:
        server.close()


def test_engine_that_is_not_there_or_says_nothing_is_retryable(tmp_path: Path) -> None:
    engine = VllmScheduler(tmp_path / "s", timeout_s=0.1)
    with pytest.raises(RetryableError, match="does not answer"):
        engine.stats()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen(1)
        with pytest.raises(RetryableError, match="does not answer"):
            engine.stats()


@pytest.mark.parametrize(("says", "raises"), [(b"what?\n", RetryableError), (b'{"ok":false}\n', PermanentError)])
def test_answer_that_is_none_is_an_error(tmp_path: Path, says: bytes, raises: type[Exception]) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(1)

        def answer() -> None:
            client = server.accept()[0]
            with client:
                client.recv(100)
                client.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(raises):
            VllmScheduler(tmp_path / "s", timeout_s=10).stats()
        thread.join(timeout=10)


def test_vllm_is_given_the_plug_in_and_nothing_else_to_import(tmp_path: Path) -> None:
    found = vllm_control.environment(tmp_path, tmp_path / "s", True, EngineLimits(itl_limit_s=0.05))
    assert vllm_control.environment(tmp_path, tmp_path / "s", True, EngineLimits(itl_limit_s=0.05)) == found
    own = {"chunk_tokens": 0, "preempts_s": 0.0, "margin_s": 1.0, "window_factor": 1.4}
    assert json.loads(found["GREENSERVE_SCHEDULER"]) == {"order": "llf", "itl_limit_s": 0.05, **own}
    script = (
        "import pools.vllm_scheduler.control_socket as c, pools.vllm_scheduler.order; "
        "import core.algorithms.split.step_times; "
        "import importlib.util as u; print(u.find_spec('scheduler'), u.find_spec('pools.wire'), c.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": found["PYTHONPATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith(f"None None {tmp_path}")
