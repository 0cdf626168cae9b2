from __future__ import annotations

import base64
import errno
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from greenserve import packages
from greenserve.supervision import preflight
from greenserve.supervision.preflight import Lock, Refusal


def test_second_lock_names_the_holder_when_the_first_is_held(tmp_path: Path) -> None:
    first = Lock.of(tmp_path)
    first.take()
    with pytest.raises(Refusal) as caught:
        Lock.of(tmp_path).take()
    assert caught.value.status == preflight.ALREADY_RUNNING
    assert str(os.getpid()) in str(caught.value)
    assert "greenserve down" in str(caught.value)
    first.release()
    Lock.of(tmp_path).take()


def test_stale_lock_file_holds_nobody_up_when_its_process_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from greenserve.supervision.preflight import Lock; "
        "Lock.of(Path(sys.argv[1])).take(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=20, check=False)
    assert killed.returncode == -9
    lock = Lock.of(tmp_path)
    assert lock.path.read_text().strip().isdigit()
    assert lock.holder() is None
    lock.take()
    assert lock.holder() == os.getpid()
    lock.release()


def test_one_line_names_port_and_variable_when_the_port_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(Refusal) as caught:
            preflight.check_port("127.0.0.1", port, "the dashboard", "GREENSERVE_WEB_PORT")
    assert caught.value.status == preflight.PORT_TAKEN
    assert str(port) in str(caught.value)
    assert "GREENSERVE_WEB_PORT" in str(caught.value)
    preflight.check_port("127.0.0.1", port, "the dashboard", "GREENSERVE_WEB_PORT")


def test_control_ports_stay_the_same_unless_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first = preflight.control_ports(tmp_path, ["a", "b"], {})
    assert len(set(first.values())) == 2
    assert preflight.control_ports(tmp_path, ["a", "b"], {}) == first
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first["a"]))
        listener.listen()
        kept = preflight.control_ports(tmp_path, ["a", "b", "c"], first)
        assert {name: kept[name] for name in first} == first  # they run: their own servers have the ports
        second = preflight.control_ports(tmp_path, ["a", "b"], {})
    assert second["a"] != first["a"]
    assert second["b"] == first["b"]


def test_state_is_empty_when_the_file_is_missing_or_damaged(tmp_path: Path) -> None:
    assert preflight.read_state(tmp_path) == {}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "supervisor.json").write_text("[")
    assert preflight.read_state(tmp_path) == {}
    preflight.write_state(tmp_path, "ready", model="m")
    assert preflight.read_state(tmp_path)["state"] == "ready"


def test_start_is_refused_when_a_package_is_found_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "pools").mkdir()
    (tmp_path / "pools" / "__init__.py").touch()
    code = "from greenserve.supervision import preflight; preflight.check_packages()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=60, check=False, capture_output=True
    )
    assert done.returncode != 0
    assert b"in the package pools: install GreenServe into a virtual environment of its own" in done.stderr
    preflight.check_packages()


def test_package_is_not_ours_when_another_wheel_wrote_over_its_first_file(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Path(packages.__file__).resolve().parents[1] / "core" / "__init__.py"
    other = metadata.PackagePath("core/__init__.py")
    other.hash = metadata.FileHash("sha256=AAAA")
    other.dist = metadata.distribution("greenserve")
    monkeypatch.setattr(metadata.PackagePath, "locate", lambda _: ours)
    monkeypatch.setattr(metadata, "files", lambda _: [other])
    assert packages.not_ours() == ["core"]
    other.hash = metadata.FileHash(
        "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(ours.read_bytes()).digest()).rstrip(b"=").decode()
    )
    assert packages.not_ours() == []


def test_distribution_that_shares_a_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"core": ["greenserve", "corelib"], "numpy": ["numpy"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: owners)
    assert list(packages.shared()) == [("core", "corelib")]


def test_logs_and_spools_are_closed_to_others_also_those_of_earlier_versions(tmp_path: Path) -> None:
    log, spool = tmp_path / "log", tmp_path / "spool"
    for folder in (log, spool):
        folder.mkdir()
        folder.chmod(0o755)
    old = log / "web.log"
    old.touch()
    old.chmod(0o644)
    mask = os.umask(0o022)
    try:
        preflight.close_to_others(tmp_path)
        (log / "gateway.log").touch()
        (tmp_path / "reports").mkdir()
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    folders = {"log": 0o750, "spool": 0o700, "learned": 0o700, "secrets": 0o700, "reports": 0o750}
    assert modes == folders | {"web.log": 0o640, "gateway.log": 0o640}


def test_start_is_refused_and_the_folder_named_when_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preflight.check_room(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=7_000_000))
    with pytest.raises(Refusal, match="has 7 MB free, and GreenServe starts with 100 MB at least") as caught:
        preflight.check_room(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.status == preflight.START_FAILED


def test_state_and_ports_do_not_stop_the_supervisor_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    preflight.write_state(tmp_path, "ready")

    def full(path: Path, *_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    preflight.write_state(tmp_path, "stopping")
    assert preflight.read_state(tmp_path)["state"] == "ready", "as it was, and not half a file"
    ports = preflight.control_ports(tmp_path, ["n1", "n2"], {})
    assert set(ports) == {"n1", "n2"}


def test_start_is_refused_when_the_lock_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(Refusal, match="No space left on device"):
        Lock.of(tmp_path).take()
