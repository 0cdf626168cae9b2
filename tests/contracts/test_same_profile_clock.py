"""The contract of both worlds on GreenServe's clocks by profile: under the same load each instance's step is the same.

Live, an engine counts its own requests, at each turn; a simulated instance is said to have its planned part of what
came in whole stretches. So the load of this test is steady, where both are the same. The first turns only begin: an
agent knows neither load nor lengths before requests have ended.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import pytest

from core.types import Limits
from tests.fakes.clock_turns import Served, Turn, live, simulated
from tests.fakes.minute import MINUTE, Came
from tests.fakes.taken_steps import Taken, differences

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("usual_periods")]

BEGIN = 2  # turns
BY_PROFILE = {
    **{"clock": "profile", "clock_floor": "voltage", "chunk_tokens": 512},
    **{"clock_ttft_share": 0.7, "clock_tpot_share": 0.75},
}
RPS, LENGTHS = 2.0, (1024, 256)
EVEN = replace(
    MINUTE,
    declared=(RPS, *LENGTHS),
    came=tuple(Came(7_300.1 + n / RPS, *LENGTHS) for n in range(600)),
)
TURNS = (
    Turn(came=10),
    Turn(came=10, running=4, ttft_s=0.2, tpot_s=0.03),
    Turn(came=10, running=8, ttft_s=0.2, tpot_s=0.04),
    Turn(came=10, running=9, waiting=1, ttft_s=0.3, tpot_s=0.04),  # which the next iteration takes in
    Turn(came=10, running=9, waiting=8, ttft_s=0.5, tpot_s=0.05),
    Turn(came=10, running=9, waiting=2, ttft_s=1.9, tpot_s=0.05),
    Turn(came=10, running=6, ttft_s=0.5, tpot_s=0.16),
    Turn(came=10, running=2),
)
HALF_SECONDS = (
    Turn(came=1),
    Turn(came=1, ttft_s=0.2, tpot_s=0.03),
    Turn(came=1, tpot_s=0.03),
    Turn(came=1, running=1, tpot_s=0.12),
    Turn(came=1, running=1, waiting=1, tpot_s=0.04),
    Turn(came=1, running=1, waiting=2, ttft_s=1.9),
    Turn(came=1),
)
CASES = (
    ({}, HALF_SECONDS),
    ({"clock_period_s": 5.0}, TURNS),
    ({"clock_period_s": 5.0, "clock_ttft_share": 0.3, "clock_tpot_share": 0.4, "clock_floor_mhz": 900.0}, TURNS),
    ({"clock_period_s": 5.0, "tuning": {"profile": {"counts_ttft": True, "step_mhz": 100.0}}}, TURNS),
    ({"clock_period_s": 5.0, "tuning": {"profile": {"full_iteration": False, "min_saving": 0.2}}}, TURNS),
)


def both(turns: tuple[Turn, ...], **knobs: Any) -> dict[str, list[Taken]]:
    served = Served(EVEN, turns, knobs.get("clock_period_s", 0.5))
    return {world.__name__: taken_in(world, served, knobs) for world in (live, simulated)}


def taken_in(world: Any, served: Served, knobs: dict[str, Any]) -> list[Taken]:
    tuning = {**knobs.get("tuning", {}), "right_size": {"learn_s": 0.0}}  # one instance is what engines tell of
    return world(served, "greenserve", **{**BY_PROFILE, **knobs, "tuning": tuning})[BEGIN:]


def compared(live: list[Taken], simulated: list[Taken]) -> list[str]:
    """Returns in words where the steps of both worlds differ."""
    if len(live) != len(simulated):
        return [f"live takes {len(live)} steps, the simulator {len(simulated)}"]
    pairs = enumerate(zip(live, simulated, strict=True), BEGIN)
    return [text for n, (own, other) in pairs for text in differences(own, other, f"{n}: {own.step}")]


@pytest.mark.parametrize(("knobs", "turns"), CASES, ids=[str(knobs) for knobs, _ in CASES])
def test_clocks_by_profile_are_the_same_when_engines_tell_the_same(knobs, turns):
    found = both(turns, **knobs)
    assert len(found["live"]) == len(turns) - BEGIN
    assert any(own.commands for own in found["live"])
    assert "\n".join(compared(**found)) == ""


# In one world alone: what is patched, and with what. A function is given the one that it stands for.
CHANGED = (
    ("live", "scheduler.control.apply.desired_messages.clock_limits", lambda own: lambda slo, *given: slo),
    ("live", "pools.agent.clocks.profile_rule.taken_in", lambda own: lambda *given: 0),
    ("live", "pools.agent.clocks.engine_view.least_mhz", lambda own: lambda *given: 800.0),
    (
        "live",
        "scheduler.control.service_policy.clock_rule",
        lambda own: lambda *given: msgspec.structs.replace(own(*given), tpot_share=0.9),
    ),
    ("simulated", "core.observations.fleet.right_size_given.planned", lambda own: lambda *given: Limits(1.0, 0.1)),
    ("simulated", "core.simulator.policies.greenserve.loops.least_mhz", lambda own: lambda *given: 800.0),
    ("simulated", "core.simulator.policies.greenserve.demand.recent_stretches", lambda own: lambda *given: (0, 1)),
)
UNCHANGED: dict[str, list[Taken]] = {}  # by world, filled by the first test that asks


@pytest.mark.parametrize(("world", "name", "changed"), CHANGED, ids=["-".join(row[:2]) for row in CHANGED])
def test_clocks_by_profile_differ_when_one_world_is_changed(world, name, changed, monkeypatch):
    knobs: dict[str, Any] = {"clock_period_s": 5.0}
    if not UNCHANGED:
        UNCHANGED.update(both(TURNS, **knobs))
    assert compared(**UNCHANGED) == []
    module, _, attribute = name.rpartition(".")
    monkeypatch.setattr(name, changed(getattr(import_module(module), attribute)))
    served = Served(EVEN, TURNS, 5.0)
    assert compared(**UNCHANGED | {world: taken_in({"live": live, "simulated": simulated}[world], served, knobs)})
