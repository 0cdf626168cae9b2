"""The contract of both worlds on clocks: the same engines' figures give the same steps, by agents and in the simulator.

Both clock the same instances, a turn after another, and carry out what they decide. Of each step of each instance the
state, the observation, the configuration and the answer are to be equal. The first turn only begins: an agent asks once
for the clock that an engine already has.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec
import pytest

from core.algorithms.clock.miad import MiadConfig
from core.policy import presets
from core.policy.knobs import USUAL_S
from core.policy.presets import PRESETS
from core.types import Loop
from tests.fakes.clock_turns import Served, Turn, live, simulated
from tests.fakes.minute import MINUTE
from tests.fakes.taken_steps import Taken, differences

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("usual_periods")]

# Presets that have a clock loop, and whose turns are not compared yet.
NOT_YET = {"greenserve", "dynamollm", "scale_freq", "muserve", "alpaserve_scaling", "throttllem", "retail"}
COVERED = sorted(name for name in PRESETS if PRESETS[name].knobs.clock != "fixed" and name not in NOT_YET)
# Other rules and margins than presets have.
CHOICES = (
    ("freesh", {"clock": "primal_dual"}),
    ("threshold", {"clock_floor": "gpu", "clock_ttft_share": 0.6, "tuning": {"threshold": {"busy_high": 0.65}}}),
    ("freesh", {"clock_floor": "voltage", "clock_ttft_share": 0.6, "clock_tpot_share": 0.7}),
)
TURNS = (
    Turn(),
    Turn(came=40, running=20, kv=0.05, ttft_s=0.2, tpot_s=0.03),
    Turn(came=40, running=30, kv=0.6, ttft_s=0.3, tpot_s=0.04, e2e_s=11.0),
    Turn(came=60, running=40, waiting=9, kv=0.8, ttft_s=0.4, tpot_s=0.05, e2e_s=12.0),
    Turn(came=10, running=30, kv=0.6, ttft_s=1.9, tpot_s=0.05, e2e_s=13.0),
    Turn(came=10, running=20, kv=0.4, ttft_s=0.3, tpot_s=0.14, e2e_s=14.0),
    Turn(came=10, running=10, kv=0.2, ttft_s=0.3, tpot_s=0.04, e2e_s=58.0),
    Turn(running=2, kv=0.1, tpot_s=0.03, e2e_s=12.0),
    Turn(),
)


def served(policy: str, **knobs: Any) -> Served:
    period_s = presets.policy(policy, knobs).knobs.clock_period_s or USUAL_S[Loop.CLOCK]
    return Served.of(MINUTE, (1024, 256), TURNS, period_s)


def compared(live: list[Taken], simulated: list[Taken]) -> list[str]:
    """Returns in words where the steps of both worlds differ, after the first turn."""
    count = len(live) // len(TURNS)
    assert count, "no step was taken"
    if len(live) != len(simulated):
        return [f"live takes {len(live)} steps, the simulator {len(simulated)}"]
    pairs = list(zip(live, simulated, strict=True))[count:]
    return [text for n, (own, other) in enumerate(pairs, count) for text in differences(own, other, f"{n}: {own.step}")]


@pytest.mark.parametrize(("policy", "knobs"), [*((policy, {}) for policy in COVERED), *CHOICES])
def test_steps_are_the_same_when_engines_tell_the_same(policy, knobs):
    turns = served(policy, **knobs)
    found = compared(live(turns, policy, **knobs), simulated(turns, policy, **knobs))
    assert "\n".join(found) == ""


# In one world alone: the preset, what is patched, and with what. A function is given the one that it stands for.
CHANGED = (
    ("freesh", "live", "scheduler.control.apply.desired_messages.clock_limits", lambda own: lambda slo, *given: slo),
    ("freesh", "live", "core.observations.clock_given.shared", lambda own: lambda limits, *given: limits),
    ("freesh", "live", "pools.agent.clocks.engine_view.least_mhz", lambda own: lambda *given: 800.0),
    (
        "freesh",
        "live",
        "scheduler.control.service_policy.clock_rule",
        lambda own: lambda *given: msgspec.structs.replace(own(*given), decrease_mhz=110.0),
    ),
    ("freesh", "simulated", "core.simulator.policies.freesh.shared", lambda own: lambda limits, *given: limits),
    ("freesh", "simulated", "core.simulator.policies.freesh.least_mhz", lambda own: lambda *given: 800.0),
    ("freesh", "simulated", "core.simulator.policies.config.clock_config", lambda own: lambda *given: MiadConfig(1.9)),
    ("threshold", "live", "core.observations.clock_given.shared", lambda own: lambda limits, *given: limits),
    (
        "threshold",
        "live",
        "pools.agent.clocks.frequency_rule.with_use",
        lambda own: lambda seen, kv_usage, places: own(seen, kv_usage, 2 * places),
    ),
    ("threshold", "simulated", "core.simulator.policies.threshold.shared", lambda own: lambda limits, *given: limits),
    ("threshold", "simulated", "core.simulator.policies.threshold.least_mhz", lambda own: lambda *given: 900.0),
)
UNCHANGED: dict[str, dict[str, list[Taken]]] = {}  # by preset and world, filled by the first test that asks


def worlds(policy: str) -> dict[str, list[Taken]]:
    if policy not in UNCHANGED:
        turns = served(policy)
        UNCHANGED[policy] = {"live": live(turns, policy), "simulated": simulated(turns, policy)}
    return UNCHANGED[policy]


@pytest.mark.parametrize(
    ("policy", "world", "name", "changed"), CHANGED, ids=["-".join(changed[:3]) for changed in CHANGED]
)
def test_steps_differ_when_one_world_is_changed(policy, world, name, changed, monkeypatch):
    known = worlds(policy)
    assert compared(**known) == []
    module, _, attribute = name.rpartition(".")
    monkeypatch.setattr(name, changed(getattr(import_module(module), attribute)))
    turns = served(policy)
    assert compared(**known | {world: live(turns, policy) if world == "live" else simulated(turns, policy)})
