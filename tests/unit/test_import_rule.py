"""The dependency rule bites: a planted violation makes `make check`'s import linter fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from greenserve.env import ROOT
from greenserve.packages import PACKAGES
from tests.representatives import first


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    first(
        2,
        [
            ("core/units.py", "import django", "core is pure"),
            ("core/engine/iteration.py", "from core.controllers.fleet import shard", "No two folders"),
            ("core/units.py", "from pools import wire", "each floor may import only what lies below it"),
            ("pools/replicas.py", "from telemetry import models", "each floor may import only what lies below it"),
            ("pools/simnode/__init__.py", "from django.db import models", "need no Django"),
        ],
        "one violation of each contract",
    ),
)
def test_linter_fails_when_a_violation_is_planted(copy: Path, module: str, statement: str, contract: str) -> None:
    path = copy / module
    path.write_text((path.read_text() if path.exists() else "") + f"\n{statement}\n")
    done = lint(copy)
    assert done.returncode != 0
    broken = [line for line in done.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), done.stdout


def draw(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "scripts" / "house"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def drawn(copy: Path) -> Path:
    (copy / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "house", copy / "scripts")
    shutil.copy(ROOT / "ARCHITECTURE.md", copy)
    return copy


def test_each_folder_stands_above_what_it_imports(drawn: Path) -> None:
    done = draw(drawn)
    assert done.returncode == 0, done.stderr
    top = [line.split("/")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert top == list(PACKAGES)
    assert draw(drawn, "--check").returncode == 0


def test_drawing_fails_when_an_arrow_runs_back(drawn: Path) -> None:
    path = drawn / "core" / "units.py"
    path.write_text(path.read_text() + "\nfrom pools import wire\n")
    done = draw(drawn)
    assert (done.returncode, done.stdout) == (1, "")
    assert "an arrow runs back" in done.stderr
    assert "core" in done.stderr


def test_drawing_fails_when_a_folder_does_not_say_what_it_is_for(drawn: Path) -> None:
    (drawn / "core" / "engine" / "__init__.py").write_text("")
    done = draw(drawn)
    assert done.returncode == 1
    assert "no docstring says what this is for: core.engine" in done.stderr


def test_document_that_draws_another_house_is_refused_and_written_anew(drawn: Path) -> None:
    (drawn / "core" / "spare").mkdir()
    (drawn / "core" / "spare" / "__init__.py").write_text('"""Stands empty."""\n')
    (drawn / "core" / "spare" / "room.py").touch()
    assert draw(drawn, "--check").returncode == 1
    assert draw(drawn, "--write").returncode == 0
    assert draw(drawn, "--check").returncode == 0
    assert "| `core/spare/` | Stands empty. |" in (drawn / "ARCHITECTURE.md").read_text()
