"""The clock loop of one node: runs each engine's clock rule, hears what gateways ask for, and locks the clocks.

Clocks are locked under a lease. A clock below the top is renewed each tick. Whoever stops renewing lets go: an engine
that can no longer be measured, or an agent that died, is back at its top clock when the lease is over.

Engines on slices of one GPU have its one clock: the highest that any of them is to have. Each one's rule goes on by its
own; the decision says whose clock the GPU has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.controllers.clock.muserve_clock import EARLY_S
from core.ports import AdapterError, EngineReading, FrequencyActuator
from core.types import Reason
from pools.wire import ClockDecision, ClockPolicy

from .clock_log import Decided, DecisionLog
from .clock_requests import ClockRequests, HeardClockRequest
from .clock_rules import BY_REQUEST, rule_of
from .engine_figures import Figures
from .engine_view import EngineView, Rule, Seen, Why, unknown
from .held_clock import HeldClock


@dataclass(slots=True)
class _Clock:
    """One engine's clock between looks. `state` is its rule's; `asked`: what a gateway asked for at the last look."""

    engine: EngineView
    log: DecisionLog
    policy: ClockPolicy | None = None
    rule: Rule | None = None
    fault: str = ""  # of the policy
    state: Any = None
    seen: Seen = field(default_factory=Seen)
    due_s: float = 0.0
    asked: HeardClockRequest | None = None
    mhz: float | None = None  # that it is to have; None: the top, by a lease that is left to lapse
    sharers: tuple[_Clock, ...] = field(default=(), repr=False, compare=False)  # on the same GPU, without this one
    locked_mhz: float | None = None  # that the GPUs were last set to, as far as is known
    held: HeldClock = field(default_factory=HeldClock)

    @property
    def by_request(self) -> bool:
        policy = self.policy
        if policy is None or policy.fixed_mhz is not None:
            return False
        return policy.policy in BY_REQUEST and not (policy.paused or self.fault)

    @property
    def floor_mhz(self) -> float:
        """Below it nothing is set, for want of a person's word."""
        policy, engine = self.policy, self.engine
        if policy is None or policy.advise:
            return engine.max_mhz
        return engine.min_mhz if policy.floor_mhz is None else engine.within(policy.floor_mhz)

    @property
    def highest(self) -> _Clock:
        """The one whose clock its GPU has: of equals this one."""
        return max((self, *self.sharers), key=_mhz)

    @property
    def gpu_mhz(self) -> float | None:
        """The clock to lock: the highest on its GPU; None: one there is left to lapse to the top."""
        return None if any(own.mhz is None for own in (self, *self.sharers)) else _mhz(self.highest)

    @property
    def rest_mhz(self) -> float:
        """The clock where nothing decides on it: the top, or what a person has fixed."""
        fixed_mhz = None if self.policy is None or self.fault else self.policy.fixed_mhz
        return self.engine.max_mhz if fixed_mhz is None else self.engine.within(fixed_mhz)


