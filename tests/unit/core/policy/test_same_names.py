"""A policy that an operator studies is one that a service can be given, by the same name."""

from __future__ import annotations

from click.testing import CliRunner

from core.policy.presets import PRESETS, choices
from core.simulator.policies import POLICIES
from greenserve.cli import cli


def test_both_worlds_know_the_same_policies() -> None:
    assert tuple(PRESETS) == POLICIES
    assert [name for name, _ in choices()] == list(POLICIES)


def test_commands_name_the_same_policies() -> None:
    unknown = CliRunner().invoke(cli, ["compare", "scenarios/azure-conv-12xh100.yaml", "--policy", "nonsense"])
    assert f"unknown 'nonsense'; known: {', '.join(PRESETS)}" in unknown.output
    listed = CliRunner().invoke(cli, ["policy", "--list"]).output.splitlines()
    assert [line.split(":")[0].strip() for line in listed[1 : len(PRESETS) + 1]] == list(POLICIES)
