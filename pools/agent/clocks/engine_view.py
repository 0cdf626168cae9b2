"""An engine as clock rules see it: what stands, what it reported since the last decision, and what its rule answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from core.engine.gpu_slices import sliced
from core.observations.clock_given import least_mhz
from core.ports import EngineReading, GpuReading, InstanceStatus
from core.types import ClockObservation, Limits, Rationale
from pools.wire import ClockPolicy, DesiredInstance

from .clock_log import Inputs
from .engine_figures import EngineKind, Load


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
    shape: str = ""

    @classmethod
    def of(
        cls,
        item: DesiredInstance,
        status: InstanceStatus,
        gpus: Sequence[GpuReading],
        sm_clock_mhz: float | None,
        reading: EngineReading | None,
    ) -> EngineView:
        """Returns an instance that is to run and does, on these GPUs."""
        return cls(
            uid=status.uid,
            gpu_uuids=status.gpu_uuids,
            sm_clock_mhz=sm_clock_mhz,
            min_mhz=max(gpu.min_mhz for gpu in gpus),
            max_mhz=min(gpu.max_mhz for gpu in gpus),
            limits=Limits(item.limits.ttft_s, item.limits.tpot_s, item.limits.e2e_s),
            reading=reading,
            model=item.model,
            engine=item.engine,
            gpu_type=sliced(gpus[0].gpu_type, item.gpu_slices),
            clock=item.clock,
            chunk_tokens=0 if status.limits is None else status.limits.chunk_tokens,
            max_num_seqs=(status.limits or item.engine_limits).max_num_seqs,
            shape=item.shape,
        )

    @property
    def kind(self) -> EngineKind:
        return EngineKind(self.model, self.gpu_type, len(self.gpu_uuids), self.engine, self.shape)

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


def unknown(engine: EngineView) -> str:
    """Returns what is missing to decide on, in words; empty when nothing is."""
    if engine.reading is None:
        return "the engine cannot be measured"
    if engine.reading.running is None or engine.reading.waiting is None:
        return "the engine does not tell its running and waiting requests"
    if engine.sm_clock_mhz is None:
        return "the GPUs do not tell their clock"
    return ""


def measured(engine: EngineView) -> EngineReading:
    assert engine.reading is not None, "a rule is asked only where `unknown` has nothing to say"
    return engine.reading


def observation(now_s: float, engine: EngineView, seen: Seen) -> ClockObservation:
    reading = measured(engine)
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


def why_of(rationale: Rationale, inputs: Mapping[str, Any]) -> Why:
    return Why(rationale.reason.value, rationale.summary, inputs)
