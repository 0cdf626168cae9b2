"""The supervisor with small children of our own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from greenserve.env import ROOT
from greenserve.process import Identity, Spec, StartError
from greenserve.supervision import supervisor as supervision
from greenserve.supervision.supervisor import Supervisor, backoff_s
from greenserve.supervision.watchdog import Stall
from pools import wire

SLEEPER = "import time; time.sleep(600)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
WITH_GRANDCHILD = f"""
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
print(grandchild.pid, flush=True)
grandchild.wait()
"""


def spec(name: str, code: str = SLEEPER, stop_timeout_s: float = 5.0, rank: int = 1) -> Spec:
    argv = (sys.executable, "-c", code)
    return Spec(name=name, argv=argv, env=dict(os.environ), cwd=ROOT, stop_timeout_s=stop_timeout_s, rank=rank)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def tables() -> list[wire.ProcessTable]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, lines: list[str], tables: list[wire.ProcessTable]) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path, lines.append, tables.append)
    yield supervisor
    supervisor.stop()


def wait(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    return Identity.of(pid) is None


def kill(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.slots[name].child.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_child_is_started_again_within_a_second_when_killed(
    supervisor: Supervisor, lines: list[str], tables: list[wire.ProcessTable]
) -> None:
    supervisor.start(spec("a"))
    killed = kill(supervisor, "a")
    began = time.monotonic()
    assert supervisor.wait_until(lambda: supervisor.slots["a"].restarts == 1, timeout_s=5)
    assert time.monotonic() - began < 4
    row = tables[-1].processes[0]
    assert (row.state, row.restarts, row.last_exit) == ("running", 1, "killed by SIGKILL")
    assert row.pid not in (None, killed)
    assert [line.split(" (")[0] for line in lines] == ["a started", "a ended", "a restarted"]
    written = wire.decode(supervisor.table_path.read_bytes(), wire.ProcessTable)
    assert written.processes[0].pid == row.pid


def test_table_says_restarting_when_a_child_ends_again_and_again(
    supervisor: Supervisor, tables: list[wire.ProcessTable]
) -> None:
    supervisor.start(spec("a", "raise SystemExit(7)"))
    assert supervisor.wait_until(lambda: supervisor.slots["a"].quick_exits >= 2, timeout_s=8)
    row = tables[-1].processes[0]
    assert (row.state, row.pid, row.last_exit) == ("restarting", None, "exit status 7")


def test_stuck_child_is_restarted_once_and_the_table_says_so(tmp_path: Path, lines: list[str]) -> None:
    """It is stopped, so that it does not even hear the signal that asks it to end."""
    tables: list[wire.ProcessTable] = []
    stuck = [Stall("a", 60.0)]
    supervisor = Supervisor(tmp_path, lines.append, tables.append, lambda _: [stuck.pop()] if stuck else [])
    try:
        pid = supervisor.start(spec("a", stop_timeout_s=0.2)).pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        assert supervisor.wait_until(lambda: supervisor.slots["a"].restarts == 1, timeout_s=8)
        assert gone(pid)
        row = tables[-1].processes[0]
        assert (row.state, row.stalls, row.last_exit) == ("running", 1, "no progress for 60 s")
        assert row.stalled_s is not None
        assert "a: no progress for 60 s: restarting it" in lines
    finally:
        supervisor.stop()


def test_stuck_child_with_an_excuse_is_left_running(tmp_path: Path, lines: list[str]) -> None:
    stuck = [Stall("a", 60.0, "PostgreSQL does not answer")]
    supervisor = Supervisor(tmp_path, lines.append, stalled=lambda _: [stuck.pop()] if stuck else [])
    try:
        pid = supervisor.start(spec("a")).pid
        assert supervisor.wait_until(lambda: len(lines) == 2, timeout_s=5)
        assert lines[-1] == "a: no progress for 60 s, and PostgreSQL does not answer: it is left running"
        assert (supervisor.slots["a"].child.pid, supervisor.slots["a"].stalls) == (pid, 0)
    finally:
        supervisor.stop()


def test_pause_doubles_up_to_ten_seconds_when_exits_are_quick() -> None:
    assert [backoff_s(n) for n in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert backoff_s(10_000) == 10.0


def test_pause_is_short_again_when_the_child_ran_long(supervisor: Supervisor) -> None:
    supervisor.start(spec("a"))
    slot = supervisor.slots["a"]
    slot.quick_exits = 6
    slot.child.started_mono_s -= supervision.STEADY_AFTER_S + 1
    kill(supervisor, "a")
    assert supervisor.wait_until(lambda: slot.restarts == 1, timeout_s=3)


def test_children_are_stopped_in_waves_of_rank_when_stopping(supervisor: Supervisor, lines: list[str]) -> None:
    for name, rank in (("server", 0), ("worker", 1), ("front", 2)):
        supervisor.start(spec(name, rank=rank))
    pids = [slot.child.pid for slot in supervisor.slots.values()]
    supervisor.stop()
    assert lines[-3:] == ["front stopped", "worker stopped", "server stopped"]
    assert all(gone(pid) for pid in pids if pid)
    table = wire.decode(supervisor.table_path.read_bytes(), wire.ProcessTable)
    assert {row.state for row in table.processes} == {"stopped"}


def test_child_is_killed_when_it_does_not_listen(supervisor: Supervisor, lines: list[str]) -> None:
    child = supervisor.start(spec("deaf", STUBBORN, stop_timeout_s=0.3))
    wait(lambda: "deaf" in child.log_tail())
    supervisor.stop()
    assert lines[-1] == "deaf did not stop in time: killed"
    assert child.pid
    assert gone(child.pid)


def test_child_ends_and_is_forgotten_while_others_run_when_it_is_dismissed(
    supervisor: Supervisor, lines: list[str]
) -> None:
    for child in (spec("stays"), spec("leaves"), spec("deaf", STUBBORN, stop_timeout_s=0.3)):
        supervisor.start(child)
    deaf = supervisor.slots["deaf"].child
    wait(lambda: "deaf" in deaf.log_tail())
    supervisor.dismiss("leaves")
    supervisor.dismiss("deaf")
    assert supervisor.wait_until(lambda: len(supervisor.slots) == 1, timeout_s=5)
    assert set(lines[-2:]) == {"leaves stopped", "deaf did not stop in time: killed"}
    supervisor.start(spec("leaves"))
    assert set(supervisor.slots) == {"stays", "leaves"}


def test_grandchildren_go_too_when_a_child_is_killed(supervisor: Supervisor) -> None:
    child = supervisor.start(spec("a", WITH_GRANDCHILD))
    wait(lambda: child.log_tail().strip().isdigit())
    grandchild = int(child.log_tail().strip())
    assert not gone(grandchild)
    kill(supervisor, "a")
    assert supervisor.wait_until(lambda: supervisor.slots["a"].restarts == 1, timeout_s=5)
    wait(lambda: gone(grandchild))


def test_start_says_what_is_wrong_when_the_program_is_missing(supervisor: Supervisor) -> None:
    missing = Spec(name="x", argv=("/no/such/program",), env={}, cwd=ROOT)
    with pytest.raises(StartError, match="/no/such/program"):
        supervisor.start(missing)


def test_log_is_capped_and_goes_on_when_it_grows_too_large(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LOG_LIMIT_BYTES", 1000)
    code = "import time\nfor n in range(10**6): print('line', n, flush=True); time.sleep(0.002)"
    child = supervisor.start(spec("talker", code))
    assert supervisor.wait_until(lambda: child.log.with_suffix(".log.1").exists(), timeout_s=8)
    wait(lambda: child.log.stat().st_size > 0)
    assert b"\0" not in child.log.read_bytes()


RUN = """
import os, sys
from pathlib import Path
from greenserve.env import ROOT
from greenserve.process import Spec
from greenserve.supervision.supervisor import Supervisor
supervisor = Supervisor(Path(sys.argv[1]), lambda line: print(line, flush=True))
supervisor.catch_signals()
supervisor.end_strays()
for name, code in zip("ab", sys.argv[2:]):
    supervisor.start(Spec(name=name, argv=(sys.executable, "-c", code), env=dict(os.environ), cwd=ROOT))
