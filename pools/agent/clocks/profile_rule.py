"""DynamoLLM's clock rule on one engine: by its profile at the lengths that its requests have now."""

from __future__ import annotations

from dataclasses import dataclass

from core.controllers.clock import clock_profile
from core.controllers.clock.clock_profile import ProfileClockConfig, ProfileClockObservation
from core.observations import asking
from core.observations.clock_given import SeenShares, full_tokens, instance_load, taken_in
from core.policy.tuning import ProfileTuning
from pools.wire import ClockPolicy

from .engine_figures import Figures, ProfileShape
from .engine_view import EngineView, Seen, Why, observation, why_of


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """DynamoLLM's: by profile, made for the lengths that requests have now."""

    config: ProfileClockConfig
    figures: Figures
    policy: ClockPolicy

    @property
    def period_s(self) -> float:
        return self.config.period_s

    def step(
        self, state: clock_profile.ProfileClockState | None, now_s: float, engine: EngineView, seen: Seen
    ) -> tuple[clock_profile.ProfileClockState, Why | None]:
        lengths, own = seen.load.lengths, self.policy
        shape = shape_of(own, engine)
        profile = None if lengths is None else self.figures.profile(engine.kind, lengths, shape)
        before_mhz = self.asked_mhz(state, engine)
        load = instance_load(
            observation(now_s, engine, seen),
            "own",
            seen.load.rps(own.memory_s or ProfileTuning().memory_s),
            taken_in(shape.full_tokens, 1.0 if lengths is None else lengths.prompt_tokens),
            SeenShares(own.ttft_share, own.tpot_share, own.counts_ttft),
        )
        obs = ProfileClockObservation(now_s, (load,), {} if profile is None else {"own": profile})
        after, effects = asking.step(clock_profile.step, state, obs, self.config)
        more = {
            "from_mhz": engine.max_mhz if before_mhz is None else before_mhz,
            "prompt_tokens": None if lengths is None else lengths.prompt_tokens,
            "output_tokens": None if lengths is None else lengths.output_tokens,
        }
        return after, why_of(effects.rationale, {**effects.rationale.inputs[engine.uid], **more})

    def asked_mhz(self, state: clock_profile.ProfileClockState | None, engine: EngineView) -> float | None:
        return None if state is None else state.asked_mhz.get(engine.uid)

    def follow(
        self, state: clock_profile.ProfileClockState | None, mhz: float, engine: EngineView
    ) -> clock_profile.ProfileClockState:
        return clock_profile.ProfileClockState({engine.uid: mhz})


def shape_of(policy: ClockPolicy, engine: EngineView) -> ProfileShape:
    """Returns what an engine's profiles are made for."""
    full = full_tokens(engine.chunk_tokens) if policy.full_iteration else None
    return ProfileShape(policy.step_mhz, policy.clock_floor, policy.clock_floor_mhz, full)
