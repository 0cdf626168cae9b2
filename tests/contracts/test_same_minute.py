"""The contract of both worlds: the same minute, as rows and as the simulator's view, gives the same decisions.

Of each step that a policy's loops take, the configuration, the observation and the answer are to be equal. Where a
service begins, at the moment 0, only its declared load is known; then comes a minute with requests on record.

What is left out: clocks and routing, which go by each engine's own figures; what ended among requests that are under
way; forecasts, which the simulator has none of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest
from django.db import transaction

from core.observations import asking
from core.observations.recording import recall
from core.policy import live_presets
from core.policy.knobs import USUAL_S
from core.policy.presets import PRESETS
from core.simulator.policies import build, read_policy
from core.simulator.scenario.class_cells import ClassSpec
from core.types import Limits, Loop
from scheduler.control import epochs
from tests.fakes import minute as minutes
from tests.fakes.house import moment
from tests.fakes.minute import Came, Minute, Place

pytestmark = pytest.mark.django_db

FOUR = (
    ClassSpec("SS", 0, 0, 256, 0, 100),
    ClassSpec("SL", 1, 0, 256, 100, None),
    ClassSpec("LS", 2, 256, None, 0, 100),
    ClassSpec("LL", 3, 256, None, 100, None),
)
WHOLE = (ClassSpec("ALL", 0),)
MINUTE = Minute(
    now_s=7_503.5,
    objective=Limits(2.0, 0.15, 60.0),
    partitions={"four": FOUR, "whole": WHOLE},
    places=(
        Place("east", 1.2, (8, 8), (410.0, 380.0, 350.0, 330.0, 300.0, 290.0, 280.0, 300.0, 450.0, 300.0, 280.0)),
        Place("west", 1.4, (8, 4), (280.0, 290.0, 310.0, 330.0, 400.0, 420.0, 480.0, 500.0, 250.0, 420.0, 390.0)),
    ),
    thresholds={"LL": Limits(1.5, 0.1, None)},
    came=(
        Came(0.5, 40, 30),
        *(Came(7_300.0 + 0.4 * n, 60 + 13 * (n % 40), 20 + 11 * (n % 25)) for n in range(500)),
    ),
    declared=(3.0, 900, 150),
)
# Presets that both worlds have, and whose minute is not compared yet.
NOT_YET = {
    "greenserve",
    "dynamollm",
    "single_pool",
    "multi_pool",
    "scale_inst",
    "scale_shard",
    "scale_freq",
    "throttllem",
    "triton",
    "retail",
    "muserve",
    "alpaserve",
    "alpaserve_sched",
    "alpaserve_scaling",
    "dynaserve",
    "pd_coloc",
    "pd_disagg",
    "least_loaded",
    "disaggregated",
}
# What one world alone is given, or both otherwise, and why.
ONE_WORLD = {
    "shard:step.observation.changes": "simulated instances of FREESH's loops become others in place, live ones restart",
}
COVERED = sorted(live_presets.LIVE.keys() - NOT_YET)


@dataclass(frozen=True)
class Taken:
    """A step as it was taken."""

    step: str
    state: Any
    observation: Any
    config: Any
    commands: Any
    reason: str


def taken(notes: list[Mapping[str, Any]]) -> list[Taken]:
    """Returns the steps, without what repeats a step to no effect: live, scale has its turn right after it followed the
    carbon loop."""
    found: list[Taken] = []
    for note in notes:
        own = Taken(note["step"], *recall(note["given"]), recall(note["commands"]), note["reason"])
        if not (found and found[-1].step == own.step and not own.commands):
            found.append(own)
    return found


def live(minute: Minute, policy: str, client) -> list[Taken]:
    """Takes the loops' turns of a service that begins, and then of the minute. Nothing of it stays in the database."""
    found = []
    with transaction.atomic():
        service = minutes.rows(minute, policy)
        for now in (minute.before_anything(), minute):
            minutes.write_requests(now)
            minutes.report_nodes(client, now)
            with asking.noting() as notes:
                for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
                    epoch = epochs.run(service, loop, moment(now.now_s))
                    assert epoch is None or not epoch.error, epoch.error
            found += taken(notes)
        transaction.set_rollback(True)
    return found


