"""The contract of both worlds on throttLL'eM's admission: the same request before the same engines gets the same
verdict, by the same projection, and the engine the same clock.

Equal are the facts that both worlds have. A simulated instance also tells how much of a prompt is done; a live client
may bound its answer, and a context is bounded by the model's longest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.controllers.request import admission
from core.controllers.request.routing import Choice
from core.policy import presets
from core.simulator.kernel.commands import RequestView, Sequences
from core.simulator.policies import build, read_policy
from core.simulator.policies.throttllem import router
from core.simulator.policies.throttllem.router import ThrottleRouter
from core.types import Admit, Reason, SetSmClock
from pools.gateway.placing import projections
from pools.gateway.placing.clock_requests import ClockRequests
from pools.gateway.placing.projected_admission import AdmissionGate
from scheduler.control import service_policy
from tests.fakes import minute as minutes
from tests.fakes.minute import MINUTE, Place
from tests.unit.pools.gateway.placing.test_dispatch_laws import House
from tests.unit.pools.gateway.placing.test_routes import Here

NOW_S = 10_000.0
COUNT = 3
ENGINES = {"throttle": {"engines": COUNT}}  # of the simulator: live, House has as many
ONE_SITE = replace(MINUTE, places=(Place("east", 1.2, (8, 8), ()),), declared=None)


@dataclass(frozen=True)
class Asks:
    """A request that came `age_s` ago; of those that an engine has, `generated` 0: its prompt is still to come."""

    prompt: int
    predicted: int
    generated: int = 0
    age_s: float = 0.0


@dataclass(frozen=True)
class Found:
    """What became of a request: the engine, and the clock asked for there; None: none. `judged`: by each engine asked,
    what it was given and answered."""

    engine: int | None
    mhz: float | None
    judged: tuple[tuple[Any, ...], ...]


NEW = Asks(900, 150)
BUSY = tuple(Asks(300 + 40 * n, 100 + 5 * n, 1 + 3 * n, 0.1 * n) for n in range(20))
FULL = tuple(Asks(12_000, 900, 1 + n, 1.0) for n in range(40))
CASES = {
    "idle": (NEW, ((), (), ())),
    "one less busy": (NEW, (BUSY, BUSY[:12], BUSY[:7])),
    "prompts to come": (NEW, (BUSY[:3], (Asks(2_000, 80), Asks(500, 90, 0, 0.2)), BUSY[:4])),
    "beyond predictions": (NEW, ((Asks(700, 30, 500, 20.0),), (Asks(700, 30, 500, 20.0), Asks(50, 5)), BUSY)),
    "in a hurry": (Asks(900, 150, age_s=49.0), (BUSY[:2], BUSY, BUSY)),
    "not in so much of a hurry": (Asks(900, 150, age_s=45.0), (BUSY[:9], BUSY, BUSY)),
    "late": (Asks(900, 400, age_s=59.0), (BUSY[:2], BUSY, BUSY)),
    "two full": (NEW, (FULL, FULL, (*FULL[:-1], Asks(100, 10)))),
    "all full": (NEW, (FULL, FULL, FULL)),
}


SPEEDS = {world: cache(world.engine_speed) for world in (projections, router)}  # each computes its own, once


@pytest.fixture(autouse=True)
def _at_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "time", SimpleNamespace(monotonic=lambda: NOW_S))
    for world, speed in SPEEDS.items():
        monkeypatch.setattr(world, "engine_speed", speed)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """All that admission's step is given and answers, as values, without the names of requests and engines."""
    notes: list[tuple[Any, ...]] = []

    def noted(step: Any, state: Any, obs: admission.AdmissionObservation, config: Any) -> Any:
        answer = step(state, obs, config)
        if obs.instance == "warm-up":
            return answer
        lost = [command.lost for command in answer[1].commands if isinstance(command, Admit)]
        given = obs.now_s, unnamed(obs.running), unnamed(obs.waiting), values(obs.speed), values(config)
        notes.append((*given, lost, answer[1].rationale.reason))
        return answer

    monkeypatch.setattr(admission, "step", partial(noted, admission.step))
    return notes


def unnamed(requests: admission.Requests) -> list[Any]:
    return [values(getattr(requests, own.name)) for own in fields(requests) if own.name != "ids"]


def values(own: Any) -> Any:
    if is_dataclass(own):
        return [values(getattr(own, item.name)) for item in fields(own)]
    if isinstance(own, np.ndarray):
        return own.tolist() if own.ndim == 1 else own.tobytes()
    return own


# -- live ------------------------------------------------------------------------------------------


async def live(asked: Asks, engines: Any, judged: list[Any], policy: str = "throttllem", **knobs: Any) -> Found:
    judged.clear()
    known = presets.policy(policy, knobs)
    wanted = service_policy.request_policy(known.knobs, known.tuning)
    asks: list[Any] = []
    gate = AdmissionGate(ClockRequests(asks.append), Here())
    house = House(COUNT, gate, **{name: getattr(wanted, name) for name in wanted.__struct_fields__})
    house.fake.engine_limits = service_policy.engine_limits(known.knobs, known.tuning, [MINUTE.objective])
    house.publish()
    if wanted.retail:  # fitted beside the event loop, for the clocks of requests to come
        projection = gate._projection(house.view.services[house.call().service.name], house.instances[0])
        assert projection is not None
        projection.fit(house.call().service)
        judged.clear()
    for instance, has in zip(house.instances, engines, strict=True):
        for own in has:
            choice = Choice(instance.uid, None, None, None, None, None, False, "")
            slot = house.dispatcher.take(call_of(house, own), (instance, choice))
            slot.meter = SimpleNamespace(events=own.generated)
            if own.generated:
                slot.started()
    # Of one moment: on a slow machine who waits would be judged again before anybody looks.
    house.dispatcher._try_again_later = lambda service: None  # type: ignore[method-assign]
    guest = await house.come(call_of(house, asked))
    engine = None if guest.slot is None else int(guest.slot.instance.uid[-2:])
    found = Found(engine, asks[-1].mhz if asks else None, tuple(judged))
    guest.task.cancel()
    await house.settle()
    return found


