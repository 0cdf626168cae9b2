"""What an installation of a node says where it is asked for more than a node does."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenserve import packages
from greenserve.cli import cli
from greenserve.plain_errors import explain
from greenserve.supervision import preflight
from pools import release
from pools.agent import join_fleet
from pools.agent.devices.declared import Declaration, inventory


@pytest.fixture
def on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the node's distribution is installed alone."""
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path))
    ours = metadata.distribution(release.DISTRIBUTION)

    def distribution(name: str) -> metadata.Distribution:
        if name != release.NODE_DISTRIBUTION:
            raise metadata.PackageNotFoundError(name)
        return ours

    monkeypatch.setattr(metadata, "distribution", distribution)


def test_whole_product_goes_first_where_both_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    assert release.installed() == "greenserve"
    assert not packages.of_a_node()


def test_missing_package_of_a_whole_product_is_a_fault_and_not_a_node() -> None:
    assert explain(ModuleNotFoundError("No module named 'polars'", name="polars")) is None


@pytest.mark.usefixtures("on_a_node")
def test_node_says_that_it_has_no_database() -> None:
    said = CliRunner().invoke(cli, ["node", "token"])
    assert said.exit_code == 1
    assert "this needs GreenServe's database: greenserve-node is installed here" in said.output


@pytest.mark.usefixtures("on_a_node")
def test_node_says_which_package_it_lacks_and_where_to_go() -> None:
    words = explain(ModuleNotFoundError("No module named 'polars'", name="polars"))
    assert words is not None
    assert words.startswith("this needs the package polars: greenserve-node is installed here")
    assert "do this where greenserve is installed" in words


@pytest.mark.usefixtures("on_a_node")
def test_node_does_not_start_the_product() -> None:
    with pytest.raises(preflight.Refusal, match="greenserve-node is installed here"):
        preflight.check_packages()


@pytest.mark.usefixtures("on_a_node")
def test_doctor_asks_a_node_for_no_server_and_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "shared", lambda: iter(()))
    monkeypatch.setattr(metadata, "files", lambda _: [])
    found = {row["check"] for row in json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).output)}
    assert {"python", "packages", "data folder"} <= found
    assert not [check for check in found if "port" in check or check in ("PostgreSQL", "Redis")]


@pytest.mark.usefixtures("on_a_node")
def test_node_tells_its_version_when_it_joins() -> None:
    found = inventory("box", Declaration.read("A100-80GB:1", "20:65"))
    assert join_fleet.offer("gsj_secret", "box", found).release == release.version()
