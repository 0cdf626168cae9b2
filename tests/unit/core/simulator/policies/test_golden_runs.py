"""No figure of a simulated policy and no reading of its settings moves unnoticed: both stand recorded (`golden.py`)."""

from __future__ import annotations

import json

import pytest

from tests.unit.core.simulator.policies.golden import RECORDED, RUNS, figures, settings

FOUND = json.loads(RECORDED.read_text(encoding="utf-8"))


SYSTEMS = (
    "greenserve_epochs",
    "greenserve",
    "freesh",
    "dynamollm",
    "single_pool",
    "throttllem",
    "muserve",
    "dynaserve",
)
OTHER = pytest.mark.slow("a baseline, or other settings")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if policy in SYSTEMS else OTHER)
        for name, own in RUNS.items()
        for policy in own
    ],
)
def test_a_run_comes_to_the_same_figures_when_it_is_run_again(name: str, policy: str) -> None:
    assert figures(name, policy) == pytest.approx(FOUND["runs"][name][policy], rel=1e-9)


@pytest.mark.parametrize("name", list(FOUND["settings"]))
def test_settings_are_read_the_same_when_they_are_read_again(name: str) -> None:
    known = FOUND["settings"][name]
    assert {policy: settings(name, policy) for policy in known} == known
