"""The clock actuator and its leases, as real processes over the NVML stand-in: every way in which a lease can end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from core.ports import PermanentError, RetryableError
from pools import wire
from pools.actuator.actuator_protocol import MESSAGE_BYTES
from pools.agent import join_fleet
from pools.agent.devices.actuator_client import SocketFrequencyActuator
from tests.fakes.actuator import ActuatorProcess
from tests.fakes.nvml import NO_PERMISSION, UNKNOWN, Boards, machine
from tests.fakes.simnode import ROOT, eventually

PROMISED_S = 10.0  # within which a clock is back, whatever was killed
HOLD = """
import sys, time
from pathlib import Path
from pools.agent.devices.actuator_client import SocketFrequencyActuator
actuator = SocketFrequencyActuator(Path(sys.argv[1]))
while True:
    actuator.lock([sys.argv[2]], 705.0, 2.0)
    time.sleep(0.3)
"""


@pytest.fixture
def boards(nvml_library: Path, tmp_path: Path) -> Iterator[Boards]:
    with machine(nvml_library, tmp_path, count=2, seen=False) as found:
        yield found


@pytest.fixture
def actuator(boards: Boards) -> Iterator[ActuatorProcess]:
    folder = Path(tempfile.mkdtemp(prefix="actuator-"))  # short, and open to the other user of a test
    folder.chmod(0o755)
    process = ActuatorProcess(folder, boards).start()
    yield process
    if process.process is not None and process.process.poll() is None:
        process.process.kill()
        process.process.wait(5.0)
    shutil.rmtree(folder)


@pytest.fixture
def client(actuator: ActuatorProcess) -> Iterator[SocketFrequencyActuator]:
    connected = SocketFrequencyActuator(actuator.socket, 5.0)
    yield connected
    connected.close()


def agent(actuator: ActuatorProcess, boards: Boards) -> subprocess.Popen[bytes]:
    """A process that holds GPU 0 at 705 MHz."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(actuator.socket), boards.uuid(0)], cwd=ROOT)
    eventually(lambda: boards.locked_mhz(0) == 705, 20.0, "locked clock")
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_clock_returns_when_the_agent_goes_away_or_hangs(
    actuator: ActuatorProcess, boards: Boards, number: signal.Signals
) -> None:
    process = agent(actuator, boards)
    process.send_signal(number)
    eventually(lambda: boards.locked_mhz(0) == 0, PROMISED_S, "clock at its default")
    process.kill()
    process.wait(5.0)


def test_clock_returns_when_the_actuator_has_to_end(actuator: ActuatorProcess, boards: Boards) -> None:
    process = agent(actuator, boards)
    assert actuator.stop(signal.SIGTERM) == 0, actuator.log()
    assert boards.locked_mhz(0) == 0
    assert not actuator.socket.exists()
    process.kill()
    process.wait(5.0)


def test_clock_returns_when_a_killed_actuator_is_started_again(
    actuator: ActuatorProcess, boards: Boards, client: SocketFrequencyActuator
) -> None:
    client.lock([boards.uuid(0)], 705.0, 5.0)
    boards[1].locked_mhz = 900  # by someone's own hand: none of ours
    actuator.stop(signal.SIGKILL)
    assert boards.locked_mhz(0) == 705
    with pytest.raises(RetryableError, match="no clock actuator"):
        client.lock([boards.uuid(0)], 705.0, 5.0)
    actuator.start()
    eventually(lambda: boards.locked_mhz(0) == 0, PROMISED_S, "clock at its default")
    assert boards.locked_mhz(1) == 900
    client.lock([boards.uuid(0)], 705.0, 5.0)  # the client finds the new one by itself
    assert boards.locked_mhz(0) == 705


def test_second_actuator_keeps_away_when_one_runs(
    actuator: ActuatorProcess, boards: Boards, client: SocketFrequencyActuator
) -> None:
    client.lock([boards.uuid(0)], 705.0, 9.0)
    second = subprocess.run(
        [sys.executable, "-m", "tests.fakes.actuator", "--socket", actuator.socket, "--state", actuator.state],
        cwd=ROOT,
        env={**os.environ, **boards.environment},
        capture_output=True,
        timeout=30.0,
        text=True,
    )
    assert second.returncode == 1
    assert "another actuator listens there" in second.stderr
    assert boards.locked_mhz(0) == 705


