"""What a wheel of the product has in it, as far as it is no Python."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from core.simulator import shipped_scenarios
from greenserve.env import ROOT
from greenserve.packages import PACKAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCENARIOS = sorted(path.name for path in (ROOT / "scenarios").glob("*.yaml"))


def test_scenarios_are_put_where_an_installed_product_looks_for_them(tmp_path, monkeypatch):
    files = PROJECT["tool"]["setuptools"]["data-files"]
    found = sorted(path.name for pattern in files[shipped_scenarios.IN_WHEEL] for path in ROOT.glob(pattern))
    assert found == SCENARIOS
    assert shipped_scenarios.folder() == ROOT / "scenarios"
    monkeypatch.setattr(shipped_scenarios, "__file__", str(tmp_path / "core" / "simulator" / "shipped_scenarios.py"))
    assert shipped_scenarios.folder() == Path(sys.prefix) / shipped_scenarios.IN_WHEEL


@pytest.mark.slow("builds a wheel")
def test_wheel_has_scenarios_templates_and_styles(tmp_path):
    """Built from a copy: a build leaves its own files behind."""
    source = tmp_path / "source"
    for name in (*PACKAGES, "scenarios"):
        command = ["cp", "-r", "--parents", name, str(source)]
        source.mkdir(exist_ok=True)
        subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    for name in ("pyproject.toml", "README.md", "requirements.in", "LICENSE"):
        if (ROOT / name).exists():
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=source,
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    names = zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]).namelist()
    put = [name for name in names if f"data/{shipped_scenarios.IN_WHEEL}/" in name]
    assert sorted(Path(name).name for name in put) == SCENARIOS
    assert "frontend/templates/frontend/base.html" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name} == set(PACKAGES)
    assert {"greenserve/client/resources.py", "greenserve/client/py.typed"} <= set(names)
    assert any(name.endswith(".css") for name in names)
