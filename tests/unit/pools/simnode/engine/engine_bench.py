"""An engine without GPUs, event loop or clock: a made-up cost model, and time that is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.engine.iteration import Iteration
from core.ports import EngineLimits, EngineOptions
from pools.simnode.engine.batching import Batcher
from pools.simnode.engine.generation import Generation

STEP_S = 0.02
PREFILL_S_PER_TOKEN = 0.0001


class Cost:
    """20 ms an iteration and 0.1 ms a prefill token, at half the clock twice as long. Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, tuple[tuple[int, int], ...], int, float]] = []

    def iteration(
        self, mhz: float, prefills: Sequence[tuple[int, int]] = (), decodes: int = 0, context_tokens: float = 0.0
    ) -> Iteration:
        assert prefills or decodes
        self.asked.append((mhz, tuple(prefills), decodes, context_tokens))
        t_s = (STEP_S + PREFILL_S_PER_TOKEN * sum(new for new, _ in prefills)) * 1000.0 / mhz
        return Iteration(t_s, 800.0, 200.0, mhz, 800.0 * t_s)


class Gpus:
    def __init__(self) -> None:
        self.clock_mhz = 1000.0
        self.draws: list[tuple[float, str]] = []
        self.iterations_s: list[float] = []  # how long each took

    def work(self, at_s: float, iteration: Iteration) -> None:
        self.draws.append((at_s, "work"))
        self.iterations_s.append(iteration.t_s)

    def idle(self, at_s: float) -> None:
        self.draws.append((at_s, "idle"))


class Bench:
    def __init__(
        self,
        capacity_tokens: int = 100_000,
        options: EngineOptions | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        self.cost = Cost()
        self.gpus = Gpus()
        self.batcher = Batcher(self.cost, self.gpus, capacity_tokens, 0.0, options, limits)
        self.tokens: dict[str, list[tuple[int | None, str | None]]] = {}

    def ask(
        self, name: str, prompt: int, output: int, at_s: float = 0.0, finish: str = "stop", **more: Any
    ) -> Generation:
        self.tokens[name] = []
        generation = Generation(prompt, output, finish, lambda *token: self.tokens[name].append(token), at_s, **more)
        self.batcher.submit(generation, at_s)
        return generation

    def run(self, to_s: float = 1e9) -> None:
        self.batcher.advance(to_s)
