"""The clock loop of one node: runs the frequency controller for each engine and holds the clocks under a lease.

A clock below the top is renewed each tick. Whoever stops renewing lets go: an engine that can no longer be measured,
or an agent that died, is back at its top clock when the lease is over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from pools.wire import ClockDecision, ClockPolicy
from scheduler.core.controllers.frequency import ClockState, MiadConfig, step
from scheduler.core.ports import AdapterError, EngineReading, FrequencyActuator
from scheduler.core.types import ClockObservation, Limits, Reason

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 30.0  # equal decisions are reported as one, at least this often
_EARLY_S = 0.1  # a tick a little before the period counts as on time


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine as the clock loop sees it in one tick. `reading` None: it could not be measured."""

    uid: str
    gpu_uuids: tuple[str, ...]
    sm_clock_mhz: float | None
    min_mhz: float
    max_mhz: float
    limits: Limits
    reading: EngineReading | None


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision before run-length encoding."""

    at_s: float
    reason: Reason
    summary: str
    from_mhz: float
    to_mhz: float
    inputs: dict[str, float | int | str | None]

    @property
    def kind(self) -> tuple[str, int]:
        return self.reason.value, (self.to_mhz > self.from_mhz) - (self.to_mhz < self.from_mhz)


class DecisionLog:
    """Run-length encoding of one engine's decisions: each change at once, then the equal ones after it as one row.

    A row with `held` 0 is one decision; a row with `held` n stands for n decisions equal to the row before.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._last: _Decided | None = None
        self._from_mhz = 0.0  # where the unreported run began
        self._held = 0
        self._reported_s = 0.0

    def add(self, decided: _Decided) -> list[ClockDecision]:
        if self._last is None or decided.kind != self._last.kind:
            rows = self.flush()
            self._last, self._reported_s = decided, decided.at_s
            return [*rows, self._row(decided, decided.from_mhz, 0)]
        if not self._held:
            self._from_mhz = decided.from_mhz
        self._held += 1
        self._last = decided
        return self.flush() if decided.at_s - self._reported_s >= REPORT_EVERY_S else []

    def flush(self) -> list[ClockDecision]:
        if self._last is None or not self._held:
            return []
        row = self._row(self._last, self._from_mhz, self._held)
        self._held, self._reported_s = 0, self._last.at_s
        return [row]

    def _row(self, decided: _Decided, from_mhz: float, held: int) -> ClockDecision:
        return ClockDecision(
            at_s=decided.at_s,
            instance_uid=self._uid,
            reason=decided.reason.value,
            summary=decided.summary,
            from_mhz=from_mhz,
            to_mhz=decided.to_mhz,
            held=held,
            inputs=decided.inputs,
        )


@dataclass(slots=True)
class _Clock:
    """One engine's clock between ticks."""

    log: DecisionLog
    state: ClockState | None = None
    due_s: float = 0.0
    worst: dict[str, float] = field(default_factory=dict)  # latencies since the last decision, s
    at_top: bool = False  # told so since it was last lowered, or since it was first seen


