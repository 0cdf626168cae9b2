"""One rule at a time, where the right answer can be worked out by hand, and bad input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from core.simulator.kernel.driver import MACRO, Stepping, simulate
from core.simulator.kernel.kernel import DONE, REJECTED
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import FixedCosts, FleetSpec, InstanceSpec, PoolSpec, SimulationError, load
from core.types import SetSmClock
from tests.unit.core.simulator.kernel.scenarios import STEPPINGS, Schedule, finished, total_j

SECOND = FixedCosts(base_s=1.0, busy_w=100.0, idle_w=10.0)  # each iteration takes a second


def fleet(count: int = 1, routing: str = "round_robin", **changes: Any) -> FleetSpec:
    specs = tuple(
        InstanceSpec(f"i{n}", "fixed", "fixed", 1, 1.0, **({"costs": SECOND} | changes)) for n in range(count)
    )
    return FleetSpec(specs, (PoolSpec("all", tuple(range(count)), routing),))


def run(stepping: Stepping, spec: FleetSpec, rows: Sequence[tuple[float, int, int]], **options: Any) -> Outcome:
    at, prompt, output = zip(*rows, strict=True)
    return simulate(spec, load(at, prompt, output, **options), stepping=stepping)


@STEPPINGS
def test_energy_is_work_and_idle_when_a_lone_request_comes_late(stepping: Stepping) -> None:
    out = run(stepping, fleet(), [(5.0, 10, 3)])
    assert out.rows["first_token_s"].tolist() == [6.0]
    assert out.rows["finish_s"].tolist() == [8.0]
    assert {kind: spent.tolist() for kind, spent in out.spent_j.items()} == {
        "prefill": [100.0],
        "decode": [200.0],
        "idle": [50.0],
        "transition": [0.0],
    }
    assert out.rows["energy_j"].tolist() == [300.0]


@STEPPINGS
def test_prompt_takes_as_many_iterations_as_it_has_chunks_when_longer_than_the_budget(stepping: Stepping) -> None:
    out = run(stepping, fleet(tokens_per_iteration=4), [(0.0, 10, 1), (0.0, 2, 1)])
    # The second is admitted once the first has been prefilled (4 + 4 + 2) and shares that iteration's budget.
    assert out.rows["finish_s"].tolist() == [3.0, 3.0]


@STEPPINGS
def test_prefill_is_shorter_when_the_prefix_cache_has_most_of_it(stepping: Stepping) -> None:
    out = run(stepping, fleet(tokens_per_iteration=4), [(0.0, 10, 1)], prefix_hit_ratio=0.6)
    assert out.rows["finish_s"].tolist() == [1.0]


@STEPPINGS
def test_arrival_waits_for_the_next_iteration_when_one_is_in_flight(stepping: Stepping) -> None:
    out = run(stepping, fleet(), [(0.0, 10, 9), (2.5, 10, 1)])
    assert out.rows["first_token_s"].tolist() == [1.0, 4.0]
    assert out.rows["itl_max_s"].tolist() == [1.0, 0.0]


@STEPPINGS
def test_newest_is_computed_again_when_the_cache_runs_out(stepping: Stepping) -> None:
    out = run(stepping, fleet(kv_capacity_tokens=26), [(0.0, 10, 8), (0.0, 10, 8)])
    # Token 1 at 1 s, at 2 s the second joins, and at 4 s 26 tokens are full: it leaves, and comes back when the
    # first has finished at 8 s.
    assert out.rows["preemptions"].tolist() == [0, 1]
    assert out.rows["status"].tolist() == [DONE, DONE]
    assert out.rows["finish_s"][0] == 8.0
    assert out.rows["itl_max_s"][1] > 4.0


@STEPPINGS
def test_least_loaded_instance_is_taken_when_the_other_is_busy(stepping: Stepping) -> None:
    rows = [(0.0, 10, 100), (1.5, 10, 1), (5.5, 10, 1)]
    assert run(stepping, fleet(2, "least_loaded"), rows).rows["instance"].tolist() == [0, 1, 1]
    assert run(stepping, fleet(2), rows).rows["instance"].tolist() == [0, 1, 0]


@STEPPINGS
def test_request_is_rejected_and_counted_when_it_can_never_fit(stepping: Stepping) -> None:
    out = run(stepping, fleet(kv_capacity_tokens=50), [(0.0, 45, 5), (0.0, 46, 5)])
    assert out.rows["status"].tolist() == [DONE, REJECTED]
    assert math.isnan(out.rows["finish_s"][1])
    assert out.rows["energy_j"][1] == 0.0


@STEPPINGS
def test_timely_tokens_end_at_the_deadline_when_a_request_is_slow(stepping: Stepping) -> None:
    out = run(stepping, fleet(), [(0.0, 10, 9)], deadline_s=[4.5])
    assert out.rows["timely"].tolist() == [4]


@STEPPINGS
def test_clock_change_takes_effect_with_the_next_iteration_when_busy(stepping: Stepping) -> None:
    spec = InstanceSpec("i0", "Llama3-70B", "A100-80GB", 4, 1410.0)
    line = FleetSpec((spec,), (PoolSpec("all", (0,)),))
    requests = load([0.0], [100], [200])
    fast = simulate(line, requests, stepping=stepping)
    slow = simulate(line, requests, stepping=stepping, controls=[Schedule(((1, SetSmClock("i0", 600.0)),), 1.0)])
    assert slow.rows["finish_s"][0] > fast.rows["finish_s"][0]
    assert slow.rows["energy_j"][0] < fast.rows["energy_j"][0]


def test_partial_outcome_is_returned_when_interrupted() -> None:
    def stop(arrived: int, now_s: float) -> None:
        if arrived > 500:
            raise KeyboardInterrupt

    at = np.arange(1000.0)
    out = simulate(fleet(), load(at, np.full(1000, 10), np.ones(1000, int)), progress=stop)
    assert out.partial
    assert 400 < finished(out).sum() < 700
    assert out.rows["energy_j"].sum() + out.spent_j["idle"].sum() == pytest.approx(total_j(out), rel=1e-9)
    assert total_j(out) == pytest.approx(100.0 * finished(out).sum(), rel=0.01)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([], [], []), "empty"),
        (([0.0, 2.0, 1.0], [1, 1, 1], [1, 1, 1]), "request 3: arrival_s must not go back"),
        (([0.0, np.nan], [1, 1], [1, 1]), "request 2: arrival_s must be a number"),
        (([-1.0], [1], [1]), "request 1: arrival_s must be a number from 0"),
        (([0.0], [0], [1]), "request 1: prompt_tokens must be at least 1, not 0"),
        (([0.0], [1], [-3]), "request 1: output_tokens must be at least 1, not -3"),
        (([0.0], [1.5], [1]), "whole numbers"),
        (([0.0, 1.0], [1], [1, 1]), "prompt_tokens has 1 values for 2 arrivals"),
    ],
)
def test_load_is_refused_when_a_column_is_wrong(columns: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        load(*columns)


def test_run_is_refused_when_no_request_can_ever_fit() -> None:
    with pytest.raises(SimulationError, match="no request can ever be served"):
        run(MACRO, fleet(kv_capacity_tokens=50), [(0.0, 100, 5)])


def test_instance_is_refused_when_its_model_leaves_no_room() -> None:
    with pytest.raises(SimulationError, match="no room for a KV cache"):
        InstanceSpec("i", "Llama3-70B", "A100-80GB", 1, 1410.0)
    with pytest.raises(SimulationError, match="outside the A100-80GB's range"):
        InstanceSpec("i", "Llama3-70B", "A100-80GB", 4, 2000.0)
    with pytest.raises(SimulationError, match="would take no time"):
        FixedCosts()
