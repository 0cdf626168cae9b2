"""The clock rules: each hands one engine's readings to a controller of the core, and keeps what that remembers.

A rule's state is the controller's own, None before its first decision. What stands between two decisions in the way of
readings is gathered in `Seen`, whatever the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from core.controllers.clock import clock_profile, frequency, muserve_clock, threshold_clock
from core.controllers.clock.clock_profile import ProfileClockConfig, ProfileClockObservation
from core.controllers.clock.frequency import ClockState, MiadConfig, PrimalDualConfig
from core.controllers.clock.muserve_clock import MuServeClockConfig, MuServeClockState, SlackConfig
from core.controllers.clock.threshold_clock import ThresholdClockConfig, ThresholdClockObservation
from core.observations.clock_given import SeenShares, curves, full_tokens, instance_load, least_mhz, taken_in
from core.policy.tuning import ProfileTuning
from core.ports import EngineReading
from core.types import ClockObservation, Effects, Limits, Rationale
from pools.wire import ClockPolicy

from .clock_log import Inputs
from .engine_figures import EngineKind, Figures, Load, ProfileShape

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EARLY_S = 0.1  # a look a little before its time counts as on time

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine as the clock loop sees it at one look. `reading` None: it could not be measured.

    `clock` is its service's rule; None: the node's. `max_num_seqs`: requests that it may run at once; None: not known.
    """

    uid: str
    gpu_uuids: tuple[str, ...]
    sm_clock_mhz: float | None
    min_mhz: float
    max_mhz: float
    limits: Limits
    reading: EngineReading | None
    model: str = ""
    engine: str = ""
    gpu_type: str = ""
    clock: ClockPolicy | None = None
    chunk_tokens: int = 0  # of one prompt in an iteration, in force; 0: all there is room for
    max_num_seqs: int | None = None

    @property
    def kind(self) -> EngineKind:
        return EngineKind(self.model, self.gpu_type, len(self.gpu_uuids), self.engine)

    def within(self, mhz: float) -> float:
        return min(max(mhz, self.min_mhz), self.max_mhz)

    def above_floor(self, policy: ClockPolicy) -> EngineView:
        """Returns it with the lowest clock that the policy lets a rule set. What a person fixes may be lower."""
        if policy.fixed_mhz is not None:
            return self
        own = self.gpu_type, self.min_mhz, self.max_mhz
        return replace(self, min_mhz=least_mhz(*own, policy.clock_floor, policy.clock_floor_mhz))


class Seen:
    """An engine's readings since its last decision: the worst latencies, in seconds, and its load."""

    def __init__(self) -> None:
        self.load = Load()
        self.worst: dict[str, float] = {}

    def add(self, now_s: float, reading: EngineReading) -> None:
        self.load.add(now_s, reading)
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            if (value := getattr(reading, name)) is not None:
                self.worst[name] = max(value, self.worst.get(name, 0.0))


@dataclass(frozen=True, slots=True)
class Why:
    """The core's reason and words for a decision, and its inputs as plain values."""

    reason: str
    summary: str
    inputs: Inputs


