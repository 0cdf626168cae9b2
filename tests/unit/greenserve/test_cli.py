from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from greenserve import env
from greenserve.cli import COMMANDS, cli
from greenserve.supervision import disk_room
from greenserve.supervision.preflight import Lock


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path / "var"))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments))

    return invoke


def test_help_shows_every_command_without_importing_them_when_asked(  # type: ignore[no-untyped-def]
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("greenserve.commands")]:
        monkeypatch.delitem(sys.modules, name)  # other tests hold these modules, and patch them
    shown = run("--help")
    assert shown.exit_code == 0
    assert all(name in shown.output for name in COMMANDS)
    assert not [name for name in sys.modules if name.startswith("greenserve.commands")]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_when_asked(run, name: str) -> None:  # type: ignore[no-untyped-def]
    shown = run(name, "--help")
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) > 5


def test_status_says_stopped_when_nothing_runs(run) -> None:  # type: ignore[no-untyped-def]
    shown = run("status", "--json")
    found = json.loads(shown.output)
    assert shown.exit_code == 1
    assert found["running"] is False
    assert found["supervisor_pid"] is None
    assert found["processes"] == []
    assert found["gateway"].endswith("/v1")
    assert "greenserve up" in run("status").output


def test_status_names_a_full_disk_and_fails_when_something_runs(  # type: ignore[no-untyped-def]
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "var" / "spool"
    spool.mkdir(parents=True)
    monkeypatch.setattr(Lock, "holder", lambda self: 4711)
    real, full = os.statvfs, list(os.statvfs(spool))
    assert run("status").exit_code == 0
    full[4] = 0  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(full))
    shown = run("status")
    assert shown.exit_code == 1
    (line,) = [line for line in shown.output.splitlines() if line.startswith("The disk of")]
    assert str(spool) in line
    assert line.endswith("is full, with 0 MB free: make room there")
    as_json = run("status", "--json")
    assert (as_json.exit_code, json.loads(as_json.output)["disk_faults"]) == (1, [line])
    read_only = list(real(spool))
    read_only[8] |= os.ST_RDONLY  # f_flag
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(read_only))
    assert "is read-only: mount it for writing" in run("status").output


def test_disk_that_feeds_are_read_from_may_be_read_only(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for name in ("feeds", "reports"):
        (tmp_path / "var" / name).mkdir(parents=True)
    names = [path.name for path in disk_room._folders(env.read())]
    assert "reports" in names
    assert "feeds" not in names


def test_small_disk_is_full_by_its_share_and_not_by_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    room = list(os.statvfs(tmp_path))
    room[1], room[2] = 4096, 8192  # f_frsize, f_blocks: 32 MiB

    def fault(free: float) -> str:
        room[4] = int(free * room[2])
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(room))
        return disk_room._fault(tmp_path)

    assert fault(0.9) == fault(0.04) == ""
    assert "is full" in fault(0.02)


def test_down_is_content_when_nothing_runs(run) -> None:  # type: ignore[no-untyped-def]
    shown = run("down")
    assert shown.exit_code == 0
    assert "Nothing runs" in shown.output


def test_logs_lists_and_shows_when_there_are_some(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert "No logs yet" in run("logs").output
    folder = tmp_path / "var" / "log"
    folder.mkdir(parents=True)
    (folder / "web.log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert run("logs").output.split() == ["web"]
    assert run("logs", "web", "-n", "2").output == "line 98\nline 99\n"
    assert json.loads(run("logs", "web", "-n", "1", "--json").output)["lines"] == ["line 99"]
    missing = run("logs", "nope")
    assert missing.exit_code == 1
    assert "there are: web" in missing.output


def test_doctor_names_each_check_when_asked(run) -> None:  # type: ignore[no-untyped-def]
    found = {finding["check"]: finding for finding in json.loads(run("doctor", "--json").output)}
    assert {"python", "data folder", "disk", "PostgreSQL", "Redis", "port of the gateway"} <= set(found)
    assert found["PostgreSQL"]["ok"], found["PostgreSQL"]


def test_doctor_fails_in_one_line_when_the_database_does_not_answer(  # type: ignore[no-untyped-def]
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    shown = run("doctor", "--json")
    found = {finding["check"]: finding for finding in json.loads(shown.output)}
    assert shown.exit_code == 1
    assert not found["PostgreSQL"]["ok"]
    assert not found["Redis"]["ok"]


def test_version_is_printed_when_asked(run) -> None:  # type: ignore[no-untyped-def]
    assert json.loads(run("version", "--json").output)["greenserve"]


def test_replay_says_what_is_missing_when_called_wrongly(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert run("replay").exit_code == 2
    assert run("replay", "a.csv", "--generate", "azure-conv-like").exit_code == 2
    without_keys = run("replay", "--generate", "azure-conv-like")
    assert without_keys.exit_code == 1
    assert "--key-file" in without_keys.output


def test_replay_names_the_line_when_a_row_is_bad(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace, key = tmp_path / "bad.csv", tmp_path / "key"
    key.write_text("k\n")
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,x,1\n")
    shown = run("replay", str(trace), "--key-file", str(key), "--model", "m")
    assert shown.exit_code == 1
    assert "line 3" in shown.output
    assert "Traceback" not in shown.output
    missing = run("replay", str(tmp_path / "none.csv"), "--key-file", str(key), "--model", "m")
    assert missing.exit_code == 1
    assert "none.csv" in missing.output


def test_checksum_of_the_public_trace_is_that_of_the_recorded_one_when_compared(test_data: Path) -> None:
    import gzip
    import hashlib

    from greenserve.commands.traffic import PUBLIC_TRACES

    content = gzip.decompress((test_data / "azure_llm_2023_conv.csv.gz").read_bytes())
    public = PUBLIC_TRACES["azure-2023-conv"]
    assert hashlib.sha256(content).hexdigest() == public.sha256
    assert len(content) == public.bytes


@pytest.mark.parametrize(("content", "kept"), [(b"as published", True), (b"something else", False)])
def test_fetched_trace_is_kept_only_when_its_checksum_is_right(  # type: ignore[no-untyped-def]
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, kept: bool
) -> None:
    import hashlib

    from greenserve.commands import traffic

    source = tmp_path / "source"
    source.write_bytes(content)
    public = traffic.PublicTrace(
        "a trace", source.as_uri(), hashlib.sha256(b"as published").hexdigest(), len(content), "none"
    )
    monkeypatch.setitem(traffic.PUBLIC_TRACES, "azure-2023-conv", public)
    out = tmp_path / "out.csv"
    shown = run("trace", "fetch", "azure-2023-conv", "--out", str(out), "--json")
    assert out.exists() is kept
    assert (shown.exit_code == 0) is kept
    assert [path.name for path in tmp_path.glob(".*part")] == []
    if kept:
        assert json.loads(shown.output)["sha256"] == public.sha256


def test_fetch_says_so_in_one_line_when_there_is_no_network(  # type: ignore[no-untyped-def]
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenserve.commands import traffic

    nowhere = traffic.PublicTrace("a trace", "http://127.0.0.1:1/trace.csv", "", 0, "none")
    monkeypatch.setitem(traffic.PUBLIC_TRACES, "azure-2023-conv", nowhere)
    shown = run("trace", "fetch", "azure-2023-conv", "--out", str(tmp_path / "out.csv"))
    assert shown.exit_code == 1
    assert "cannot fetch" in shown.output
    assert len(shown.output.strip().splitlines()) == 1


def test_bad_variable_stops_the_command_with_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("GREENSERVE_WEB_PORT", "x")
    shown = run("status")
    assert isinstance(shown.exception, env.BadEnvironment)
