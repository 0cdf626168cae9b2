"""`greenserve up` refuses in one line. That it runs is shown by the tests of the whole product."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenserve.supervision.preflight import Lock
from tests.e2e.product import GREENSERVE, ROOT
from tests.ports import free_port


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "GREENSERVE_VAR": str(tmp_path / "var"),
        "GREENSERVE_WEB_PORT": str(free_port()),
        "GREENSERVE_GATEWAY_PORT": str(free_port()),
    }


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def up(environment: dict[str, str], *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(GREENSERVE), "up", *options],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("greenserve: ")
    return done.returncode, lines[0]


@pytest.mark.skipif(importlib.util.find_spec("grpc") is not None, reason="the extra 'picker' is installed")
def test_up_names_the_extra_when_the_picker_is_asked_for_without_it(environment: dict[str, str]) -> None:
    status, line = up(environment | {"GREENSERVE_PICKER_PORT": str(free_port())})
    assert status == 5
    assert "greenserve[picker]" in line


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_up_names_port_and_variable_when_a_port_is_taken(
    environment: dict[str, str], listener: socket.socket, options: tuple[str, ...]
) -> None:
    port = listener.getsockname()[1]
    status, line = up(environment | {"GREENSERVE_GATEWAY_PORT": str(port)}, *options)
    assert status == 4
    assert str(port) in line
    assert "GREENSERVE_GATEWAY_PORT" in line


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_up_names_the_pid_when_it_runs_already(environment: dict[str, str], options: tuple[str, ...]) -> None:
    lock = Lock.of(Path(environment["GREENSERVE_VAR"]))
    lock.take()
    try:
        status, line = up(environment, *options)
    finally:
        lock.release()
    assert status == 3
    assert f"pid {os.getpid()}" in line
    assert "greenserve down" in line


@pytest.mark.parametrize(
    ("variable", "url"),
    [("DATABASE_URL", "postgresql://x@127.0.0.1:1/x"), ("REDIS_URL", "redis://:password@127.0.0.1:1/0")],
)
def test_up_names_the_variable_when_its_server_does_not_answer(
    environment: dict[str, str], variable: str, url: str
) -> None:
    status, line = up(environment | {variable: url})
    assert status == 5
    assert variable in line


def test_up_names_the_variable_when_its_value_is_bad(environment: dict[str, str]) -> None:
    status, line = up(environment | {"GREENSERVE_DEMO_SPEEDUP": "fast"})
    assert status == 1
    assert "GREENSERVE_DEMO_SPEEDUP" in line