class Rule(Protocol):
    """A rule that decides by readings, each `period_s`."""

    @property
    def period_s(self) -> float: ...

    def step(self, state: Any, now_s: float, engine: EngineView, seen: Seen) -> tuple[Any, Why | None]:
        """Takes one look at an engine that could be measured; returns no reason where it only looked."""

    def asked_mhz(self, state: Any, engine: EngineView) -> float | None:
        """Returns the clock (MHz) that it last asked for; None: none yet."""

    def follow(self, state: Any, mhz: float, engine: EngineView) -> Any:
        """Another clock was set than it asked for: it goes on from there."""


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
        after, effects = self.controller(state, self.observe(now_s, engine, seen), self.config)
        return after, _why(effects.rationale, effects.rationale.inputs)

    def asked_mhz(self, state: ClockState | None, engine: EngineView) -> float | None:
        return None if state is None else state.target_mhz

    def follow(self, state: ClockState | None, mhz: float, engine: EngineView) -> ClockState:
        return replace(state or ClockState(), target_mhz=mhz)


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
            _observation(now_s, engine, seen),
            "own",
            seen.load.rps(own.memory_s or ProfileTuning().memory_s),
            taken_in(shape.full_tokens, 1.0 if lengths is None else lengths.prompt_tokens),
            SeenShares(own.ttft_share, own.tpot_share, own.counts_ttft),
        )
        observation = ProfileClockObservation(now_s, (load,), {} if profile is None else {"own": profile})
        after, effects = clock_profile.step(state, observation, self.config)
        more = {
            "from_mhz": engine.max_mhz if before_mhz is None else before_mhz,
            "prompt_tokens": None if lengths is None else lengths.prompt_tokens,
            "output_tokens": None if lengths is None else lengths.output_tokens,
            "source": None if profile is None else profile.source.value,
        }
        return after, _why(effects.rationale, {**effects.rationale.inputs[engine.uid], **more})

    def asked_mhz(self, state: clock_profile.ProfileClockState | None, engine: EngineView) -> float | None:
        return None if state is None else state.asked_mhz.get(engine.uid)

    def follow(
        self, state: clock_profile.ProfileClockState | None, mhz: float, engine: EngineView
    ) -> clock_profile.ProfileClockState:
        return clock_profile.ProfileClockState({engine.uid: mhz})


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
        observation = _observation(now_s, engine, seen)
        lengths = seen.load.lengths if self.by_sensitivity else None
        weights = self.figures.weights(engine.kind, lengths, observation.running)
        device = muserve_clock.observe_instance(observation, weights)
        after, effects = muserve_clock.step(state, device, self.config)
        if after.acted_s != now_s:
            return after, None
        inputs = dict(effects.rationale.inputs)
        partitions: Mapping[str, Mapping[str, Any]] = inputs.pop("partitions")
        inputs.update({f"{name}_{key}": value for name, own in partitions.items() for key, value in own.items()})
        more = {"running": observation.running, "waiting": observation.waiting}
        return after, _why(effects.rationale, {**inputs, **more})

    def asked_mhz(self, state: MuServeClockState | None, engine: EngineView) -> float | None:
        return None if state is None else state.target_mhz

    def follow(self, state: MuServeClockState | None, mhz: float, engine: EngineView) -> MuServeClockState:
        return replace(state or MuServeClockState(), target_mhz=mhz)


BY_REQUEST = ("throttle", "retail")  # the gateways decide, as only they know what each request still needs


def rule_of(policy: ClockPolicy, figures: Figures) -> Rule | None:
    """None: there is nothing to decide by readings.

    Raises:
        ValueError: An unknown rule, or knobs that make no sense.
    """
    if policy.lease_s <= 0.0:
        raise ValueError("lease_s must be above 0")
    if policy.fixed_mhz is not None or policy.paused or policy.policy == "fixed" or policy.policy in BY_REQUEST:
        return None
    if policy.policy == "miad":
        return FrequencyRule(_config(MiadConfig, policy), frequency.step, _observation)
    if policy.policy == "primal_dual":
        return FrequencyRule(_config(PrimalDualConfig, policy), frequency.step, _with_curves(figures, policy))
    if policy.policy == "profile":
        return ProfileRule(_config(ProfileClockConfig, policy), figures, policy)
    if policy.policy == "slack":
        return SlackRule(_slack(policy), figures, policy.by_sensitivity)
    if policy.policy == "threshold":
        return FrequencyRule(_config(ThresholdClockConfig, policy), threshold_clock.step, _with_use)
    raise ValueError(f"unknown policy '{policy.policy}'")


def look_period_s(policy: ClockPolicy) -> float | None:
    """Returns how often the rule wants a reading; None: not at all."""
    if policy.fixed_mhz is not None or policy.policy == "fixed" or policy.policy in BY_REQUEST:
        return None
    return min(policy.sample_s, policy.period_s) if policy.policy == "slack" else policy.period_s