supervisor.run(lambda: None)
supervisor.stop()
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], list[int]]]]:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), SLEEPER, STUBBORN], stdout=subprocess.DEVNULL)
    table = tmp_path / "run" / "processes.json"

    def pids() -> list[int]:
        rows = wire.decode(table.read_bytes(), wire.ProcessTable).processes if table.exists() else []
        return [row.pid for row in rows if row.pid]

    try:
        wait(lambda: len(pids()) == 2)
        wait(lambda: (tmp_path / "log" / "b.log").read_text() == "deaf\n")
        yield process, pids
    finally:
        process.kill()
        process.wait()


def test_no_orphan_is_left_when_the_supervisor_is_killed(
    running: tuple[subprocess.Popen[bytes], Callable[[], list[int]]],
) -> None:
    process, pids = running
    children = pids()
    process.kill()
    process.wait()
    wait(lambda: all(gone(pid) for pid in children), timeout_s=3)


def test_second_interrupt_hurries_when_a_child_is_deaf(
    running: tuple[subprocess.Popen[bytes], Callable[[], list[int]]],
) -> None:
    process, pids = running
    children = pids()
    process.send_signal(signal.SIGINT)
    wait(lambda: gone(children[0]))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait(3)
    assert all(gone(pid) for pid in children)


