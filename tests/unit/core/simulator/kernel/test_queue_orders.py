"""Orders of queues: nobody displaces for ever, and short prompts come along with a long one."""

from __future__ import annotations

import numpy as np
import pytest

from core.simulator.kernel.driver import simulate
from core.simulator.kernel.kernel import DONE
from core.simulator.kernel.simulated import (
    FixedCosts,
    FleetSpec,
    InstanceSpec,
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