def simulated(minute: Minute, policy: str) -> list[Taken]:
    """Takes the steps of the policy's first plan, and then of the minute: one decision of each slow loop."""
    with asking.noting() as notes:
        plan = build(read_policy({"name": policy}), minutes.world(minute))
    found = taken(notes)
    with asking.noting() as notes:
        for control in sorted(plan.controls, key=lambda own: -own.period_s):
            if control.name != Loop.CLOCK:
                control.step(minutes.view(minute, plan))
    return found + taken(notes)


@pytest.fixture(autouse=True)
def usual_periods(settings):
    """The tests' installation is the demo, whose time runs faster."""
    usual = {loop.value: {"period_s": period_s} for loop, period_s in USUAL_S.items()}
    settings.GREENSERVE_LOOPS = {name: own | usual[name] for name, own in settings.GREENSERVE_LOOPS.items()}
    settings.GREENSERVE_TRANSITION_SPEEDUP = 1.0


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Returns in words where two values are not the same; sums may have been made in another order."""
    if is_dataclass(ours) and type(ours) is type(theirs):
        names = [own.name for own in fields(ours)]
        ours, theirs = ({name: getattr(value, name) for name in names} for value in (ours, theirs))
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        own = [
            found
            for key in ours.keys() & theirs.keys()
            for found in differences(ours[key], theirs[key], f"{where}.{key}")
        ]
        alone = sorted(f"{where}.{key}: in one world alone" for key in ours.keys() ^ theirs.keys())
        return sorted(own) + alone
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for n, (own, other) in pairs for found in differences(own, other, f"{where}[{n}]")]
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    same = math.isclose(ours, theirs, rel_tol=1e-12) if numbers else ours == theirs
    return [] if same else [f"{where}: {ours} live, {theirs} simulated"]


def compared(live: list[Taken], simulated: list[Taken]) -> list[str]:
    """Returns in words where the steps of both worlds differ."""
    steps = [own.step for own in live], [own.step for own in simulated]
    if steps[0] != steps[1]:
        return [f"live takes {steps[0]}, the simulator {steps[1]}"]
    found = [text for own, other in zip(live, simulated, strict=True) for text in differences(own, other, own.step)]
    return [text for text in found if not any(known in text for known in ONE_WORLD)]


@pytest.mark.parametrize("policy", COVERED)
def test_decisions_are_the_same_when_the_minute_is(policy, redis_client):
    assert "\n".join(compared(live(MINUTE, policy, redis_client), simulated(MINUTE, policy))) == ""


# In one world alone: what is patched, and with what. A function is given the one that it stands for.
CHANGED = (
    (
        "live",
        "core.observations.step_configs.carbon_config",
        lambda own: lambda *given: replace(own(*given), alpha=1.2),
    ),
    ("live", "core.observations.step_configs.pool_config", lambda own: lambda *given: replace(own(*given), alpha=1.2)),
    ("live", "scheduler.control.snapshot.snapshot.class_limits", lambda own: lambda *given: Limits(1.9, 0.15, 60.0)),
    ("simulated", "core.observations.loop_windows.MAX_WINDOW_S", lambda own: 100.0),
    ("simulated", "core.observations.class_view.ENOUGH", lambda own: 10_000),
    ("simulated", "core.observations.class_view.TYPICAL_TOKENS", lambda own: (1100.0, 200.0)),
    ("simulated", "core.observations.class_view.mode_profile", lambda own: lambda *given: own(*given[:-1], Limits())),
    ("simulated", "core.simulator.policies.freesh.cold_start_s", lambda own: lambda *given, **more: 1.0),
)


UNCHANGED: dict[str, list[Taken]] = {}  # by world, filled by the first test that asks


@pytest.mark.parametrize(("world", "name", "changed"), CHANGED, ids=[f"{world}-{name}" for world, name, _ in CHANGED])
def test_worlds_differ_when_one_of_them_is_changed(world, name, changed, redis_client, monkeypatch):
    policy = "freesh"
    if not UNCHANGED:
        UNCHANGED.update(live=live(MINUTE, policy, redis_client), simulated=simulated(MINUTE, policy))
    assert compared(**UNCHANGED) == []
    module, _, attribute = name.rpartition(".")
    monkeypatch.setattr(name, changed(getattr(import_module(module), attribute)))
    found = live(MINUTE, policy, redis_client) if world == "live" else simulated(MINUTE, policy)
    assert compared(**UNCHANGED | {world: found})


def test_what_is_not_compared_becomes_less():
    assert NOT_YET < live_presets.LIVE.keys() <= PRESETS.keys()
    assert len(NOT_YET) <= 19
    assert len(ONE_WORLD) <= 1