def unknown(engine: EngineView) -> str:
    """Returns what is missing to decide on, in words; empty when nothing is."""
    if engine.reading is None:
        return "the engine cannot be measured"
    if engine.reading.running is None or engine.reading.waiting is None:
        return "the engine does not tell its running and waiting requests"
    if engine.sm_clock_mhz is None:
        return "the GPUs do not tell their clock"
    return ""


def _config(kind: type[T], policy: ClockPolicy) -> T:
    """Returns a controller's configuration with the knobs of the same names; those that are None keep its defaults."""
    names = {item.name for item in fields(kind)}
    given = msgspec.structs.asdict(policy)
    return kind(**{name: value for name, value in given.items() if name in names and value is not None})


def _slack(policy: ClockPolicy) -> MuServeClockConfig:
    """Actions may come a little early, as looks do: held to the full second, every other would be a sample late."""
    own = SlackConfig(policy.decrease_mhz, policy.increase)
    if policy.reserve is not None:
        own = replace(own, reserve=policy.reserve)
    sample_s = min(policy.sample_s, policy.period_s)
    act_s = max(policy.period_s - EARLY_S, sample_s / 2.0)
    found = MuServeClockConfig(own, min(sample_s, act_s), act_s)
    return found if policy.memory_s is None else replace(found, memory_s=policy.memory_s)


def _observation(now_s: float, engine: EngineView, seen: Seen) -> ClockObservation:
    reading = _measured(engine)
    assert reading.running is not None
    assert reading.waiting is not None
    assert engine.sm_clock_mhz is not None
    return ClockObservation(
        now_s=now_s,
        instance=engine.uid,
        sm_clock_mhz=engine.sm_clock_mhz,
        min_mhz=engine.min_mhz,
        max_mhz=engine.max_mhz,
        running=reading.running,
        waiting=reading.waiting,
        ttft_s=seen.worst.get("ttft_s"),
        tpot_s=seen.worst.get("tpot_s"),
        e2e_s=seen.worst.get("e2e_s"),
        limits=engine.limits,
    )


def shape_of(policy: ClockPolicy, engine: EngineView) -> ProfileShape:
    """Returns what an engine's profiles are made for."""
    full = full_tokens(engine.chunk_tokens) if policy.full_iteration else None
    return ProfileShape(policy.step_mhz, policy.clock_floor, policy.clock_floor_mhz, full)


def _with_curves(figures: Figures, policy: ClockPolicy) -> Callable[[float, EngineView, Seen], ClockObservation]:
    """Returns the observation of the primal-dual rule: with the engine's own curves, made for the lengths that requests
    have now."""

    def observe(now_s: float, engine: EngineView, seen: Seen) -> ClockObservation:
        found, lengths, profile = _observation(now_s, engine, seen), seen.load.lengths, None
        if policy.by_profile and lengths is not None:
            profile = figures.profile(engine.kind, lengths, shape_of(policy, engine))
        if profile is None or lengths is None:
            return found
        return frequency.profiled(found, curves(profile, lengths.output_tokens, float(found.running)))

    return observe


def _with_use(now_s: float, engine: EngineView, seen: Seen) -> ThresholdClockObservation:
    """Adds the share of the engine's busiest resource; None: of the KV cache or the batch it is not known."""
    reading, use = _measured(engine), None
    if reading.kv_usage is not None and reading.running is not None and engine.max_num_seqs is not None:
        use = max(reading.kv_usage, reading.running / engine.max_num_seqs)
    return ThresholdClockObservation(_observation(now_s, engine, seen), use)


def _measured(engine: EngineView) -> EngineReading:
    assert engine.reading is not None, "a rule is asked only where `unknown` has nothing to say"
    return engine.reading


def _why(rationale: Rationale, inputs: Mapping[str, Any]) -> Why:
    return Why(rationale.reason.value, rationale.summary, inputs)
