"""Agents of the release before are welcome, also those that do not tell their version; older ones are named."""

from __future__ import annotations

import importlib.metadata

import pytest

from pools import agent_versions, wire


def agent(version: str) -> wire.AgentState:
    return wire.AgentState("n1", "b", 1.0, 1, [], version=version)


@pytest.mark.parametrize("version", ["", "0.1.0", "0.1.0rc1", "0.10.0", "1.0", "a build of ours"])
def test_agents_from_the_release_before_on_are_welcome(version: str) -> None:
    assert agent_versions.too_old(agent(version)) == ""


@pytest.mark.parametrize(("version", "named"), [("0.1.9", "0.1.9"), ("", "0.1.0"), ("0.2.0.dev1", "")])
def test_older_ones_are_named_with_the_remedy(version: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_versions, "LEAST", "0.2.0")
    words = agent_versions.too_old(agent(version))
    assert bool(words) == bool(named)
    assert f"of GreenServe {named}, and this control plane works with 0.2.0 and later: install" in words or not named


def test_this_version_is_welcome_to_itself() -> None:
    assert agent_versions.too_old(agent(importlib.metadata.version("greenserve"))) == ""
