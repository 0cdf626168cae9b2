"""Knows what clock rules need of an engine beyond its latencies: its load, and how it reacts to the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.engine.engine_model import UnknownConfiguration
from core.engine.load_profile import LoadProfile
from core.engine.measured import engine_costs
from core.engine.parameter_caches import cached
from core.observations.clock_given import ProfileClocks, RecentRate, Sensitivity, latency_sensitivity
from core.observations.load_profiles import full_load_profile
from core.observations.mode_profile import Lengths, rounded
from core.ports import EngineReading
from core.types import Mode

LENGTHS_MEMORY_S = 300.0


@dataclass(frozen=True, slots=True)
class _Counted:
    """An engine's counters at one reading. `begun`: requests that have ended, run or wait."""

    at_s: float
    begun: float
    ended: float
    prompt_tokens: float
    output_tokens: float

    @classmethod
    def of(cls, now_s: float, reading: EngineReading) -> _Counted | None:
        ended, prompt = reading.requests_total, reading.request_prompt_tokens_total
        output, running, waiting = reading.request_output_tokens_total, reading.running, reading.waiting
        if ended is None or prompt is None or output is None or running is None or waiting is None:
            return None
        return cls(now_s, ended + running + waiting, ended, prompt, output)


class Load:
    """The rate and lengths of requests that come to an engine, from its counters. Those cut off do not count."""

    def __init__(self) -> None:
        self._last: _Counted | None = None
        self._came = self._passed_s = 0.0  # since `rps` was last asked for
        self._rate = RecentRate()
        self._requests = self._prompt_tokens = self._output_tokens = 0.0  # ended, the older the less

    def add(self, now_s: float, reading: EngineReading) -> None:
        last, self._last = self._last, _Counted.of(now_s, reading)
        now = self._last
        if last is None or now is None or now.ended < last.ended:  # fewer: the engine was started anew
            return
        passed_s = max(0.0, now.at_s - last.at_s)
        self._passed_s += passed_s
        self._came += max(0.0, now.begun - last.begun)
        kept = math.exp(-passed_s / LENGTHS_MEMORY_S)
        self._requests = kept * self._requests + now.ended - last.ended
        self._prompt_tokens = kept * self._prompt_tokens + now.prompt_tokens - last.prompt_tokens
        self._output_tokens = kept * self._output_tokens + now.output_tokens - last.output_tokens

    def rps(self, memory_s: float) -> float | None:
        """Returns the rate as `RecentRate` has it; None: not known."""
        if self._passed_s <= 0.0:
            return None
        came, passed_s = self._came, self._passed_s
        self._came = self._passed_s = 0.0
        return self._rate.next_rps(came, passed_s, memory_s)

    @property
    def lengths(self) -> Lengths | None:
        """None: no request has ended yet."""
        if self._prompt_tokens <= 0.0 or self._requests <= 0.0:
            return None
        return Lengths(self._prompt_tokens / self._requests, self._output_tokens / self._requests).rounded


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The configuration of an engine that profiles are made for.

    `shape`: the key by which the engine model knows the model; empty: by its name.
    """

    model: str
    gpu: str
    tp: int
    engine: str
    shape: str = ""

    @property
    def engine_model_name(self) -> str:
        return self.shape or self.model


@dataclass(frozen=True, slots=True)
class ProfileShape(ProfileClocks):
    """The clocks that are profiled, and what TTFT is of: an iteration with `full_tokens` of prompts; None: one with the
    request's own prompt."""

    full_tokens: int | None = None


class Figures:
    """Profiles and sensitivities, by the most trusted source that there is."""

    def profile(self, kind: EngineKind, lengths: Lengths, shape: ProfileShape) -> LoadProfile | None:
        """Returns latencies and watts over the load at each clock; None: nobody knows such an engine."""
        mode = Mode(kind.gpu, kind.tp)
        return full_load_profile(kind.engine_model_name, kind.engine, mode, lengths, shape.full_tokens, shape)

    def sensitivity(self, kind: EngineKind, lengths: Lengths | None, running: int) -> Sensitivity:
        """Returns the share of each latency that goes with the clock (mu-Serve 3.1): a profile's where there is one."""
        return Sensitivity() if lengths is None else _sensitivity(kind, lengths, rounded(running))


@cached(maxsize=1024)
def _sensitivity(kind: EngineKind, lengths: Lengths, batch: float) -> Sensitivity:
    try:
        costs = engine_costs(kind.engine_model_name, kind.gpu, kind.tp, kind.engine)
    except UnknownConfiguration:
        return Sensitivity()
    return latency_sensitivity(costs, lengths, batch)
