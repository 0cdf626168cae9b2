"""The contract of both worlds on clocks: the same engines' figures give the same steps, by agents and in the simulator.

Both clock the same instances, a turn after another, and carry out what they decide. Of each step of each instance the
state, the observation, the configuration and the answer are to be equal. The first turns only begin: an agent asks once
for the clock that an engine already has, and knows of a load from the second look on, as its counters go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import pytest

from core.algorithms.clock.miad import MiadConfig
from core.policy import presets
from core.policy.knobs import DYNAMO, USUAL_S
from core.policy.presets import PRESETS
from core.types import Limits, Loop
from pools.agent.clocks.clock_rules import BY_REQUEST
from tests.fakes.clock_turns import Served, Turn, live, simulated
from tests.fakes.minute import FOUR, MINUTE, SERVERS
from tests.fakes.taken_steps import Taken, differences

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("usual_periods")]

# Rules that are no loop: what gateways ask for is compared in test_same_admission and test_same_deadline_clock.
BY_NO_READING = ("fixed", *BY_REQUEST)
COVERED = sorted(name for name in PRESETS if PRESETS[name].knobs.clock not in BY_NO_READING)
# What one world alone knows, by the clock rule: the fields of tuning by which it does not count. Engines do not tell
# how long the requests have taken that are under way. The simulator has mu-Serve's weights from its placement, by the
# load that is declared; agents have them by the requests that run.
ONE_WORLD = {"slack": {"in_flight": False, "sensitivity": False}}
# Other rules and margins than presets have.
CHOICES = (
    ("dynamollm", {"clock_period_s": 2.0, "tuning": {"profile": {"min_saving": 0.1, "memory_s": 20.0}}}),
    ("scale_freq", {"clock_ttft_share": 0.4, "clock_tpot_share": 0.8, "slo_factor": 10.0}),
    ("freesh", {"clock": "primal_dual"}),
    ("alpaserve_scaling", {"clock_period_s": 1.5, "tuning": {"slack": {"step_mhz": 150.0, "memory_s": 2.0}}}),
    ("threshold", {"clock_floor": "gpu", "clock_ttft_share": 0.6, "tuning": {"threshold": {"busy_high": 0.65}}}),
    ("freesh", {"partition": "four"}),
    ("threshold", {"partition": "four"}),
    ("freesh", {"clock_floor": "voltage", "clock_ttft_share": 0.6, "clock_tpot_share": 0.7}),
)
# What the instances tell. The rates are such that DynamoLLM's clocks move.
TURNS = (
    Turn(came=5),
    Turn(came=5),
    Turn(came=5),
    Turn(came=10, running=4, kv=0.05, ttft_s=0.2, tpot_s=0.03),
    Turn(came=10, running=6, kv=0.6, ttft_s=0.3, tpot_s=0.04, e2e_s=11.0),
    Turn(came=15, running=8, waiting=9, kv=0.8, ttft_s=0.4, tpot_s=0.05, e2e_s=12.0),
    Turn(came=3, running=6, kv=0.6, ttft_s=1.9, tpot_s=0.05, e2e_s=13.0),
    Turn(came=3, running=5, kv=0.4, ttft_s=0.3, tpot_s=0.14, e2e_s=14.0),
    Turn(came=3, running=4, kv=0.2, ttft_s=0.3, tpot_s=0.04, e2e_s=58.0),
    Turn(running=2, kv=0.1, tpot_s=0.03, e2e_s=12.0),
    Turn(),
)
BEGIN = 3  # turns that are not compared
# DynamoLLM's cluster is one site, of which each preset needs little for requests of one length.
CLUSTERS = {
    "dynamollm": replace(SERVERS, places=(replace(SERVERS.places[0], nodes=(8,)),)),
    "scale_freq": replace(MINUTE, partitions={DYNAMO: FOUR}, places=MINUTE.places[:1], thresholds={}),
}


def settings_of(policy: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the knobs, without what one world alone knows."""
    rule = PRESETS[policy].knobs.clock
    tuning = knobs.get("tuning", {})
    return (
        {**knobs, "tuning": {**tuning, rule: {**tuning.get(rule, {}), **ONE_WORLD[rule]}}}
        if rule in ONE_WORLD
        else {**knobs}
    )


