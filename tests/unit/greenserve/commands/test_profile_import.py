from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from greenserve.cli import cli

ONE = ("--model", "Llama3-8B", "--gpu", "A100-80GB", "--tp", "1")
RUN = """mhz,prefill_tokens,batch,context_tokens,start_s,end_s,energy_start_j,energy_end_j,iterations
1410,0,8,4000,100.0,100.5,1000,1125,25
1410,0,8,4000,101.0,101.5,1250,1375,25
1410,0,8,4000,102.0,104.0,1500,1625,25
1410,0,16,8000,105.0,105.6,1700,1860,25
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["engine", *arguments])


@pytest.fixture
def repeats(tmp_path: Path) -> Path:
    file = tmp_path / "run.csv"
    file.write_text(RUN)
    return file


@pytest.mark.parametrize("name", ["profile.json", "profile.csv"])
def test_run_becomes_a_profile_that_answers_when_imported(repeats: Path, name: str) -> None:
    out = repeats.parent / name
    shown = run("import", "run", str(repeats), *ONE, "--out", str(out))
    assert shown.exit_code == 0, shown.output
    assert "2 points at 1 clock, from 4 repeats" in shown.output
    assert "row 3: t_s 0.08 is 4.00 times the median of its repeats" in shown.output
    answer = json.loads(run("predict", *ONE, "--decode", "8x500", "--profile", str(out), "--json").output)
    assert (answer["source"], answer["watts_source"]) == ("measured", "measured")
    assert (answer["t_s"], answer["watts"]) == (pytest.approx(0.02), pytest.approx(250.0))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (RUN.replace("100.5", "99"), "row 1: end_s: not after start_s"),
        (RUN.replace("1410,0,16", "1410,0,x"), "row 4: batch: 'x' is not a number"),
        ("", "no measurements"),
    ],
)
def test_run_is_refused_in_one_line_when_it_is_bad(repeats: Path, content: str, says: str) -> None:
    repeats.write_text(content)
    shown = run("import", "run", str(repeats), *ONE, "--out", str(repeats.parent / "p.json"))
    assert shown.exit_code == 1
    assert says in shown.output
    assert len(shown.output.strip().splitlines()) == 1
    assert not (repeats.parent / "p.json").exists()


def test_run_is_refused_when_its_files_cannot_be_used(repeats: Path) -> None:
    for file, out, status in (("none.csv", "p.json", 1), ("run.csv", "no/p.json", 1), ("run.csv", "p.txt", 2)):
        shown = run("import", "run", str(repeats.parent / file), *ONE, "--out", str(repeats.parent / out))
        assert shown.exit_code == status
        assert "Traceback" not in shown.output


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is not None, reason="aiconfigurator is installed")
def test_remedy_is_shown_when_the_extra_is_missing(tmp_path: Path) -> None:
    shown = run("import", "aiconfigurator", *ONE, "--out", str(tmp_path / "p.csv"))
    assert shown.exit_code == 1
    assert "pip install 'greenserve[aiconfigurator]'" in shown.output
    assert len(shown.output.strip().splitlines()) == 1


def test_reason_is_shown_when_the_database_cannot_have_it(tmp_path: Path) -> None:
    shown = run("import", "aiconfigurator", *ONE, "--backend", "ollama", "--out", str(tmp_path / "p.csv"))
    assert shown.exit_code == 1
    assert "backend 'ollama': known are vllm, trtllm" in shown.output