def call_of(house: House, own: Asks) -> Any:
    call = house.call(prompt=own.prompt, predicted=own.predicted)
    call.request.received_s = NOW_S - own.age_s
    return call


# -- simulated -------------------------------------------------------------------------------------


def simulated(asked: Asks, engines: Any, judged: list[Any], policy: str = "throttllem", **knobs: Any) -> Found:
    judged.clear()
    tuning = knobs.pop("tuning", {})
    tuning = {**tuning, "throttle": {**tuning.get("throttle", {}), **ENGINES["throttle"]}}
    plan = build(read_policy({"name": policy, **knobs, "tuning": tuning}), minutes.world(ONE_SITE))
    assert len(plan.members) == COUNT
    asking = plan.router
    assert isinstance(asking, ThrottleRouter)
    numbers = iter(range(10**6))
    here = [sequences(asking, slot, has, numbers) for slot, has in enumerate(engines)]
    running = np.array([own.running for own in here])
    view = replace(
        minutes.view(ONE_SITE, plan),
        now_s=NOW_S,
        running=running,
        waiting=np.array([len(own.number) for own in here]) - running,
        kv_used_tokens=np.array([int(own.kv_tokens.sum()) for own in here]),
        sequences=lambda slot: here[slot],
    )
    request = RequestView(next(numbers), NOW_S - asked.age_s, asked.prompt, 0, asked.predicted, np.inf, 0, 0, 0)
    found = asking.place(request, view)
    clocks = [] if found is None else [own.mhz for own in found.commands if isinstance(own, SetSmClock)]
    return Found(None if found is None else found.instance, clocks[-1] if clocks else None, tuple(judged))


def sequences(asking: ThrottleRouter, slot: int, has: tuple[Asks, ...], numbers: Any) -> Sequences:
    """Returns what an engine has, of which the router knows when it came."""
    there = sorted(has, key=lambda own: not own.generated)
    rows = []
    for own in there:
        number = next(numbers)
        asking._instances[slot].requests[number] = (own.prompt, NOW_S - own.age_s + (MINUTE.objective.e2e_s or 0.0))
        in_cache = own.prompt + own.generated - 1 if own.generated else 0
        rows.append((number, in_cache, own.generated, 0 if own.generated else own.prompt, own.predicted))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    none = np.zeros(len(rows))
    return Sequences(sum(own.generated > 0 for own in there), *columns, none, none)


# -- the same --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
async def test_verdict_and_clock_are_the_same_when_the_engines_are(case: str, judged: list[Any]) -> None:
    asked, engines = CASES[case]
    assert await live(asked, engines, judged) == simulated(asked, engines, judged)


async def test_largest_engine_is_to_refuse_what_fits_none(judged: list[Any]) -> None:
    asked, engines = Asks(700_000, 100), (BUSY[:1], (), BUSY[:2])
    ours, theirs = await live(asked, engines, judged), simulated(asked, engines, judged)
    assert (ours.engine, ours.mhz) == (theirs.engine, theirs.mhz) == (0, None)
    assert {own[-1] for found in (ours, theirs) for own in found.judged} == {Reason.INFEASIBLE}


async def test_cases_are_judged_differently(judged: list[Any]) -> None:
    found = {case: simulated(*own, judged, clock_floor="gpu") for case, own in CASES.items()}
    assert {own.engine for own in found.values()} == {None, 0, 1, 2}
    assert len({own.mhz for own in found.values()}) > 3
    assert {own.judged[-1][-1] for own in found.values()} == {Reason.WITHIN_LIMITS, Reason.LOST, Reason.WOULD_VIOLATE}


@pytest.mark.parametrize("case", ["idle", "one less busy", "in a hurry"])
async def test_retail_clock_is_the_same_when_the_engines_are(case: str, judged: list[Any]) -> None:
    asked, engines = CASES[case]
    ours, theirs = await live(asked, engines, judged, "retail"), simulated(asked, engines, judged, "retail")
    assert (ours.engine, ours.mhz) == (theirs.engine, theirs.mhz)


CHANGED = (
    {"predictor_error": 0.9},
    {"tuning": {"throttle": {"tbt_s": 0.01}}},
    {"tuning": {"throttle": {"max_tokens": 600}}},
    {"tuning": {"throttle": {"retry_s": 0.7}}},
    {"max_num_seqs": 19},
    {"clock_floor": "gpu"},
    {"clock_floor_mhz": 1200.0},
)


@pytest.mark.parametrize("knobs", CHANGED)
async def test_verdict_differs_when_live_is_changed(knobs: dict[str, Any], judged: list[Any]) -> None:
    asked, engines = CASES["one less busy"]
    assert await live(asked, engines, judged, **knobs) != simulated(asked, engines, judged)
