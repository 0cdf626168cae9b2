"""Clocks by deadlines take time to come: what an iteration, an answer and an idle instance do until then."""

from __future__ import annotations

import numpy as np
import pytest

from core.engine.engine_model import engine_model
from core.engine.iteration import Totals
from core.simulator.kernel.driver import MACRO, WALK, Stepping, simulate
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import FleetSpec, Handover, InstanceSpec, Pacing, PoolSpec, load
from core.types import Limits

KIND = "Llama2-70B", "H100-SXM-80GB", 8
ENGINE = engine_model(*KIND, "vllm-v1")
FLOOR, STEP, TOP = 600.0, 60.0, 1980.0
SWITCH_S = 0.05
BOTH = pytest.mark.parametrize("stepping", [MACRO, WALK], ids=["macro", "walk"])


def paced(name: str = "i0", switch_s: float = SWITCH_S, *, ahead: bool = True, mhz: float = TOP) -> InstanceSpec:
    return InstanceSpec(name, *KIND, mhz, pacing=Pacing(FLOOR, STEP, switch_s, ahead))


def run(
    rows: list[tuple[float, int, int]],
    limits: Limits,
    spec: InstanceSpec | None = None,
    stepping: Stepping = MACRO,
) -> Outcome:
    fleet = FleetSpec((spec or paced(),), (PoolSpec("all", (0,)),), cell_limits=(limits,))
    return simulate(fleet, load(*zip(*rows, strict=True)), stepping=stepping, keep_segments=10_000)


def takes_s(mhz: float, prompt: int) -> float:
    return ENGINE.iteration_of(mhz, Totals(float(prompt), 0.0, prompt * prompt / 2.0, 1.0, 0.0, 0.0)).t_s


@BOTH
def test_iteration_goes_on_at_the_clock_that_comes_while_it_runs(stepping: Stepping) -> None:
    hurried = run([(1.0, 2000, 1)], Limits(0.01), stepping=stepping)
    done = SWITCH_S / takes_s(FLOOR, 2000)  # share of the work that is done when the top clock is there
    expected_s = SWITCH_S + (1.0 - done) * takes_s(TOP, 2000)
    assert hurried.rows["first_token_s"][0] - 1.0 == pytest.approx(expected_s, rel=1e-9)
    at_once = run([(1.0, 2000, 1)], Limits(0.01), paced(switch_s=0.0), stepping)
    assert at_once.rows["first_token_s"][0] - 1.0 == pytest.approx(takes_s(TOP, 2000), rel=1e-9)


def test_energy_of_an_iteration_is_that_of_its_parts() -> None:
    out = run([(1.0, 2000, 1)], Limits(0.01))
    done = SWITCH_S / takes_s(FLOOR, 2000)
    totals = Totals(2000.0, 0.0, 2e6, 1.0, 0.0, 0.0)
    expected_j = sum(
        part * ENGINE.iteration_of(mhz, totals).energy_j for mhz, part in ((FLOOR, done), (TOP, 1.0 - done))
    )
    assert out.spent_j["prefill"].sum() == pytest.approx(expected_j, rel=1e-9)


def test_idle_instance_draws_what_its_old_clock_does_until_the_floor_is_there() -> None:
    rows = [(1.0, 2000, 1), (9.0, 2000, 1)]
    found = {s: run(rows, Limits(0.01), paced(switch_s=s)).spent_j["idle"].sum() for s in (1e-6, SWITCH_S)}
    more_w = ENGINE.idle_watts(TOP) - ENGINE.idle_watts(FLOOR)
    taken_s = takes_s(TOP, 2000)
    later_s = SWITCH_S + (1.0 - SWITCH_S / takes_s(FLOOR, 2000)) * taken_s  # of the first prompt; less idle time
    expected_j = more_w * SWITCH_S - ENGINE.idle_watts(FLOOR) * (later_s - taken_s)
    assert more_w > 0.0
    assert found[SWITCH_S] - found[1e-6] == pytest.approx(expected_j, rel=1e-3)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("switch_s", [0.003, SWITCH_S, 0.3])