class ClockLoop:
    """`tick` with a whole look at the node, and `glance` in between; both of one thread.

    A clock that a gateway asks for is set within a glance, without waiting for the next tick.
    """

    def __init__(
        self,
        actuator: FrequencyActuator,
        requests: ClockRequests | None = None,
        figures: Figures | None = None,
        tick_s: float = 1.0,
    ) -> None:
        self._actuator = actuator
        self._requests = requests or ClockRequests()
        self._figures = figures or Figures()
        self._tick_s = tick_s
        self._clocks: dict[str, _Clock] = {}
        self.errors: list[str] = []  # of the last tick

    def tick(self, now_s: float, policy: ClockPolicy, engines: Sequence[EngineView]) -> list[ClockDecision]:
        """Decides where a period has passed, renews every lease, and returns the decisions to report.

        Args:
            now_s: Unix seconds.
            policy: Of engines that bring none of their own.
            engines: All that serve; the clocks of others are let go.
        """
        self.errors = []
        rows: list[ClockDecision] = []
        present = {engine.uid for engine in engines}
        for uid in [uid for uid in self._clocks if uid not in present]:
            rows += self._clocks.pop(uid).log.flush()
        for engine in engines:
            clock = self._clocks.setdefault(engine.uid, _Clock(engine, DecisionLog(engine.uid)))
            clock.engine = engine.above_floor(engine.clock or policy)
        self._share()
        for engine in engines:
            rows += self._adopt(now_s, self._clocks[engine.uid], engine.clock or policy)
        for engine in engines:
            rows += self._look(now_s, self._clocks[engine.uid])
        for clock in self._clocks.values():
            self._lock(now_s, clock, renew=True)
        faults = {clock.fault for clock in self._clocks.values() if clock.fault}
        self.errors += [f"clock policy: {fault}; clocks stay at the top" for fault in sorted(faults)]
        self._requests.forget_lapsed(now_s)
        return rows

    def _share(self) -> None:
        """Notes who is on whose GPU."""
        on: dict[str, list[_Clock]] = defaultdict(list)
        for clock in self._clocks.values():
            on[clock.engine.gpu_uuids[0]].append(clock)  # who shares a GPU has that one only
        for clock in self._clocks.values():
            clock.sharers = tuple(own for own in on[clock.engine.gpu_uuids[0]] if own is not clock)

    def glance(self, now_s: float, samples: Mapping[str, EngineReading | None]) -> list[ClockDecision]:
        """Acts between ticks on readings of engines whose rule wanted one (`wanting`), and on what gateways ask for.

        An engine that gives no sample (None) is left as it is: the next tick tells whether it can be measured.
        """
        rows: list[ClockDecision] = []
        for uid, clock in self._clocks.items():
            if (sample := samples.get(uid)) is not None:
                clock.engine = replace(clock.engine, reading=sample)
                rows += self._look(now_s, clock)
            else:
                rows += self._answer(now_s, clock, None)
            if uid in samples and sample is None:
                clock.due_s = now_s + self._tick_s
        for clock in self._clocks.values():
            self._lock(now_s, clock, renew=False)
        self._requests.forget_lapsed(now_s)
        return rows

    def begin_anew(self) -> None:
        """Forgets when rules are due, what they have seen, and what gateways ask for: the wall clock was set back."""
        for clock in self._clocks.values():
            clock.state, clock.asked, clock.due_s, clock.seen = None, None, 0.0, Seen()
        self._requests.forget()

    def mean_shares(self, now_s: float) -> dict[str, float]:
        """Returns by engine its mean clock since the last call over the one that it is locked at now."""
        return {uid: clock.held.mean_share(now_s) for uid, clock in self._clocks.items()}

    def wanting(self, now_s: float) -> list[str]:
        """Returns the engines whose rule is due for a reading.

        One that could not be measured waits for the next tick.
        """
        return [uid for uid, clock in self._clocks.items() if self._samples(clock) and now_s >= clock.due_s - EARLY_S]

    def next_s(self) -> float | None:
        """When a glance is worth its while, in Unix seconds: a sample is due, or a lease of a request ends."""
        times = [clock.due_s for clock in self._clocks.values() if self._samples(clock)]
        if (lapse_s := self._requests.next_lapse_s()) is not None:
            times.append(lapse_s)
        return min(times, default=None)

    def _samples(self, clock: _Clock) -> bool:
        return clock.rule is not None and clock.rule.period_s < self._tick_s and clock.engine.reading is not None

    def _adopt(self, now_s: float, clock: _Clock, policy: ClockPolicy) -> list[ClockDecision]:
        """Takes over changed knobs in passing. Another rule, or one that makes no sense, starts from the top clock."""
        if policy == clock.policy:
            return []
        before, clock.policy = clock.policy, policy
        clock.fault = ""
        try:
            clock.rule = rule_of(policy, self._figures)
        except ValueError as error:
            clock.rule, clock.fault = None, str(error)
        same = before is not None and _kept(before) == _kept(policy)
        if (before is None and policy.fixed_mhz is None) or (same and not clock.fault):
            return []
        clock.state, clock.asked, clock.due_s, clock.seen = None, None, 0.0, Seen()
        why = "the clock loop is paused" if policy.paused else f"the clock policy is {policy.policy}"
        from_mhz, clock.mhz = _mhz(clock), clock.rest_mhz
        if from_mhz == clock.mhz:
            return []
        fixed = policy.fixed_mhz is not None and not clock.fault
        words = f"Fixed at {clock.mhz:.0f} MHz by hand." if fixed else f"Back to the top clock: {why}."
        found = Why(Reason.POLICY.value, words, {})
        return self._log(now_s, clock, from_mhz, found)

    def _look(self, now_s: float, clock: _Clock) -> list[ClockDecision]:
        """Decides by a fresh reading, or by the lack of one."""
        if clock.rule is None:
            return self._answer(now_s, clock, None)
        if missing := unknown(clock.engine):
            return self._blind(now_s, clock, missing)
        assert clock.engine.reading is not None
        clock.seen.add(now_s, clock.engine.reading)
        if now_s < clock.due_s - EARLY_S:
            return self._answer(now_s, clock, None)
        clock.due_s = now_s + clock.rule.period_s
        clock.state, why = clock.rule.step(clock.state, now_s, clock.engine, clock.seen)
        clock.seen.worst.clear()
        return self._answer(now_s, clock, why)

    def _answer(self, now_s: float, clock: _Clock, why: Why | None) -> list[ClockDecision]:
        """What is to be locked: by the rule, which may just have decided (`why`), or by the gateways."""
        engine, from_mhz = clock.engine, _mhz(clock)
        ask = None if clock.rule is None and not clock.by_request else self._requests.highest(engine.uid, now_s)
        news, clock.asked = ask != clock.asked, ask
        if clock.rule is None:
            clock.mhz = max(engine.within(ask.mhz), clock.floor_mhz) if ask else clock.rest_mhz
            if not clock.by_request or not news:
                return []
            why = _by_request(ask) if ask else _NOBODY
            if ask and engine.within(ask.mhz) < clock.mhz:
                why = _advice(why, engine.within(ask.mhz), clock.mhz)
            return self._log(now_s, clock, from_mhz, why)
        own_mhz = clock.rule.asked_mhz(clock.state, engine)
        if own_mhz is None and ask is None:
            return []  # it is left to lapse
        own_mhz = clock.mhz = engine.max_mhz if own_mhz is None else engine.within(own_mhz)
        if ask is not None and engine.within(ask.mhz) > own_mhz:
            clock.mhz = engine.within(ask.mhz)
            clock.state = clock.rule.follow(clock.state, clock.mhz, engine)
            why = _by_request(ask, f" The rule by itself would set {own_mhz:.0f} MHz.")
        if (advised_mhz := clock.mhz) < clock.floor_mhz:
            clock.mhz = clock.floor_mhz
            clock.state = clock.rule.follow(clock.state, clock.mhz, engine)
            why = why and _advice(why, advised_mhz, clock.mhz)
        return [] if why is None else self._log(now_s, clock, from_mhz, why)

    def _blind(self, now_s: float, clock: _Clock, missing: str) -> list[ClockDecision]:
        """The engine could not be measured: the lease is not renewed, so the clock is soon at the top.

        Where a gateway asks for a clock, it is at the top now.
        """
        from_mhz, clock.state, clock.mhz = _mhz(clock), None, None
        rows = self._answer(now_s, clock, None)
        if now_s < clock.due_s - EARLY_S:
            return rows
        assert clock.rule is not None
        clock.due_s = now_s + clock.rule.period_s
        clock.seen.worst.clear()
        summary = f"No decision: {missing}. The lease is not renewed, so the clock returns to its top."
        why = Why(Reason.NO_DATA.value, summary, {"sm_clock_mhz": clock.engine.sm_clock_mhz})
        return rows + self._log(now_s, clock, from_mhz, why)

    def _lock(self, now_s: float, clock: _Clock, *, renew: bool) -> None:
        """Sets the clock that is to be locked: when it changes, and to renew its lease while it is below the top."""
        self._set(clock, renew=renew)
        clock.held.lock(now_s, clock.locked_mhz)

    def _set(self, clock: _Clock, *, renew: bool) -> None:
        engine, target_mhz = clock.engine, clock.gpu_mhz
        if target_mhz is None:
            clock.locked_mhz = None  # the lease is still running: whoever measures it again sets the clock anew
            return
        if target_mhz == clock.locked_mhz and not (renew and target_mhz < engine.max_mhz):
            return
        assert clock.policy is not None
        try:
            if target_mhz < engine.max_mhz:
                self._actuator.lock(engine.gpu_uuids, target_mhz, clock.policy.lease_s)
            else:
                self._actuator.reset(engine.gpu_uuids)
            clock.locked_mhz = target_mhz
        except AdapterError as error:
            clock.locked_mhz = None
            self.errors.append(f"clock of instance {engine.uid}: {error}")

    def _log(self, now_s: float, clock: _Clock, from_mhz: float, why: Why) -> list[ClockDecision]:
        assert clock.policy is not None
        inputs, words = {"rule": clock.policy.policy, **why.inputs}, why.summary
        if (highest := clock.highest) is not clock:
            words += f" Its GPU has {_mhz(highest):.0f} MHz, for instance {highest.engine.uid} that shares it."
            inputs |= {"gpu_mhz": _mhz(highest), "gpu_clock_of": highest.engine.uid}
        asked = "asked_mhz" in why.inputs
        return clock.log.add(Decided(now_s, why.reason, words, from_mhz, _mhz(clock), inputs, asked))


_NOBODY = Why(Reason.NO_DATA.value, "No gateway asks for a clock: it is at its top.", {})


def _kept(policy: ClockPolicy) -> tuple[str, bool, float | None]:
    """Returns the parts of a policy that may not change in passing."""
    return policy.policy, policy.paused, policy.fixed_mhz


def _by_request(ask: HeardClockRequest, more: str = "") -> Why:
    return Why(ask.reason, ask.summary + more, {"gateway": ask.gateway, "asked_mhz": ask.mhz})


def _advice(why: Why, advised_mhz: float, set_mhz: float) -> Why:
    """A decision that may not be carried out: it stays where it may stand."""
    words = f"Advice, not carried out: {advised_mhz:.0f} MHz; it stays at {set_mhz:.0f} MHz. {why.summary}"
    return Why(why.reason, words, {**why.inputs, "advised_mhz": advised_mhz})


def _mhz(clock: _Clock) -> float:
    """Returns the clock to lock, or the top, where a lapsing lease leads to."""
    return clock.engine.max_mhz if clock.mhz is None else clock.engine.within(clock.mhz)
