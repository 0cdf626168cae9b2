"""The dependency rule bites: a planted violation makes `make check`'s import linter fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from greenserve.env import ROOT

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


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
    [
        ("core/units.py", "import django", "core is pure"),
        ("core/units.py", "from pools import wire", "each floor may import only what lies below it"),
        ("pools/replicas.py", "from telemetry import models", "each floor may import only what lies below it"),
        ("core/engine/iteration.py", "from core.controllers.fleet import shard", "No two folders"),
        ("pools/simnode/__init__.py", "from django.db import models", "need no Django"),
    ],
)
def test_linter_fails_when_a_violation_is_planted(copy: Path, module: str, statement: str, contract: str) -> None:
    path = copy / module
    path.write_text((path.read_text() if path.exists() else "") + f"\n{statement}\n")
    done = lint(copy)
    assert done.returncode != 0
    broken = [line for line in done.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), done.stdout
