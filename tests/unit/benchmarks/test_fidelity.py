"""What a rehearsal adds to an engine's costs, from requests of which the truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fidelity import at_the_pace, simulated
from core.simulator.kernel.simulated import FixedCosts
from core.simulator.workload import TraceRequest
from pools.load_generator import Seen

LOOPS = FixedCosts(0.02, 0.0004, 0.001)
PACED = replace(LOOPS, prefill_token_s=0.0005)
REQUESTS = [TraceRequest(2.0 * n, 50 + 37 * n % 600, 10) for n in range(40)]


def with_costs(costs: FixedCosts) -> list[Seen]:
    return simulated(costs, REQUESTS, 0.0, 100_000, 256)


def test_costs_of_prompts_and_the_front_end_are_distinguished_when_requests_pause_in_between() -> None:
    seen = [replace(one, ttft_s=one.ttft_s + 0.03) for one in with_costs(PACED)]
    costs, front_s = at_the_pace(LOOPS, seen, with_costs)
    assert costs.prefill_token_s == pytest.approx(PACED.prefill_token_s, rel=0.01)
    assert front_s == pytest.approx(0.03, rel=0.02)


def test_rehearsal_is_refused_when_a_request_of_it_failed() -> None:
    with pytest.raises(ValueError, match="39 of 40 requests"):
        at_the_pace(LOOPS, with_costs(LOOPS)[1:], with_costs)
