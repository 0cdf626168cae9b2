"""Instances on slices of one GPU have one clock: the highest that any of them would have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.engine.engine_model import engine_model
from core.simulator.kernel.commands import Drain, SimCommand, Start
from core.simulator.kernel.driver import MACRO, WALK, Stepping, simulate
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Pacing, PoolSpec, load
from core.types import Limits, SetSmClock
from tests.unit.core.simulator.kernel.scenarios import Schedule, total_j

HALF, TOP, LOW = "A100-80GB/2", 1410.0, 600.0
BOTH = pytest.mark.parametrize("stepping", [MACRO, WALK], ids=["macro", "walk"])


def spec(name: str, gpu: str = HALF, pacing: Pacing | None = None) -> InstanceSpec:
    return InstanceSpec(name, "Llama3-8B", gpu, 1, TOP, pacing=pacing)


def run(stepping: Stepping, specs: list[InstanceSpec], *commands: tuple[int, SimCommand], until_s: float) -> Outcome:
    """Runs instances of which nobody asks anything but a request in the end. Commands are given at seconds."""
    alone = PoolSpec("last", (len(specs),))
    last = spec("last", "A100-80GB")
    fleet = FleetSpec((*specs, last), (PoolSpec("all", tuple(range(len(specs)))), alone), (1,), (), (Limits(),))
    controls = [Schedule(commands, 1.0)]
    return simulate(fleet, load([until_s], [100], [1]), stepping=stepping, controls=controls)


def mean_mhz(out: Outcome) -> list[float]:
    return [mhz_s / on_s for mhz_s, on_s in zip(out.mhz_s, out.on_s, strict=True)]


@BOTH
def test_the_highest_clock_counts_for_all_on_a_gpu(stepping: Stepping) -> None:
    two = [spec("a"), spec("b")]
    one_low = run(stepping, two, (0, SetSmClock("a", LOW)), until_s=10.0)
    assert mean_mhz(one_low)[:2] == pytest.approx([TOP, TOP])
    both_low = run(stepping, two, (0, SetSmClock("a", LOW)), (0, SetSmClock("b", 800.0)), until_s=10.0)
    assert mean_mhz(both_low)[:2] == pytest.approx([800.0, 800.0])


@BOTH
def test_gpus_that_nobody_shares_have_clocks_of_their_own(stepping: Stepping) -> None:
    wholes = run(stepping, [spec("a", "A100-80GB"), spec("b", "A100-80GB")], (0, SetSmClock("a", LOW)), until_s=10.0)
    assert mean_mhz(wholes)[:2] == pytest.approx([LOW, TOP])
    sites = [spec("a"), replace(spec("b"), site="elsewhere")]
    assert mean_mhz(run(stepping, sites, (0, SetSmClock("a", LOW)), until_s=10.0))[:2] == pytest.approx([LOW, TOP])
    third = [spec("a"), spec("b"), spec("c")]  # two have one GPU, the third has the next
    assert mean_mhz(run(stepping, third, (0, SetSmClock("c", LOW)), until_s=10.0))[:3] == pytest.approx([TOP, TOP, LOW])


@BOTH
def test_idle_halves_draw_what_their_gpu_does(stepping: Stepping) -> None:
    low = [(0, SetSmClock(name, LOW)) for name in "ab"]
    halves = run(stepping, [spec("a"), spec("b")], *low, until_s=100.0)
    whole = run(stepping, [spec("a", "A100-80GB")], low[0], until_s=100.0)
    assert total_j(halves) == pytest.approx(total_j(whole), rel=1e-9)


@BOTH
def test_who_stays_gets_its_own_clock_when_the_other_goes(stepping: Stepping) -> None:
    out = run(stepping, [spec("a"), spec("b")], (0, SetSmClock("a", LOW)), (4, Drain("b")), until_s=10.0)
    assert out.on_s[1] == pytest.approx(4.0)
    assert out.mhz_s[0] == pytest.approx(4.0 * TOP + (out.on_s[0] - 4.0) * LOW)


@BOTH
def test_who_comes_brings_its_clock_to_a_gpu_with_room(stepping: Stepping) -> None:
    comes = Start(spec("new"), "all", 1.0)
    out = run(stepping, [spec("a")], (0, SetSmClock("a", LOW)), (4, comes), until_s=10.0)
    assert out.mhz_s[0] == pytest.approx(4.0 * LOW + (out.on_s[0] - 4.0) * TOP)


@BOTH
def test_clocks_by_deadlines_are_shared_too(stepping: Stepping) -> None:
    """One is asked for much, the other for little: alone this one would be slow."""
    paced = Pacing(LOW, 60.0, 0.05)
    limits = (Limits(0.2, 0.02), Limits(20.0, 0.5))

    def run_both(gpu: str) -> Outcome:
        specs = (spec("busy", gpu, paced), spec("calm", gpu, paced))
        pools = (PoolSpec("busy", (0,)), PoolSpec("calm", (1,)))
        fleet = FleetSpec(specs, pools, (0, 1), cell_limits=limits)
        rows = [(n * 0.5, 1500, 100, 0) for n in range(40)] + [(n * 5.0, 100, 100, 1) for n in range(4)]
        at_s, prompts, outputs, cells = zip(*sorted(rows), strict=True)
        return simulate(fleet, load(at_s, prompts, outputs, request_class=cells), stepping=stepping)

    shared, alone = run_both(HALF), run_both("A100-80GB")
    assert mean_mhz(alone)[1] < mean_mhz(alone)[0]
    busy, calm = mean_mhz(shared)
    assert calm == pytest.approx(busy, rel=1e-3)


def test_a_half_takes_longer_than_a_whole() -> None:
    half, whole = engine_model("Llama3-8B", HALF, 1), engine_model("Llama3-8B", "A100-80GB", 1)
    out = [
        simulate(FleetSpec((spec("a", gpu),), (PoolSpec("all", (0,)),)), load([0.0], [2000], [100]))
        for gpu in (HALF, "A100-80GB")
    ]
    took = [float(one.rows["finish_s"][0]) for one in out]
    assert took[0] > took[1]
    assert half.idle_watts(TOP) == pytest.approx(whole.idle_watts(TOP) / 2)
