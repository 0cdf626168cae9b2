"""Tests of greenserve.commands.predictor.score."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from greenserve.cli import cli


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["predictor", "score", *arguments])


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lines = ["prompt,one,two,same"]
    for number in range(140):
        score = rng.normal()
        one, two = (int(np.exp(level + score + 0.2 * rng.normal())) for level in (5, 6))
        lines.append(f'"prompt{number}, of matter{number}",{one},{"" if number == 3 else two},7')
    path = tmp_path / "answers.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_figures_are_printed_by_predictor_and_by_model(answers: Path) -> None:
    result = run("--data", str(answers), "--folds", "2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["prompts"], found["models"], found["tested"]) == (140, 3, ["one", "two"])
    assert found["left_out"] == ["same"]
    assert found["by_model"]["text"]["two"]["answers"] == 139
    assert found["mean"]["memory"]["accuracy"] > 0.5 > found["mean"]["text"]["accuracy"]
    assert sum(map(sum, found["confusion"]["text"])) == 140 + 139
    assert "fold 2 of 2" in result.stderr


def test_what_was_tested_is_said(answers: Path) -> None:
    result = run("--data", str(answers), "--folds", "2", "--models", "1")
    assert "140 prompts, 1 of 3 models tested, 2 folds" in result.stdout
    assert "left out, since their answers have no five classes of lengths: same" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[3:]] == ["memory", "text", "sizes", "base"]


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("question,m\na,1\n", (), "it has no column prompt; name the one with prompts by --text"),
        ("prompt\na\n", (), "it has no column with lengths beside prompt"),
        ("prompt,m\na,12\nb,many\n", (), "column m, line 3: 'many' is no number of tokens"),
        ("prompt,m\na,-4\n", (), "column m, line 2: '-4' is no number of tokens"),
        ("question,length\na,12\n", ("--text", "question"), "no model has 128 answers or more"),
    ],
)
def test_a_file_is_refused_with_what_is_wrong_in_it(
    tmp_path: Path, text: str, arguments: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(text)
    result = run("--data", str(path), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
