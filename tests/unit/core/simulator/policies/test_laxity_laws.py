"""FREESH's least laxity first is never worse than first come, first served, and far better under twice the load.

Shapes, rates and seeds are drawn; the load of once is what an engine gets through in the order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from core.algorithms.queue.queueing import WINDOW_FACTOR
from core.simulator.kernel import kernel
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Load, PoolSpec, load
from core.simulator.kernel.worlds import cost_row
from core.simulator.policies import FreeshConfig
from core.simulator.policies.freesh import scheduled
from core.simulator.policies.scheduling import Served
from tests.unit.core.simulator.policies.worlds import templates
from tests.unit.laws import examples

A100 = "A100-80GB"
LATE = 5.0  # beta_LLF: a request that takes more times its time alone is a violation (FREESH C.2)
ALIKE = 0.3  # spread of lengths below which there is little to order by


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests with these medians and spreads (of logarithms) of lengths, for an engine with so many seats."""

    prompt: int
    output: int
    prompt_spread: float
    output_spread: float
    seats: int

    def lengths(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        prompt = self.prompt * np.exp(self.prompt_spread * rng.standard_normal(count))
        output = self.output * np.exp(self.output_spread * rng.standard_normal(count))
        return prompt.astype(int).clip(1, 8000), output.astype(int).clip(2, 4000)


@dataclass(frozen=True, slots=True)
class Shapes:
    """What shapes are drawn from; medians by their logarithms, so that short ones are as frequent."""

    least_spread: float  # of answers, up to 1
    longest_prompt: float = 7.5  # a logarithm
    seats: tuple[int, ...] = (8, 20, 64)

    def draw(self, rng: np.random.Generator) -> Shape:
        prompt, output = np.exp([rng.uniform(3.0, self.longest_prompt), rng.uniform(4.0, 6.5)]).astype(int).tolist()
        spreads = rng.uniform(0.0, 1.0), rng.uniform(self.least_spread, 1.0)
        return Shape(prompt, output, *spreads, int(rng.choice(self.seats)))


# Answers, not prompts, take the time, and their lengths differ as much as those of chats: else there is less to order
# by. A request by itself then takes about as long as in a full batch, so that the load of once is in time.
CHATS = Shapes(0.8, 6.0, (8, 20))


def engine(shape: Shape, order: str) -> InstanceSpec:
    (own,) = templates(["east"], (1,), A100, "Llama3-8B")
    return scheduled(replace(own, max_sequences=shape.seats), FreeshConfig(order=order), Served())


def run(shape: Shape, order: str, requests: Load) -> Outcome:
    return simulate(FleetSpec((engine(shape, order),), (PoolSpec("all", (0,)),)), requests)


def due(shape: Shape, at_s: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> Load:
    own = engine(shape, "fcfs")
    cached = np.zeros(at_s.size, np.int64)
    costs = cost_row(own), own.mhz, own.tokens_per_iteration
    lat_s = kernel.alone_latencies(*costs, prompt, output, cached)
    due_s = at_s + WINDOW_FACTOR * lat_s
    return replace(load(at_s, prompt, output), lat_s=lat_s, due_s=due_s, deadline_s=due_s)


def drawn(shape: Shape, share: float, seed: int, count: int) -> Load:
    """Poisson arrivals at a share of the load of once."""
    rng = np.random.default_rng(seed)
    prompt, output = shape.lengths(rng, count)
    ends_s = np.sort(run(shape, "fcfs", load(np.zeros(count), prompt, output)).rows["finish_s"])
    once_rps = 0.6 * count / (ends_s[round(0.8 * count) - 1] - ends_s[round(0.2 * count) - 1])
    return due(shape, np.cumsum(rng.exponential(1.0 / (share * once_rps), count)), prompt, output)


@dataclass(frozen=True, slots=True)
class Found:
    energy_j: float
    e2e_s: float
    late: float  # a share

    @classmethod
    def of(cls, outcome: Outcome) -> Found:
        rows = outcome.rows
        e2e_s = rows["finish_s"] - rows["arrival_s"]
        return cls(float(rows["energy_j"].sum()), float(e2e_s.mean()), float((e2e_s > LATE * rows["lat_s"]).mean()))


def compared(shapes: Shapes, shares: tuple[float, float], draws: int, count: int) -> list[tuple[Found, Found]]:
    """Returns what came of LLF and of FCFS for so many drawn shapes, shares of the load of once, and arrivals."""
    found = []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        shape = shapes.draw(rng)
        requests = drawn(shape, rng.uniform(*shares), seed, count)
        own, plain = (Found.of(run(shape, order, requests)) for order in ("llf", "fcfs"))
        found.append((own, plain))
    return found


def check_keeps_up(pairs: list[tuple[Found, Found]], count: int, each: float) -> None:
    for own, plain in pairs:
        assert own.e2e_s <= each * plain.e2e_s
        assert own.late <= plain.late + 1.5 / count, "one request at the most"
    assert sum(own.e2e_s / plain.e2e_s for own, plain in pairs) <= len(pairs) * 1.001
    # At the end of a run only long requests are left, so that batches are emptier: that evens out.
    assert sum(own.energy_j / plain.energy_j for own, plain in pairs) <= len(pairs) * 1.02


def check_twice(pairs: list[tuple[Found, Found]]) -> None:
    for own, plain in pairs:
        assert own.e2e_s <= 0.6 * plain.e2e_s
        assert own.late <= 0.5 * plain.late


def test_laxity_costs_nothing_where_nobody_waits() -> None:
    pairs = compared(Shapes(0.0), (0.2, 0.6), examples(6), 200)
    check_keeps_up(pairs, 200, each=1.02)
    assert all(own.energy_j <= 1.02 * plain.energy_j for own, plain in pairs)


def test_laxity_is_no_worse_than_the_order_of_arrival_where_that_keeps_up() -> None:
    check_keeps_up(compared(Shapes(ALIKE), (0.6, 0.9), examples(6), 200), 200, each=1.03)


def test_requests_are_far_earlier_and_half_as_many_late_when_twice_the_load_comes() -> None:
    check_twice(compared(CHATS, (2.0, 2.0), examples(3), 800))


@pytest.mark.slow("thousands of requests in each run")
def test_gain_lasts_as_long_as_twice_the_load_does() -> None:
    check_twice(compared(CHATS, (2.0, 2.0), 12, 4000))