class ClockLoop:
    def __init__(self, actuator: FrequencyActuator) -> None:
        self._actuator = actuator
        self._clocks: dict[str, _Clock] = {}
        self.errors: list[str] = []  # of the last tick

    def tick(self, now_s: float, policy: ClockPolicy, engines: Sequence[EngineView]) -> list[ClockDecision]:
        """Decides where a period has passed, renews every lease, and returns the decisions to report."""
        self.errors = []
        rows: list[ClockDecision] = []
        config = self._config(policy)
        present = {engine.uid for engine in engines}
        for uid in [uid for uid in self._clocks if uid not in present]:
            rows += self._clocks.pop(uid).log.flush()
        for engine in engines:
            clock = self._clocks.setdefault(engine.uid, _Clock(DecisionLog(engine.uid)))
            if config is None:
                rows += self._free(now_s, clock, engine, policy)
            elif unknown := _unknown(engine):
                rows += self._blind(now_s, clock, engine, config, unknown)
            else:
                rows += self._control(now_s, clock, engine, config)
                self._hold(clock, engine, policy.lease_s)
        return rows

    def _config(self, policy: ClockPolicy) -> MiadConfig | None:
        """None: clocks stay at the top, by policy or because the policy makes no sense (an error then)."""
        if policy.paused or policy.policy == "fixed":
            return None
        try:
            if policy.policy != "miad":
                raise ValueError(f"unknown policy '{policy.policy}'")
            if policy.lease_s <= 0.0:
                raise ValueError("lease_s must be above 0")
            return MiadConfig(increase=policy.increase, decrease_mhz=policy.decrease_mhz, period_s=policy.period_s)
        except ValueError as error:
            self.errors.append(f"clock policy: {error}; clocks stay at the top")
            return None

    def _control(self, now_s: float, clock: _Clock, engine: EngineView, config: MiadConfig) -> list[ClockDecision]:
        reading = engine.reading
        assert reading is not None
        assert reading.running is not None
        assert reading.waiting is not None
        assert engine.sm_clock_mhz is not None
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            if (value := getattr(reading, name)) is not None:
                clock.worst[name] = max(value, clock.worst.get(name, 0.0))
        if now_s < clock.due_s - _EARLY_S:
            return []
        clock.due_s = now_s + config.period_s
        observation = ClockObservation(
            now_s=now_s,
            instance=engine.uid,
            sm_clock_mhz=engine.sm_clock_mhz,
            min_mhz=engine.min_mhz,
            max_mhz=engine.max_mhz,
            running=reading.running,
            waiting=reading.waiting,
            ttft_s=clock.worst.get("ttft_s"),
            tpot_s=clock.worst.get("tpot_s"),
            e2e_s=clock.worst.get("e2e_s"),
            limits=engine.limits,
        )
        before_mhz = _asked(clock, engine)
        clock.state, effects = step(clock.state, observation, config)
        clock.worst.clear()
        why = effects.rationale
        return clock.log.add(
            _Decided(now_s, why.reason, why.summary, before_mhz, _asked(clock, engine), dict(why.inputs))
        )

    def _hold(self, clock: _Clock, engine: EngineView, lease_s: float) -> None:
        """Sets the clock that is asked for: again each tick while it is below the top, once when it is at the top."""
        target_mhz = _asked(clock, engine)
        try:
            if target_mhz < engine.max_mhz:
                clock.at_top = False
                self._actuator.lock(engine.gpu_uuids, target_mhz, lease_s)
            elif not clock.at_top:
                self._actuator.reset(engine.gpu_uuids)
                clock.at_top = True
        except AdapterError as error:
            self.errors.append(f"clock of instance {engine.uid}: {error}")

    def _free(self, now_s: float, clock: _Clock, engine: EngineView, policy: ClockPolicy) -> list[ClockDecision]:
        """Back to the top clock, and out of the loop's hands."""
        before_mhz = _asked(clock, engine)
        clock.state = None
        clock.worst.clear()
        self._hold(clock, engine, policy.lease_s)
        if before_mhz == engine.max_mhz:
            return []
        why = "the clock loop is paused" if policy.paused else f"the clock policy is {policy.policy}"
        summary = f"Back to the top clock: {why}."
        decided = _Decided(now_s, Reason.POLICY, summary, before_mhz, engine.max_mhz, {"policy": policy.policy})
        return clock.log.add(decided)

    def _blind(
        self, now_s: float, clock: _Clock, engine: EngineView, config: MiadConfig, unknown: str
    ) -> list[ClockDecision]:
        """The engine could not be measured: the lease is not renewed, so the clock is soon at the top."""
        if now_s < clock.due_s - _EARLY_S:
            return []
        clock.due_s = now_s + config.period_s
        summary = f"No decision: {unknown}. The lease is not renewed, so the clock returns to its top."
        inputs: dict[str, float | int | str | None] = {"sm_clock_mhz": engine.sm_clock_mhz}
        decided = _Decided(now_s, Reason.NO_DATA, summary, _asked(clock, engine), engine.max_mhz, inputs)
        clock.state = None
        clock.at_top = False  # the lease is still running: whoever measures it again sets the clock anew
        clock.worst.clear()
        return clock.log.add(decided)


def _asked(clock: _Clock, engine: EngineView) -> float:
    """The clock that was last asked for, within the GPU's range."""
    if clock.state is None or clock.state.target_mhz is None:
        return engine.max_mhz
    return min(max(clock.state.target_mhz, engine.min_mhz), engine.max_mhz)


def _unknown(engine: EngineView) -> str:
    """What is missing to decide on, in words; empty when nothing is."""
    if engine.reading is None:
        return "the engine cannot be measured"
    if engine.reading.running is None or engine.reading.waiting is None:
        return "the engine does not tell its running and waiting requests"
    if engine.sm_clock_mhz is None:
        return "the GPUs do not tell their clock"
    return ""
