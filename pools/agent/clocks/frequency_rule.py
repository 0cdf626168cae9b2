"""Rules that remember a clock alone: FREESH's MIAD and primal-dual, and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from core.controllers.clock import frequency
from core.controllers.clock.frequency import ClockState
from core.controllers.clock.threshold_clock import ThresholdClockObservation
from core.observations import asking
from core.observations.clock_given import curves, with_use
from core.types import ClockObservation, Effects
from pools.wire import ClockPolicy

from .engine_figures import Figures
from .engine_view import EngineView, Seen, Why, measured, observation, why_of
from .profile_rule import shape_of


class Periodic(Protocol):
    """A controller's configuration, with the time between two steps."""

    @property
    def period_s(self) -> float: ...


Obs = TypeVar("Obs")
C = TypeVar("C", bound=Periodic)


@dataclass(frozen=True, slots=True)
class FrequencyRule(Generic[Obs, C]):
    """A rule that remembers a ClockState: FREESH's MIAD and primal-dual, and thresholds. `observe` makes what its
    controller is given."""

    config: C
    controller: Callable[[ClockState | None, Obs, C], tuple[ClockState, Effects]]
    observe: Callable[[float, EngineView, Seen], Obs]

    @property
    def period_s(self) -> float:
        return self.config.period_s

    def step(
        self, state: ClockState | None, now_s: float, engine: EngineView, seen: Seen
    ) -> tuple[ClockState, Why | None]:
        after, effects = asking.step(self.controller, state, self.observe(now_s, engine, seen), self.config)
        return after, why_of(effects.rationale, effects.rationale.inputs)

    def asked_mhz(self, state: ClockState | None, engine: EngineView) -> float | None:
        return None if state is None else state.target_mhz

    def follow(self, state: ClockState | None, mhz: float, engine: EngineView) -> ClockState:
        return replace(state or ClockState(), target_mhz=mhz)


def with_curves(figures: Figures, policy: ClockPolicy) -> Callable[[float, EngineView, Seen], ClockObservation]:
    """Returns the observation of the primal-dual rule: with the engine's own curves, made for the lengths that requests
    have now."""

    def observe(now_s: float, engine: EngineView, seen: Seen) -> ClockObservation:
        found, lengths, profile = observation(now_s, engine, seen), seen.load.lengths, None
        if policy.by_profile and lengths is not None:
            profile = figures.profile(engine.kind, lengths, shape_of(policy, engine))
        if profile is None or lengths is None:
            return found
        return frequency.profiled(found, curves(profile, lengths.output_tokens, float(found.running)))

    return observe


def threshold_seen(now_s: float, engine: EngineView, seen: Seen) -> ThresholdClockObservation:
    """Returns the observation of the rule by thresholds."""
    return with_use(observation(now_s, engine, seen), measured(engine).kv_usage, engine.max_num_seqs)