def test_stray_is_ended_when_an_earlier_supervisor_left_it(
    supervisor: Supervisor, lines: list[str], tmp_path: Path
) -> None:
    import msgspec

    stray = subprocess.Popen([sys.executable, "-c", SLEEPER])
    bystander = subprocess.Popen([sys.executable, "-c", SLEEPER])
    try:
        known, other = Identity.of(stray.pid), Identity.of(bystander.pid)
        assert known
        assert other
        same_pid_before_boot = Identity(other.pid, other.start_ticks, "another boot")
        supervisor.identities_path.write_bytes(msgspec.json.encode({"a": known, "b": same_pid_before_boot}))
        supervisor.end_strays()
        assert stray.wait(5) == -signal.SIGTERM
        assert bystander.poll() is None
        assert "a of an earlier run" in lines[0]
    finally:
        for process in (stray, bystander):
            process.kill()
            process.wait()


class FullDisk:
    """Nothing can be written below the supervisor's folder, until `undo`; reading goes on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

        def full(path: Path, *_: object, **__: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        patch.setattr(Path, "write_bytes", full)
        patch.setattr("shutil.copyfile", lambda source, copy: full(copy))
        opened: Callable[..., object] = Path.open

        def no_new_files(path: Path, mode: str = "r", **more: object) -> object:
            return full(path) if "a" in mode and path.suffix == ".log" else opened(path, mode, **more)

        patch.setattr(Path, "open", no_new_files)

    def undo(self) -> None:
        self._patch.undo()


def test_processes_are_kept_running_when_the_disk_is_full(
    supervisor: Supervisor, lines: list[str], tables: list[wire.ProcessTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.start(spec("a"))
    monkeypatch.setattr(supervision, "PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr(supervision, "LOG_LIMIT_BYTES", 10)
    log = supervisor.slots["a"].child.log
    log.write_bytes(b"a line of a log\n" * 10)
    with monkeypatch.context() as patch:
        disk = FullDisk(patch)
        kill(supervisor, "a")
        assert supervisor.wait_until(lambda: supervisor.slots["a"].restarts == 1, timeout_s=5)
        supervisor.start(spec("b"))
        supervisor.tick()
        assert [row.state for row in tables[-1].processes] == ["running", "running"], "others learn of it all the same"
        assert log.stat().st_size == 0, "a full disk does not keep a log from being cut off"
        assert sum("cannot be written" in line for line in lines) == 1, "said once"
        disk.undo()
        supervisor.tick()
    assert "can be written again" in lines[-1]
    written = wire.decode(supervisor.table_path.read_bytes(), wire.ProcessTable)
    assert [row.name for row in written.processes] == ["a", "b"]
    assert not list(supervisor.table_path.parent.glob(".*")), "no half file is left"


def test_process_that_logs_ends_its_work_when_the_disk_of_its_log_is_full(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """As each of ours logs: by `logging`, to the file that the supervisor opened."""
    code = """
import logging, pathlib, sys
logging.basicConfig(level=logging.INFO)
for n in range(2000):
    logging.info("line %d", n)
pathlib.Path(sys.argv[1]).touch()
"""
    os.symlink("/dev/full", supervisor.log_dir / "chatty.log")
    done = tmp_path / "done"
    argv = (sys.executable, "-c", code, str(done))
    supervisor.start(Spec(name="chatty", argv=argv, env={**os.environ, "PYTHONUNBUFFERED": "1"}, cwd=ROOT))
    assert supervisor.wait_until(done.exists, timeout_s=8)