def test_jumps_end_where_single_iterations_do(switch_s: float, ahead: bool) -> None:
    rng = np.random.default_rng(7)
    at_s = np.cumsum(rng.exponential(0.4, 60))
    rows = [
        (float(at), int(prompt), int(out))
        for at, prompt, out in zip(at_s, rng.integers(20, 3000, 60), rng.integers(1, 300, 60), strict=True)
    ]
    spec = paced(switch_s=switch_s, ahead=ahead)
    jumped, walked = (run(rows, Limits(0.6, 0.04), spec, stepping) for stepping in (MACRO, WALK))
    for name in ("first_token_s", "finish_s", "energy_j"):
        np.testing.assert_allclose(jumped.rows[name], walked.rows[name], rtol=1e-9, err_msg=name)
    for kind, spent_j in jumped.spent_j.items():
        np.testing.assert_allclose(spent_j, walked.spent_j[kind], rtol=1e-9, err_msg=kind)
    np.testing.assert_allclose(jumped.mhz_s, walked.mhz_s, rtol=1e-9)


def test_one_switch_follows_another() -> None:
    # The first prompt is over before the top clock is there, and the floor is asked for meanwhile.
    out = run([(1.0, 20, 1), (5.0, 20, 1)], Limits(0.001), paced(switch_s=0.2))
    early_s, later_s = out.rows["first_token_s"] - np.array([1.0, 5.0])
    assert early_s == pytest.approx(later_s, rel=1e-9), "at the floor again, long before the second one"


def test_clock_by_iteration_is_the_top_one_while_a_prompt_waits_behind() -> None:
    rows = [(1.0, 1500, 1), (1.001, 1500, 1), (1.001, 1500, 1)]
    found = run(rows, Limits(60.0), paced(switch_s=0.0, ahead=False)).rows["first_token_s"]
    assert found[0] - 1.0 == pytest.approx(takes_s(FLOOR, 1500), rel=1e-9)
    assert found[1] - found[0] < 1.1 * takes_s(TOP, 2048)
    ahead = run(rows, Limits(60.0), paced(switch_s=0.0)).rows["first_token_s"]
    assert ahead[1] - ahead[0] > 0.9 * takes_s(FLOOR, 2048), "who looks ahead has time for both"


def decoding(tpot_s: float, count: int, answers: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Returns the joules and busy answers of two instances that decode what one prefills; by least energy."""
    specs = (InstanceSpec("p", *KIND, TOP), paced("d0", 0.0), paced("d1", 0.0))
    pools = (PoolSpec("prompts", (0,), handover=Handover("answers")), PoolSpec("answers", (1, 2), "least_energy"))
    fleet = FleetSpec(specs, pools, cell_limits=(Limits(2.0, tpot_s),))
    rows = [(0.3 * n, 200, answers) for n in range(count)]
    out = simulate(fleet, load(*zip(*rows, strict=True)))
    return out.spent_j["decode"], out.rows["finish_s"]


def takes_for(answers: int, context: float) -> float:
    """Returns the seconds of an iteration at the floor with so many answers."""
    return ENGINE.iteration_of(FLOOR, Totals(0.0, 0.0, 0.0, 0.0, float(answers), answers * context)).t_s


def test_answers_go_together_while_the_clock_that_is_there_keeps_their_pace() -> None:
    spent_j, _ = decoding(takes_for(32, 600.0), 8)
    assert spent_j[1] > 0.0
    assert spent_j[2] == 0.0


def test_answers_go_elsewhere_where_one_more_would_need_a_higher_clock() -> None:
    spent_j, _ = decoding(takes_for(4, 400.0), 8)
    assert spent_j[1] > 0.0
    assert spent_j[2] > 0.0
