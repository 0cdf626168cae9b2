"""Builds the wheels of the product and of a node, from a copy of the tree: a build leaves files of its own behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from greenserve.env import ROOT
from greenserve.packages import PACKAGES
from pools.release import DISTRIBUTION, NODE_DISTRIBUTION

PROJECTS = {DISTRIBUTION: ROOT, NODE_DISTRIBUTION: ROOT / "node"}  # the folder of each one's pyproject.toml
_BUILD = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


def build(folder: Path) -> dict[str, Path]:
    """Returns the wheel of each distribution, built in `folder`."""
    source = folder / "source"
    for name in (*PACKAGES, "scenarios", "node"):
        shutil.copytree(ROOT / name, source / name, ignore=_LEFT_OUT, symlinks=True)
    for name in ("pyproject.toml", "README.md", "requirements.in", "LICENSE"):
        shutil.copy(ROOT / name, source)
    made = {}
    for name, project in PROJECTS.items():
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, str(folder)],
            cwd=source / project.relative_to(ROOT),
            timeout=300,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        made[name] = folder / done.stdout.splitlines()[-1]
    return made
