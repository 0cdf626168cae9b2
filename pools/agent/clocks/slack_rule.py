"""mu-Serve's clock rule on one engine: by the slack of its latencies, and how much of each goes with the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from core.controllers.clock import muserve_clock
from core.controllers.clock.muserve_clock import MuServeClockConfig, MuServeClockState, SlackConfig
from core.observations import asking
from pools.wire import ClockPolicy

from .engine_figures import Figures
from .engine_view import EngineView, Seen, Why, observation, why_of


@dataclass(frozen=True, slots=True)
class SlackRule:
    """mu-Serve's: looks each sample, and acts less often."""

    config: MuServeClockConfig
    figures: Figures
    by_sensitivity: bool = True

    @property
    def period_s(self) -> float:
        return self.config.sample_s

    def step(
        self, state: MuServeClockState | None, now_s: float, engine: EngineView, seen: Seen
    ) -> tuple[MuServeClockState, Why | None]:
        obs = observation(now_s, engine, seen)
        lengths = seen.load.lengths if self.by_sensitivity else None
        sensitivity = self.figures.sensitivity(engine.kind, lengths, obs.running)
        device = muserve_clock.observe_instance(obs, sensitivity.weights)
        after, effects = asking.step(muserve_clock.step, state, device, self.config)
        if after.acted_s != now_s:
            return after, None
        inputs = dict(effects.rationale.inputs)
        partitions: Mapping[str, Mapping[str, Any]] = inputs.pop("partitions")
        inputs.update({f"{name}_{key}": value for name, own in partitions.items() for key, value in own.items()})
        inputs.update({f"{name}_weight_source": source.value for name, source in sensitivity.sources.items()})
        more = {"running": obs.running, "waiting": obs.waiting}
        return after, why_of(effects.rationale, {**inputs, **more})

    def asked_mhz(self, state: MuServeClockState | None, engine: EngineView) -> float | None:
        return None if state is None else state.target_mhz

    def follow(self, state: MuServeClockState | None, mhz: float, engine: EngineView) -> MuServeClockState:
        return replace(state or MuServeClockState(), target_mhz=mhz)


def slack_config(policy: ClockPolicy) -> MuServeClockConfig:
    """Returns the rule's configuration. Raises ValueError: its knobs make no sense."""
    own = SlackConfig(policy.decrease_mhz, policy.increase)
    if policy.reserve is not None:
        own = replace(own, reserve=policy.reserve)
    found = MuServeClockConfig(own, min(policy.sample_s, policy.period_s), policy.period_s)
    return found if policy.memory_s is None else replace(found, memory_s=policy.memory_s)
