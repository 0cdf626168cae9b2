"""No command shows a traceback, whatever its surroundings: run as people run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from greenserve import plain_errors
from greenserve.cli import cli
from greenserve.env import ROOT
from tests.e2e.product import GREENSERVE

AWAY = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}
NEED_DATABASE = (
    *("decisions", "user list", "user create x --role viewer", "user token x --label y --right view", "policy"),
    *("report list", "report verify 1", "carbon feeds", "carbon fetch", "forecast", "node token"),
)
DJANGO = ("migrate", "showmigrations", "load_demo")


def leaves(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name)
        if isinstance(command, click.Group):
            yield from leaves(command, *before, name)


def run(program: tuple[str, ...], words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "GREENSERVE_DEBUG"}
    done = subprocess.run(
        [*program, *words.split()],
        env=environment | {"GREENSERVE_VAR": str(folder / "var")} | variables,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done


def plain(done: subprocess.CompletedProcess[str], *said: str, lines: int = 2) -> None:
    assert "Traceback" not in done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) <= lines, done.stderr
    for words in said:
        assert words in done.stderr


MANAGE = (sys.executable, "manage.py")


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.slow("as others") if n else ()) for n, words in enumerate(NEED_DATABASE)],
)
def test_command_names_the_remedy_when_the_database_is_away(tmp_path: Path, words: str) -> None:
    plain(run((str(GREENSERVE),), words, tmp_path, **AWAY), "greenserve up", "DATABASE_URL")


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=() if words == "migrate" else pytest.mark.slow("as others")) for words in DJANGO],
)
def test_django_command_names_the_remedy_and_logs_when_the_database_is_away(tmp_path: Path, words: str) -> None:
    done = run(MANAGE, words, tmp_path, **AWAY)
    plain(done, "manage.py: the database does not answer", str(tmp_path / "var" / "log" / "errors.log"))
    assert "OperationalError" in (tmp_path / "var" / "log" / "errors.log").read_text()


@pytest.mark.slow("processes of their own")
@pytest.mark.parametrize(
    ("option", "variables"),
    [pytest.param("--traceback", {}, marks=pytest.mark.slow("as the variable")), ("", {"GREENSERVE_DEBUG": "1"})],
)
def test_traceback_is_shown_when_it_is_asked_for(tmp_path: Path, option: str, variables: dict[str, str]) -> None:
    assert "Traceback" in run(MANAGE, f"showmigrations {option}", tmp_path, **AWAY, **variables).stderr


@pytest.mark.parametrize("program", [(str(GREENSERVE), "user", "list"), (*MANAGE, "check")])
def test_variable_is_named_when_its_value_or_folder_is_bad(tmp_path: Path, program: tuple[str, ...]) -> None:
    plain(run(program, "", tmp_path, DATABASE_URL="mysql://x"), "DATABASE_URL", "postgresql://", lines=1)
    plain(run(program, "", tmp_path, GREENSERVE_VAR="/proc/x"), "GREENSERVE_VAR", lines=1)


@pytest.mark.parametrize("command", ["simulate", "compare --policy freesh"])
def test_line_is_named_when_a_file_is_no_yaml(tmp_path: Path, command: str) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("fleet: [1\n")
    shown = CliRunner().invoke(cli, [*command.split(), str(bad)])
    assert shown.exit_code == 2
    assert f"{bad}: not YAML: line 2, column 1: expected" in shown.output
    assert len(shown.output.splitlines()) == 1


def test_unknown_commands_are_refused_with_where_to_look(tmp_path: Path) -> None:
    plain(run((str(GREENSERVE),), "nope", tmp_path), "No such command 'nope'", "greenserve --help", lines=4)
    plain(run(MANAGE, "nope", tmp_path), "Unknown command: 'nope'", "manage.py help")


@pytest.mark.parametrize("words", list(leaves(cli)), ids=" ".join)
def test_every_command_refuses_a_bad_option_in_a_few_lines(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*words, "--no-such-option"])
    assert shown.exit_code == (1 if words == ("apply",) else 2)  # 2 says there that a fleet would change
    assert re.search(r"No such option:? .?--no-such-option", shown.output)
    assert len(shown.output.splitlines()) <= 6


@pytest.mark.parametrize("error", [KeyError("lost"), FileNotFoundError(2, "No such file", "fleet.yaml")])
def test_unforeseen_errors_are_shown_and_kept(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path))
    monkeypatch.delenv("GREENSERVE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended, plain_errors.in_plain_words("greenserve"):
        raise error
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert ("lost" if isinstance(error, KeyError) else "fleet.yaml: No such file") in said
    assert len(said.splitlines()) == 2
    assert "Traceback" in (tmp_path / "log" / "errors.log").read_text()


def test_ctrl_c_ends_without_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, plain_errors.in_plain_words("greenserve"):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert not capsys.readouterr().err
