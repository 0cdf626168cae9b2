"""Orders of queues: nobody displaces for ever, and short prompts come along with a long one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.simulator.kernel.driver import Stepping, simulate
from core.simulator.kernel.kernel import DONE
from core.simulator.kernel.simulated import (
    FixedCosts,
    FleetSpec,
    InstanceSpec,
    Load,
    PoolSpec,
    Scheduling,
    SimulationError,
    load,
)
from tests.unit.core.simulator.kernel.scenarios import STEPPINGS


def fleet(scheduling: Scheduling, costs: FixedCosts, tokens: int, sequences: int = 64) -> FleetSpec:
    server = InstanceSpec(
        "server",
        "fixed",
        "fixed",
        1,
        1.0,
        max_sequences=sequences,
        tokens_per_iteration=tokens,
        costs=costs,
        scheduling=scheduling,
    )
    return FleetSpec((server,), (PoolSpec("all", (0,)),))


@STEPPINGS
def test_requests_of_like_laxity_end_when_prompts_take_longer_than_the_order_estimates(stepping):
    # A prompt takes 40 s of which the order knows 20: whoever waits becomes the more urgent one, again and again.
    rules = Scheduling("llf", token_s=0.1, prefill_token_s=0.5, preempts_s=1.0)
    one = fleet(rules, FixedCosts(1.0, 0.0, 0.0), tokens=1, sequences=1)
    requests = load([0.0, 0.0], [40, 40], [3, 3], deadline_s=[60.0, 60.0])
    out = simulate(one, requests, stepping=stepping)
    assert (out.rows["status"] == DONE).all()
    assert out.rows["preemptions"].sum() <= 6  # at most one for each token


def due_in(window_s: list[float], works_s: list[int], at_s: list[float]) -> Load:
    """Requests that are so many tokens of a second each, due so long after they came."""
    due_s = [at + window for at, window in zip(at_s, window_s, strict=True)]
    return load(at_s, [1] * len(at_s), works_s, deadline_s=due_s, due_s=due_s)


ONE_SEAT = FixedCosts(1.0, 0.0, 0.0)
RULES = Scheduling("llf", token_s=1.0)


@STEPPINGS
def test_shortest_goes_first_of_those_that_are_late_and_those_that_are_not_wait(stepping: Stepping) -> None:
    requests = due_in([99.0, 8.0, 10.0, 10.0, 60.0], [20, 6, 9, 3, 2], [0.0, 0.1, 0.1, 0.1, 0.1])
    rows = simulate(fleet(RULES, ONE_SEAT, tokens=64, sequences=1), requests, stepping=stepping).rows
    assert np.argsort(rows["finish_s"]).tolist() == [0, 3, 1, 2, 4]


@STEPPINGS
def test_least_laxity_goes_first_while_all_can_be_in_time(stepping: Stepping) -> None:
    requests = due_in([99.0, 30.0, 50.0, 24.0], [5, 6, 9, 8], [0.0, 0.1, 0.1, 0.1])
    rows = simulate(fleet(RULES, ONE_SEAT, tokens=64, sequences=1), requests, stepping=stepping).rows
    assert np.argsort(rows["finish_s"]).tolist() == [0, 3, 1, 2]


@STEPPINGS
@pytest.mark.parametrize(
    ("window_s", "output", "displaces"),
    [
        (40.0, 5, True),
        (24.0, 5, False),  # its laxity is not that long
        (60.0, 30, False),  # it takes longer than what the other has left
    ],
)
def test_running_request_gives_way_only_when_it_can_afford_it(
    stepping: Stepping, window_s: float, output: int, displaces: bool
) -> None:
    rules = replace(RULES, preempts_s=0.1, margin=1.0)
    requests = due_in([window_s, 0.0], [20, output], [0.0, 2.5])
    rows = simulate(fleet(rules, ONE_SEAT, tokens=64, sequences=1), requests, stepping=stepping).rows
    assert rows["preemptions"].tolist() == [int(displaces), 0]


@STEPPINGS
def test_nobody_gives_way_in_vain_when_the_cache_would_be_too_small_even_so(stepping: Stepping) -> None:
    rules = replace(RULES, preempts_s=0.1)
    server = fleet(rules, ONE_SEAT, tokens=64, sequences=8)
    server = replace(server, instances=(replace(server.instances[0], kv_capacity_tokens=80),))
    # The first cannot afford it and has half of the cache, so that the second would free too little for the third.
    requests = load([0.0, 0.0, 2.5], [30, 2, 60], [20, 20, 3], due_s=[21.0, 99.0, 2.5], deadline_s=[99.0] * 3)
    rows = simulate(server, requests, stepping=stepping).rows
    assert rows["preemptions"].tolist() == [0, 0, 0]


@STEPPINGS
def test_short_prompts_come_along_with_a_long_one_when_chunks_are_limited(stepping):
    costs = FixedCosts(0.01, 0.001, 0.001)
    requests = load([0.0, 0.001], [4000, 50], [2, 2])

    def first_s(chunk_tokens: int) -> np.ndarray:
        rules = Scheduling("srtf", prefill_token_s=1.0, chunk_tokens=chunk_tokens)
        rows = simulate(fleet(rules, costs, tokens=2048), requests, stepping=stepping).rows
        return rows["first_token_s"] - rows["arrival_s"]

    whole, cut = first_s(0), first_s(256)
    assert cut[1] < whole[1] / 3
    assert cut[0] == pytest.approx(whole[0], rel=0.1)


def test_chunks_below_nothing_are_refused():
    with pytest.raises(SimulationError, match="chunk_tokens must be a number from 0, not -1"):
        Scheduling(chunk_tokens=-1)
