"""The socket of a running scheduler."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pools.vllm_scheduler import control_socket
from pools.vllm_scheduler.control_socket import LONGEST_LINE, ControlSocket, SchedulerControl
from pools.vllm_scheduler.scheduler_settings import Most, Settings


@pytest.fixture
def control() -> SchedulerControl:
    return SchedulerControl(Settings(), Most(2048, 64))


@pytest.fixture
def path(control: SchedulerControl, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "scheduler.sock"
    server = ControlSocket(str(path), control)
    yield path
    server.close()
    assert not path.exists()


def ask(path: Path, *messages: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(b"".join(message + b"\n" for message in messages))
        client.shutdown(socket.SHUT_WR)
        data = b""
        while received := client.recv(65536):
            data += received
    return [json.loads(line) for line in data.splitlines()]


def test_settings_are_shown_and_changed_when_asked(path: Path, control: SchedulerControl) -> None:
    before = control.settings
    found = ask(path, b'{"op":"get"}', b'{"op":"set","order":"llf","itl_limit_s":0.05}', b'{"op":"stats"}')
    assert [answer["ok"] for answer in found] == [True] * 3
    assert found[0]["settings"]["order"] == "vllm"
    assert found[0]["most"] == {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    assert found[1]["settings"] == control.settings.to_json()
    assert (control.settings.order, control.settings.itl_limit_s) == ("llf", 0.05)
    assert control.settings is not before
    ask(path, b'{"op":"set","itl_limit_s":null}')
    assert control.settings.itl_limit_s is None


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"nonsense", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 50_000, "no JSON"),
        (b'{"op":"stop"}', "op is one of"),
        (b'{"op":["get"]}', "op is one of"),
        (b'{"op":"set","order":"edf"}', "order is one of vllm, llf"),
        (b'{"op":"set","order":["llf"]}', "order is one of vllm, llf"),
        (b'{"op":"set","itl_limit_s":0}', "itl_limit_s is a number of seconds above 0"),
        (b'{"op":"set","itl_limit_s":Infinity}', "itl_limit_s is a number of seconds above 0"),
        (b'{"op":"set","max_num_batched_tokens":4096}', "the 2048 that the engine was started with"),
        (b'{"op":"set","max_num_seqs":true}', "max_num_seqs is a whole number"),
        (b'{"op":"set","chunk_tokens":-1}', "chunk_tokens is a whole number from 0"),
        (b'{"op":"set","chunk_tokens":1.5}', "chunk_tokens is a whole number from 0"),
        (b'{"op":"set","preempts_s":-1}', "preempts_s is a number of seconds from 0"),
        (b'{"op":"set","margin_s":-1}', "margin_s is a number of seconds from 0"),
        (b'{"op":"set","window_factor":0.9}', "window_factor is a number from 1, not 0.9"),
        (b'{"op":"set","margin_s":null}', "margin_s is a number of seconds from 0"),
        (b'{"op":"set","speed":1}', "speed is no setting: they are order,"),
        (b'{"op":"set","itl_limit_s":0.1,"order":1}', "order is one of"),
    ],
)
def test_bad_message_is_answered_with_what_is_wrong_and_changes_nothing(
    path: Path, control: SchedulerControl, message: bytes, says: str
) -> None:
    before = control.settings
    bad, good = ask(path, message, b'{"op":"get"}')
    assert not bad["ok"]
    assert says in bad["error"]
    assert good["ok"]
    assert control.settings is before


def test_message_without_an_end_is_refused_when_it_gets_too_long(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012  # whichever of the sends it is
            for _ in range(100):
                client.sendall(b"x" * LONGEST_LINE)
    assert ask(path, b'{"op":"get"}')[0]["ok"]


def test_silent_client_holds_up_others_for_a_moment_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "CLIENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert ask(path, b'{"op":"get"}')[0]["ok"]


def test_only_its_own_user_may_connect(path: Path) -> None:
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600


def test_path_of_a_killed_engine_is_taken_over_and_a_live_one_is_not(control: SchedulerControl, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    server = ControlSocket(str(path), control)
    try:
        with pytest.raises(FileExistsError, match="another engine listens"):
            ControlSocket(str(path), control)
        assert ask(path, b'{"op":"get"}')[0]["ok"]
    finally:
        server.close()
        server.close()
    path.write_text("no socket")
    with pytest.raises(FileExistsError, match="is no socket"):
        ControlSocket(str(path), control)
    with pytest.raises(ValueError, match="use a shorter folder"):
        ControlSocket(str(tmp_path / ("x" * 120)), control)
    assert not any(thread.name.startswith("greenserve-scheduler") for thread in threading.enumerate())
