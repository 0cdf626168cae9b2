"""The contract of both worlds on clocks by deadlines: of the same requests, at the same moments, gateways ask for the
clock at which a simulated instance goes on.

Each stretch of a simulated run is played again at a gateway: it is shown what the instance has at the stretch's begin,
and the clock that it asks for has to give the stretch's length. Prompts are such that none is left half done between
two looks, as chunks are not seen from a gateway. The moments of looks are the simulator's: while no prompt waits it
counts iterations, where gateways go by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from core.algorithms.clock.deadline_clock import CATCH_UP
from core.controllers.request.routing import Choice
from core.engine.engine_model import engine_model
from core.engine.iteration import Totals
from core.observations.clock_given import pace_limits
from core.ports import EngineLimits
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.kernel import LOOK_S, SEGMENT_COLUMNS
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Pacing, PoolSpec, load
from core.types import Limits
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.placing import deadline_looks, own_boards
from pools.gateway.placing.deadline_looks import EngineCosts, InstanceClock
from pools.gateway.placing.slot import Slot
from pools.gateway.requests.sse import Meter
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.placing.test_dispatch_laws import House

KIND = "Llama3-70B", "A100-80GB", 4, "vllm-v1"
ENGINE = engine_model(*KIND)
FLOOR, STEP, TOP = 210.0, 60.0, 1410.0
SHARES = 0.9, 0.8
EARLY_S = 1e-9


@dataclass(frozen=True)
class Load:
    """Requests: when they come, their prompts and outputs, the objective, and how many an engine runs at once."""

    arrival_s: tuple[float, ...]
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    limits: Limits
    seats: int = 256


SPARSE = Load((0.0, 3.0, 3.05, 9.0), (400, 800, 300, 1500), (60, 40, 90, 20), Limits(1.0, 0.06))
CLOSE = Load(
    tuple(0.07 * n for n in range(24)),
    tuple(100 + 37 * (n * 7 % 11) for n in range(24)),
    tuple(20 + 13 * (n * 5 % 17) for n in range(24)),
    Limits(0.6, 0.05),
)
FULL = Load(CLOSE.arrival_s, CLOSE.prompts, CLOSE.outputs, Limits(2.0, 0.2), seats=25)
NO_TTFT = Load(CLOSE.arrival_s, CLOSE.prompts, CLOSE.outputs, Limits(None, 0.045))
NO_TPOT = Load(CLOSE.arrival_s, CLOSE.prompts, CLOSE.outputs, Limits(0.4))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches take no time on both sides: so a stretch has one clock, which its length tells."""
    monkeypatch.setattr(deadline_looks, "clock_switch_s", lambda overheads, gpu, tp: 0.0)


class Written(Meter):
    """A stream of so many tokens so far."""

    def __init__(self, events: int) -> None:
        self.events = events


@dataclass
class Stretch:
    """A row of the kernel's log of segments."""

    start_s: float
    end_s: float
    steps: int
    decodes: int
    prefill_tokens: int


def simulated(own: Load) -> tuple[list[Stretch], np.ndarray]:
    """Returns the stretches of one simulated instance, and when each request had its first token."""
    kept = pace_limits(own.limits, 100.0, *SHARES)  # as the policy's builder makes it of a class
    spec = InstanceSpec("i0", *KIND[:3], TOP, engine=KIND[3], max_sequences=own.seats, pacing=Pacing(FLOOR, STEP))
    fleet = FleetSpec((spec,), (PoolSpec("all", (0,), "least_backlog"),), cell_limits=(kept,))
    ran = simulate(fleet, load(own.arrival_s, own.prompts, own.outputs), keep_segments=100_000)
    names = SEGMENT_COLUMNS
    assert ran.segments is not None
    rows = [dict(zip(names, row, strict=True)) for row in ran.segments]
    found = [
        Stretch(r["start_s"], r["end_s"], int(r["steps"]), int(r["decodes"]), int(r["prefill_tokens"])) for r in rows
    ]
    return found, ran.rows["first_token_s"]