def test_clock_returns_later_when_the_driver_refuses_at_first(
    actuator: ActuatorProcess, boards: Boards, client: SocketFrequencyActuator
) -> None:
    client.lock([boards.uuid(0)], 705.0, 9.0)
    boards.fail(0, "reset", UNKNOWN)
    client.close()
    eventually(lambda: boards.calls(0, "reset") >= 2, PROMISED_S, "second try")
    boards.fail(0, "reset", 0)
    eventually(lambda: boards.locked_mhz(0) == 0, PROMISED_S, "clock at its default")


def test_node_is_measure_only_when_the_right_is_lacking(
    actuator: ActuatorProcess, boards: Boards, client: SocketFrequencyActuator
) -> None:
    assert client.refusal() == ""
    boards.fail(0, "lock", NO_PERMISSION)
    with pytest.raises(PermanentError, match="no permission"):
        client.lock([boards.uuid(0)], 705.0, 5.0)
    assert "CAP_SYS_ADMIN" in client.refusal()
    actuator.stop()
    assert "no clock actuator at" in client.refusal()


def test_message_is_refused_when_it_is_no_request(actuator: ActuatorProcess, boards: Boards) -> None:
    for message in (
        b"\x00\xff",
        b"{}",
        b'{"do": "power-limit", "gpus": [], "watts": 100}',
        b'{"do": "lock", "gpus": ["GPU-1"], "mhz": 705, "lease_s": 5, "extra": 1}',
        b'{"do": "reset", "gpus": "GPU-1"}',
        b" " * (MESSAGE_BYTES + 1),
    ):
        with _connected(actuator) as connection:
            connection.send(message)
            answer = json.loads(connection.recv(MESSAGE_BYTES))
        assert answer["permanent"]
        assert answer["error"]
    assert not boards.calls(0, "lock")
    with _connected(actuator) as connection:  # and it goes on
        connection.send(b'{"do": "status"}')
        assert json.loads(connection.recv(MESSAGE_BYTES))["error"] == ""


def _connected(actuator: ActuatorProcess) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10.0)
    try:
        connection.connect(str(actuator.socket))
    except OSError:
        connection.close()
        raise
    return connection


def test_other_users_are_refused_when_they_are_not_named(actuator: ActuatorProcess, boards: Boards) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be someone else")
    child = os.fork()
    if child == 0:  # as someone else, with nothing but what this process has loaded already
        status = 1
        try:
            os.setuid(65534)
            try:
                SocketFrequencyActuator(actuator.socket, 5.0).lock([boards.uuid(0)], 705.0, 5.0)
            except PermanentError as error:
                status = 0 if "--allow-uid 65534" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert not boards.calls(0, "lock")


def test_agent_says_that_it_only_measures_until_the_actuator_is_there(
    tmp_path: Path, boards: Boards, actuator: ActuatorProcess, redis_client: redis.Redis
) -> None:
    """The agent as it runs on a GPU machine: a Celery worker, NVML, the actuator's socket, and Redis."""
    actuator.stop()
    node, log = "real-test", tmp_path / "agent.log"
    command = [
        *join_fleet.agent_command(node)[:-1],
        str(actuator.socket),
    ]  # as `node join` prints it, but for the socket
    environment = {**os.environ, **boards.environment, "BROKER_URL": settings.CELERY_BROKER_URL}
    boards.fail(1, "temperature", 3)

    def state() -> wire.AgentState | None:
        data: Any = redis_client.get(wire.agent_key(node))
        return wire.decode(data, wire.AgentState) if data else None

    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        redis_client.set(
            wire.desired_key(node), wire.encode(wire.DesiredNode(node, 1, time.time(), [], wire.ClockPolicy()))
        )
        eventually(lambda: (now := state()) and "no clock actuator" in now.measure_only, 30.0, "word of it")
        noticed: Any = eventually(lambda: (now := state()) and now.notices and now, 10.0, "notice of the meters")
        first, *of_the_host = noticed.notices
        assert first == f"{boards.uuid(1)} does not tell: temperature"
        assert all("host energy of" in notice or "not metered" in notice for notice in of_the_host)
        assert len(of_the_host) == 1  # whatever this machine has
        actuator.start()
        eventually(lambda: (now := state()) and now.measure_only == "", 10.0, "clocks")
        entries: Any = redis_client.xrange(wire.batch_stream(node))
        rows = wire.decode(entries[-1][1][b"b"], wire.AgentBatch).gpus.unpack()
        assert [row.gpu_uuid for row in rows] == [boards.uuid(0), boards.uuid(1)]
        assert all(row.energy_j and row.power_w == 400.0 for row in rows)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()}\n{state()}") from error
    finally:
        process.terminate()
        process.wait(15.0)
