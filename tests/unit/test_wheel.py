"""What the wheels of the product and of a node have in them, and which packages they ask for."""

from __future__ import annotations

import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.simulator import shipped_scenarios
from greenserve.env import ROOT
from greenserve.packages import PACKAGES
from pools.release import DISTRIBUTION, NODE_DISTRIBUTION
from tests import wheels

PROJECT, NODE = (tomllib.loads((wheels.PROJECTS[name] / "pyproject.toml").read_text()) for name in wheels.PROJECTS)
SCENARIOS = sorted(path.name for path in (ROOT / "scenarios").glob("*.yaml"))
# What is imported under another name than that of its distribution.
DISTRIBUTIONS = {"prometheus_client": "prometheus-client", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
FOR_OTHERS = {"packaging"}  # imported by a package that does not ask for it: kombu's Redis transport
# What runs on a node: the agent, its tasks, the actuator; and the command line with what it has for nodes.
PROCESSES = ("pools.agent.app", "pools.agent.tasks", "pools.actuator.__main__", "greenserve.cli")
COMMANDS = "greenserve.commands.node"
# What the code for nodes names and a node does without.
INSIDE_VLLM = {"vllm": "the scheduler plug-in runs in vLLM's own process"}
ELSEWHERE = {
    **INSIDE_VLLM,
    "django": "`node token` and `--as PERSON` are for where the database is, and say so",
    "allauth": "likewise",
    "plotly": "the profiler's picture; without it the profile is written without one",
    "transformers": "`node profile --config` says that it needs it; an environment with vLLM has it",
}


def test_scenarios_are_put_where_an_installed_product_looks_for_them(tmp_path, monkeypatch):
    files = PROJECT["tool"]["setuptools"]["data-files"]
    found = sorted(path.name for pattern in files[shipped_scenarios.IN_WHEEL] for path in ROOT.glob(pattern))
    assert found == SCENARIOS
    assert shipped_scenarios.folder() == ROOT / "scenarios"
    monkeypatch.setattr(shipped_scenarios, "__file__", str(tmp_path / "core" / "simulator" / "shipped_scenarios.py"))
    assert shipped_scenarios.folder() == Path(sys.prefix) / shipped_scenarios.IN_WHEEL


def test_both_distributions_have_one_version_and_the_same_files():
    for key in ("version", "license", "requires-python", "scripts"):
        assert NODE["project"][key] == PROJECT["project"][key], key
    setuptools = {"packages": {"find": {**PROJECT["tool"]["setuptools"]["packages"]["find"], "where": [".."]}}}
    setuptools |= {"package-dir": {"": ".."}, "package-data": PROJECT["tool"]["setuptools"]["package-data"]}
    assert NODE["tool"]["setuptools"] == setuptools
    assert (NODE["project"]["name"], PROJECT["project"]["name"]) == (NODE_DISTRIBUTION, DISTRIBUTION)
    extras = PROJECT["project"]["optional-dependencies"]
    assert NODE["project"]["optional-dependencies"] == {"amd": extras["amd"]}


def test_every_file_beside_the_code_is_package_data():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    beside = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    beside = [path for path in beside if path.suffix not in (".py", ".pyc")]
    assert len(beside) > 100
    assert not [path for path in beside if not any(fnmatch(path.name, pattern) for pattern in patterns)]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(
        *PACKAGES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def needed(imports: grimp.ImportGraph, *modules: str) -> set[str]:
    """Returns the packages of others that the modules import, at once or when they are called, by whatever way."""
    found = {name for module in modules for name in imports.find_upstream_modules(module)}
    return {name for name in found if name.split(".")[0] not in {*PACKAGES, *sys.stdlib_module_names}}


def test_node_asks_for_the_packages_that_its_processes_and_commands_import_and_no_other(imports):
    found = needed(imports, *PROCESSES, COMMANDS)
    assert ELSEWHERE.keys() <= found
    found -= ELSEWHERE.keys()
    found = {DISTRIBUTIONS.get(name, name) for name in found} | FOR_OTHERS
    assert found == {one.name for one in requirements(NODE)}
    assert not needed(imports, *PROCESSES) & (ELSEWHERE.keys() - INSIDE_VLLM.keys())


def requirements(project: dict[str, Any]) -> list[Requirement]:
    return [Requirement(text) for text in project["project"]["dependencies"]]


def test_node_asks_for_nothing_that_the_product_lacks_and_lets_vllm_keep_its_versions():
    ours = [Requirement(line) for line in (ROOT / "requirements.in").read_text().splitlines() if line[0] != "#"]
    lines = (ROOT / "requirements-vllm-cpu.txt").read_text().splitlines()
    pinned = dict(line.rstrip("\\ ").split("==") for line in lines if "==" in line and not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    wanted = requirements(NODE)
    assert {one.name for one in wanted} <= {one.name for one in ours}
    assert len([one for one in wanted if one.name in versions]) > 5
    assert not [str(one) for one in wanted if one.name in versions and versions[one.name] not in one.specifier]
    # Another vLLM pins other versions: no bound from above, which one of them could be beyond.
    assert not [str(one) for one in wanted if any(bound.operator not in (">=", ">") for bound in one.specifier)]


@pytest.mark.slow("builds both wheels")
def test_wheels_have_every_file_beside_the_code_and_nothing_else(tmp_path):
    beside = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    built = wheels.build(tmp_path)
    for name, wheel in built.items():
        names = zipfile.ZipFile(wheel).namelist()
        own = {one for one in names if ".dist-info/" not in one and ".data/" not in one}
        assert own == beside
        assert any(one.endswith("/licenses/LICENSE") for one in names)
        put = [one for one in names if f"data/{shipped_scenarios.IN_WHEEL}/" in one]
        assert sorted(Path(one).name for one in put) == (SCENARIOS if name == DISTRIBUTION else [])