@dataclass
class Gateway:
    """A gateway with one instance; its calls come and go by the simulated clock."""

    load: Load
    slots: dict[int, Slot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shares = {"clock_ttft_share": SHARES[0], "clock_tpot_share": SHARES[1]}
        tuning = wire.RequestTuning(profile_step_mhz=STEP)
        self.house = House(1, route="least_backlog", deadline=True, tuning=tuning, **shares)
        self.house.fake.engine_limits = EngineLimits(max_num_seqs=self.load.seats)
        self.house.fake.objectives = wire.LatencyLimits(self.load.limits.ttft_s, self.load.limits.tpot_s)
        self.house.publish()
        self.clock = InstanceClock(EngineCosts.of(*KIND))

    @property
    def instance(self) -> Instance:
        return self.house.instances[0]

    def comes(self, n: int) -> None:
        call = self.house.call(prompt=self.load.prompts[n], predicted=self.load.outputs[n])
        call.request.received_s = self.load.arrival_s[n]
        nowhere = Choice(self.instance.uid, None, None, None, None, None, True, "")
        self.slots[n] = self.house.dispatcher.take(call, (self.instance, nowhere))

    def begins(self, n: int, at_s: float) -> None:
        self.slots[n].started()
        self.slots[n].begun_s, self.slots[n].meter = at_s, Written(1)

    def mhz(self, now_s: float) -> float:
        self.clock.look(self.house.view.services[MODEL], self.instance, now_s)
        assert self.clock.mhz is not None
        return self.clock.mhz


def length_s(stretch: Stretch, mhz: float, prompts: list[int], context: int) -> float:
    """Returns how long a stretch takes at a clock, by the engine model that is not compiled."""
    total_s = 0.0
    for k in range(stretch.steps):
        pairs = sum(tokens * tokens / 2.0 for tokens in prompts)
        now = context + k * stretch.decodes
        new = float(sum(prompts))
        totals = Totals(new, 0.0, pairs, float(len(prompts)), float(stretch.decodes), float(now))
        total_s += ENGINE.iteration_of(mhz, totals).t_s
    return total_s


def replayed(own: Load) -> list[tuple[float, float, float]]:
    """Returns of each stretch its clock at the gateway, its length at that clock, and its simulated length."""
    stretches, first_s = simulated(own)
    gateway, found = Gateway(own), []
    mhz, look_s, came = FLOOR, 0.0, 0
    iterations, look_iteration, look_decodes = 0, 0, 0
    waiting: list[int] = []
    generated: dict[int, int] = {}
    for stretch in stretches:
        now_s = stretch.start_s
        while came < len(own.prompts) and own.arrival_s[came] <= now_s + EARLY_S:
            gateway.comes(came)
            waiting.append(came)
            came, look_s = came + 1, now_s
        timely, other = now_s >= look_s - EARLY_S, look_decodes != stretch.decodes
        if timely if waiting else (other or iterations >= look_iteration):
            mhz, look_s = gateway.mhz(now_s), now_s + LOOK_S
            look_iteration, look_decodes = iterations + CATCH_UP, stretch.decodes
        iterations += stretch.steps
        prompts = [own.prompts[n] for n in waiting] if stretch.prefill_tokens else []
        assert sum(prompts) == stretch.prefill_tokens, "a prompt is left half done"
        context = sum(own.prompts[n] + count for n, count in generated.items())
        assert stretch.decodes == len(generated)
        found.append((mhz, length_s(stretch, mhz, prompts, context), stretch.end_s - now_s))
        for n in list(generated):
            generated[n] += stretch.steps
            gateway.slots[n].meter.events = generated[n]  # type: ignore[union-attr]
        if prompts:
            for n in waiting:
                assert first_s[n] == pytest.approx(stretch.end_s)
                gateway.begins(n, stretch.end_s)
                generated[n] = 1
            waiting = []
        for n in [n for n, count in generated.items() if count >= own.outputs[n]]:
            gateway.slots.pop(n).end()
            del generated[n]
    assert came == len(own.prompts)
    return found


@pytest.mark.parametrize(
    "own", [SPARSE, CLOSE, FULL, NO_TTFT, NO_TPOT], ids=["sparse", "close", "full", "no ttft", "no tpot"]
)
def test_gateways_ask_for_the_clock_that_simulated_instances_have(own: Load) -> None:
    found = replayed(own)
    assert len({mhz for mhz, _, _ in found}) > 2, "or it would say nothing"
    for mhz, ours_s, theirs_s in found:
        assert ours_s == pytest.approx(theirs_s, rel=1e-6), f"at {mhz:g} MHz"


@pytest.mark.parametrize(
    ("own", "module", "name", "changed"),
    [
        (CLOSE, own_boards, "pace_limits", lambda own: lambda limits, long, *_: own(limits, long, 0.6, 0.6)),
        (FULL, deadline_looks, "left_of_limits", lambda own: lambda cache, seats, answers: 1.0),
    ],
    ids=["limits", "pressure"],
)
def test_clocks_differ_when_a_gateway_sees_it_otherwise(
    own: Load, module: Any, name: str, changed: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, changed(getattr(module, name)))
    assert any(ours_s != pytest.approx(theirs_s, rel=1e-6) for _, ours_s, theirs_s in replayed(own))
