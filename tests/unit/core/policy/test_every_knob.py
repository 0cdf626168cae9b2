"""Every preset with every knob and every field of tuning goes through both worlds.

Both take what a policy may be, and refuse the rest with the same words. The simulator also refuses what a family's
loops do not read, since its figures would be those of another policy; how much it takes may only grow. That live
services read what they take is a test with a database (tests/integration/scheduler/test_every_knob.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from core.policy.presets import PRESETS, policy
from core.policy.setting_texts import SETTINGS, stored, value_of
from core.simulator.policies import StaticConfig, build
from core.simulator.policies.dynamollm import DynamollmConfig
from core.simulator.policies.policy_registry import FAMILIES, read_policy
from tests.fakes.policy_reading import watched
from tests.fakes.policy_values import values
from tests.unit.core.simulator.policies.worlds import world

# By family: of how many settings simulated services take every value that live ones do. The numbers only grow.
TAKEN = {
    "freesh": 31,
    "greenserve": 29,
    "dynamo": 31,
    "static": 25,
    "throttle": 15,
    "placement": 19,
    "split": 15,
    "threshold": 20,
}


def refusal(make: Any, *given: Any) -> str:
    """Returns the words with which a world refuses a policy; empty: it takes it."""
    try:
        made = make(*given)
    except ValueError as error:
        return str(error)
    assert made.name
    return ""


def cases(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for key in SETTINGS:
        for value in values(key, value_of(PRESETS[name], key)):
            yield key, value, stored({key: value})


@pytest.mark.parametrize("name", PRESETS)
def test_both_worlds_take_or_refuse_every_setting_with_the_same_words(name: str) -> None:
    taken = set(SETTINGS)
    for key, value, own in cases(name):
        wrong, simulated = refusal(policy, name, own), refusal(read_policy, {"name": name, **own})
        if wrong:
            assert simulated in (f"policy.{wrong}", f"policy: {wrong}")
        elif simulated:
            assert simulated.startswith("policy.")
            assert "in a simulated" in simulated or f"unknown '{value}'; known: " in simulated
            taken.discard(key)
    assert len(taken) >= TAKEN[PRESETS[name].family], sorted(set(SETTINGS) - taken)


def test_simulated_loops_read_every_setting_that_is_not_for_live_services_alone() -> None:
    seen: set[str] = set()
    for name in PRESETS:
        # As it is; and with the clock rule, and with the sleep, that no preset has.
        others = {"freesh": {"clock": "primal_dual"}, "least_loaded": {"sleep": "level"}}
        for own in ({}, *([others[name]] if name in others else [])):
            config = FAMILIES[PRESETS[name].family].of(watched(policy(name, own), seen))
            if isinstance(config, (StaticConfig, DynamollmConfig)):
                build(config, world({"east": 16}))  # they hold the policy itself, which are read there
    only = {name for name, item in SETTINGS.items() if item.metadata["only"] and item.metadata["only"].world == "live"}
    assert set(SETTINGS) - seen == only
