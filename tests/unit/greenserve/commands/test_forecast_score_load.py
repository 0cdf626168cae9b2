"""`greenserve forecast score-load`: what it prints of a file of rates, and which files it refuses."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenserve.cli import cli
from telemetry.forecasts import learned

HEAD = "start_s,requests_s"


def scored(path: Path, *options: str):
    return CliRunner().invoke(cli, ["forecast", "score-load", "--rates", str(path), *options])


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def week(tmp_path: Path) -> Path:
    rates = [f"{3600 * hour},{100 + 50 * math.sin(2 * math.pi * hour / 24):.3f}" for hour in range(7 * 24)]
    return written(tmp_path / "week.csv", HEAD, *rates)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "available", lambda: False)


def test_every_model_and_the_choice_are_scored(week: Path) -> None:
    done = scored(week, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["step_s"], document["steps_ahead"], document["quantile"]) == (3600.0, 6, 0.9)
    found = {one["model"]: one for one in document["scores"]}
    assert {"persistence", "day ago", "chosen by back-test"} <= set(found)
    assert found["day ago"]["median"] == pytest.approx(0.0, abs=1e-3)
    assert "day 3 of 3" in done.stderr


def test_the_table_says_what_is_missing_without_pytorch(week: Path) -> None:
    done = scored(week)
    assert done.exit_code == 0, done.output
    assert "day ago" in done.stdout
    assert 'pip install "greenserve[learned]"' in done.stdout


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["at,rate", "0,1"], "line 1: no column requests_s, start_s"),
        ([HEAD, "0,1"], "two steps"),
        ([HEAD, "0,1", "3600,x"], "line 3: give start_s and requests_s as numbers"),
        ([HEAD, "0,1", "3600,-2"], "line 3: .* not below 0"),
        ([HEAD, "0,1", "3600,1", "9000,1"], "line 4: steps are even"),
        ([HEAD, "0,1", "0,1"], "line 3: steps are even"),
        ([HEAD, "0,1", "7000,1"], "do not make up a day"),
        ([HEAD, *(f"{3600 * n},1" for n in range(48))], "three days"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    done = scored(written(tmp_path / "rates.csv", *lines))
    assert done.exit_code == 2
    assert re.search(words, done.stderr.replace("\n", " ")), done.stderr