def served(policy: str, knobs: Mapping[str, Any]) -> Served:
    found = presets.policy(policy, knobs)
    own, period_s = found.knobs, found.knobs.clock_period_s or USUAL_S[Loop.CLOCK]
    looked_s = found.tuning.slack.sample_s if own.clock == "slack" else period_s
    return Served.of(CLUSTERS.get(policy, MINUTE), (1024, 256), TURNS, looked_s)


def compared(live: list[Taken], simulated: list[Taken]) -> list[str]:
    """Returns in words where the steps of both worlds differ, once they have begun."""
    if len(live) != len(simulated):
        return [f"live takes {len(live)} steps, the simulator {len(simulated)}"]
    begun = BEGIN * len(live) // len(TURNS)
    pairs = list(enumerate(zip(live, simulated, strict=True)))[begun:]
    return [text for n, (own, other) in pairs for text in differences(own, other, f"{n}: {own.step}")]


@pytest.mark.parametrize(("policy", "knobs"), [*((policy, {}) for policy in COVERED), *CHOICES])
def test_steps_are_the_same_when_engines_tell_the_same(policy, knobs):
    own = settings_of(policy, knobs)
    turns = served(policy, own)
    steps = live(turns, policy, **own)
    assert any(step.commands for step in steps[BEGIN:]), "no clock moves"
    assert "\n".join(compared(steps, simulated(turns, policy, **own))) == ""


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
        lambda own: lambda seen, kv_usage, places: own(seen, 0.5 * kv_usage, places),
    ),
    ("threshold", "simulated", "core.simulator.policies.threshold.shared", lambda own: lambda limits, *given: limits),
    ("threshold", "simulated", "core.simulator.policies.threshold.least_mhz", lambda own: lambda *given: 900.0),
    ("dynamollm", "live", "core.observations.clock_given.shared", lambda own: lambda limits, *given: limits),
    ("dynamollm", "live", "core.observations.clock_given.STRETCH_S", lambda own: 20.0),
    (
        "dynamollm",
        "live",
        "scheduler.control.service_policy.clock_rule",
        lambda own: lambda *given: msgspec.structs.replace(own(*given), min_saving=0.3),
    ),
    (
        "dynamollm",
        "simulated",
        "core.simulator.policies.dynamollm.clock_and_emergencies.shared",
        lambda own: lambda limits, *given: limits,
    ),
    (
        "dynamollm",
        "simulated",
        "core.simulator.policies.dynamollm.clock_and_emergencies.SeenShares",
        lambda own: lambda ttft, tpot, counts_ttft: own(1.0, tpot, counts_ttft),
    ),
    ("muserve", "live", "core.observations.clock_given.shared", lambda own: lambda *given: Limits(1.5, 0.1, 50.0)),
    (
        "muserve",
        "live",
        "scheduler.control.service_policy.clock_rule",
        lambda own: lambda *given: msgspec.structs.replace(own(*given), reserve=0.2),
    ),
    ("muserve", "live", "pools.agent.clocks.engine_view.least_mhz", lambda own: lambda *given: 1250.0),
    (
        "muserve",
        "simulated",
        "core.simulator.policies.muserve.muserve_policy.slack_config",
        lambda own: lambda *given: replace(own(*given), act_s=1.5),
    ),
)
UNCHANGED: dict[str, dict[str, list[Taken]]] = {}  # by preset and world, filled by the first test that asks


def steps_of(world: str, policy: str) -> list[Taken]:
    own = settings_of(policy, {})
    return (live if world == "live" else simulated)(served(policy, own), policy, **own)


def unchanged(policy: str) -> dict[str, list[Taken]]:
    if policy not in UNCHANGED:
        UNCHANGED[policy] = {world: steps_of(world, policy) for world in ("live", "simulated")}
    return UNCHANGED[policy]


@pytest.mark.parametrize(
    ("policy", "world", "name", "changed"), CHANGED, ids=["-".join(changed[:3]) for changed in CHANGED]
)
def test_steps_differ_when_one_world_is_changed(policy, world, name, changed, monkeypatch):
    known = unchanged(policy)
    assert compared(**known) == []
    module, _, attribute = name.rpartition(".")
    monkeypatch.setattr(name, changed(getattr(import_module(module), attribute)))
    assert compared(**known | {world: steps_of(world, policy)})


def test_what_is_not_compared_becomes_less():
    assert len(ONE_WORLD) <= 1
