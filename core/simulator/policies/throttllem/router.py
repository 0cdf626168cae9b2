"""Admission and clock of throttLL'eM at each arrival, as the simulator's Router: observations in, placements out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from core.algorithms.clock.speed_table import SpeedTable
from core.controllers.clock import retail_clock, throttllem_clock
from core.controllers.clock.retail_clock import RetailConfig
from core.controllers.clock.throttllem_clock import ThrottleConfig, ThrottleObservation, ThrottleState
from core.controllers.request import admission
from core.controllers.request.admission import AdmissionConfig, AdmissionObservation, AdmissionState, Requests
from core.controllers.request.admission import RequestView as Asked
from core.engine.engine_model import gpu as gpu_params
from core.observations.clock_given import least_mhz
from core.observations.limits import due_within_s
from core.observations.mode_profile import Lengths
from core.predictors.engine_speed import engine_speed
from core.predictors.length_errors import LengthErrors
from core.simulator.kernel.commands import SERVING, Decision, FleetView, Placement, RequestView
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies.node_occupancy import InstanceShape, shape_of
from core.simulator.policies.throttllem.config import ThrottllemConfig
from core.types import Admit, Effects, Limits, Loop, Rationale, Reason, SetSmClock

ADMISSION = "admission"
_EngineKey = tuple[InstanceShape, int, int, int]


@dataclass(frozen=True, slots=True)
class Served:
    """A service: its number, which is its pool's, its limit between tokens, limits by cell, and mean lengths."""

    number: int
    tbt_s: float
    limits: Mapping[int, Limits]
    lengths: Lengths


@dataclass(slots=True)
class _InstanceState:
    """The state of an instance: its controllers' states, and (prompt, deadline) of each of its requests."""

    requests: dict[int, tuple[int, float]] = field(default_factory=dict)
    admission: AdmissionState | None = None
    clock: ThrottleState | None = None


@dataclass(slots=True)
class _Tally:
    """Decisions of one kind since the last report: a decision for each of 20,000 requests would be no log."""

    count: int = 0
    moves: int = 0
    low_mhz: float = np.inf
    high_mhz: float = 0.0


class ThrottleRouter:
    """Each request to the least loaded engine that may take it; else it waits, and nobody of its service overtakes."""

    def __init__(self, config: ThrottllemConfig, services: Sequence[Served]) -> None:
        self._config, self._services = config, services
        own = AdmissionConfig(retry_s=config.retry_s)
        self._errors: LengthErrors | None = LengthErrors()
        if config.predictor_error is not None:
            own, self._errors = replace(own, predictor_error=config.predictor_error), None
        self._admissions = [replace(own, tbt_s=served.tbt_s) for served in services]
        self._service_of = {cell: served.number for served in services for cell in served.limits}
        self._first_waiting: dict[int, int] = {}  # by service: the request at the head of those held back
        self._instances: defaultdict[int, _InstanceState] = defaultdict(_InstanceState)
        self._speeds: dict[_EngineKey, SpeedTable] = {}
        self._regressions: dict[tuple[_EngineKey, int], RetailConfig] = {}
        self._tallies: defaultdict[tuple[str, Reason], _Tally] = defaultdict(_Tally)

    @property
    def tick_s(self) -> float:
        return self._config.retry_s

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        head = self._first_waiting.get(request.service)
        if head not in (None, request.number):
            return None
        self._measure(view)
        found = self._offer(request, view)
        if found is None:
            self._first_waiting[request.service] = request.number
        elif head is not None:
            del self._first_waiting[request.service]
        return found

    def _measure(self, view: FleetView) -> None:
        """Raises predictions from now on by their errors on the requests that have ended, as gateways do."""
        if self._errors is None:
            return
        rows = view.ended()
        if not len(rows):
            return
        for cell, predicted, output in rows[:, (1, 5, 6)].astype(np.int64).tolist():
            self._errors.observe(self._service_of[cell], predicted, output)
        for number, config in enumerate(self._admissions):
            if (measured := self._errors.of(number)) is not None:
                self._admissions[number] = replace(config, predictor_error=measured.share)

    def _offer(self, request: RequestView, view: FleetView) -> Placement | None:
        served = self._services[request.service]
        within_s = due_within_s(served.limits[request.cell], request.predicted_tokens)
        deadline_s = np.inf if within_s is None else request.arrival_s + within_s
        serving = np.flatnonzero((view.state == SERVING) & (view.pool == served.number)).tolist()
        busy = (view.running + view.waiting) / np.array([spec.kv_capacity for spec in view.instances])
        reason: Reason | None = None
        for slot in sorted(serving, key=lambda slot: (busy[slot], slot)):
            own = self._instances[slot]
            obs = self._observe(own, view, slot, request, deadline_s)
            effects = self._admit(own, obs, request.service)
            if effects.commands:
                self._tallies[ADMISSION, effects.rationale.reason].count += 1
                own.requests[request.number] = (request.prompt_tokens, deadline_s)
                return Placement(slot, commands=self._set_clock(own, obs, effects, view, slot, served))
            reason = effects.rationale.reason if reason in (None, Reason.INFEASIBLE) else reason
        self._tallies[ADMISSION, reason or Reason.NO_DATA].count += 1
        if reason is not Reason.INFEASIBLE:
            return None
        # To wait is of no use: the largest engine is to refuse it.
        slot = max(serving, key=lambda slot: view.instances[slot].kv_capacity)
        self._instances[slot].requests[request.number] = (request.prompt_tokens, deadline_s)
        return Placement(slot)

    def _admit(self, own: _InstanceState, obs: AdmissionObservation, service: int) -> Effects:
        if not self._config.admission:
            own.admission = AdmissionState()
            return Effects(
                tuple(Admit(obs.instance, name) for name in obs.waiting.ids),
                None,
                Rationale(Reason.POLICY, "Nobody waits: admission is off."),
            )
        own.admission, effects = admission.step(own.admission, obs, self._admissions[service])
        return effects

    # -- observations ----------------------------------------------------------------------------------

    def _observe(
        self, own: _InstanceState, view: FleetView, slot: int, request: RequestView, deadline_s: float
    ) -> AdmissionObservation:
        """All that the engine has counts as running, also what it takes in with its next iteration: it was admitted."""
        spec, present = view.instances[slot], view.sequences(slot)
        numbers = present.number.tolist()
        if not numbers:
            own.clock = None  # what the place last held may have been another instance
        own.requests = {number: own.requests[number] for number in numbers}
        rows = np.array([own.requests[number] for number in numbers], dtype=np.float64).reshape(-1, 2)
        running = Requests(
            numbers,
            rows[:, 0].astype(np.int64),
            present.predicted_tokens,
            np.full(len(numbers), self._config.max_tokens, dtype=np.int64),
            rows[:, 1],
            np.maximum(0, present.kv_tokens - present.to_prefill_tokens),  # of a prompt under way all is rows
            present.generated_tokens,
        )
        newcomer = Asked(
            request.number,
            request.prompt_tokens,
            request.predicted_tokens,
            self._config.max_tokens,
            deadline_s,
            request.cached_tokens,
        )
        return AdmissionObservation(view.now_s, spec.name, running, Requests.of((newcomer,)), self._speed(spec))

    # -- clocks ----------------------------------------------------------------------------------------

    def _set_clock(
        self,
        own: _InstanceState,
        obs: AdmissionObservation,
        admitted: Effects,
        view: FleetView,
        slot: int,
        served: Served,
    ) -> tuple[SetSmClock, ...]:
        if not self._config.clock:
            return ()
        if self._config.name == "retail":
            blocks = float(view.kv_used_tokens[slot]) / obs.speed.shape.block_tokens
            seen = retail_clock.observe(
                obs.now_s,
                obs.instance,
                blocks,
                (obs.running, obs.waiting),
                self._admissions[served.number].predictor_error,
            )
            own.clock, effects = retail_clock.step(
                own.clock, seen, self._regression(view.instances[slot], obs.speed, served)
            )
        else:
            assert own.admission is not None
            board = admission.board_after(own.admission, obs, self._admissions[served.number], admitted)
            looked = ThrottleObservation(view.now_s, obs.instance, board, obs.speed)
            own.clock, effects = throttllem_clock.step(own.clock, looked, ThrottleConfig(served.tbt_s))
        commands = tuple(command for command in effects.commands if isinstance(command, SetSmClock))
        self._note_clock(effects.rationale.reason, commands, float(view.mhz[slot]))
        return commands

    def _regression(self, spec: InstanceSpec, speed: SpeedTable, served: Served) -> RetailConfig:
        key = (_engine_key(spec), served.number)
        if key not in self._regressions:
            fitted = retail_clock.fit(speed, served.lengths.prompt_tokens, served.lengths.output_tokens)
            self._regressions[key] = RetailConfig(speed.clocks_mhz, fitted, speed.basis)
        return self._regressions[key]

    def _speed(self, spec: InstanceSpec) -> SpeedTable:
        key = _engine_key(spec)
        if key not in self._speeds:
            self._speeds[key] = _speed_of(spec, self._config)
        return self._speeds[key]

    # -- decisions for the log ----------------------------------------------------------------------------------

    def _note_clock(self, reason: Reason, commands: Sequence[SetSmClock], now_mhz: float) -> None:
        tally = self._tallies[str(Loop.CLOCK), reason]
        tally.count += 1
        for command in commands:
            tally.moves += command.mhz != now_mhz
            tally.low_mhz, tally.high_mhz = min(tally.low_mhz, command.mhz), max(tally.high_mhz, command.mhz)

    def take_decisions(self, now_s: float) -> list[Decision]:
        """Returns one decision for each reason since the last call."""
        found = []
        for (loop, reason), tally in sorted(self._tallies.items()):
            text = f"{tally.count} {_WORDS.get((loop, reason), 'decisions')}"
            if tally.high_mhz:
                text += f"; {tally.moves} moves, {tally.low_mhz:.0f} to {tally.high_mhz:.0f} MHz"
            found.append(Decision(now_s, loop, str(reason), f"{text}.", tally.moves))
        self._tallies.clear()
        return found


_WORDS = {
    (ADMISSION, Reason.WITHIN_LIMITS): "admitted",
    (ADMISSION, Reason.POLICY): "admitted without being judged",
    (ADMISSION, Reason.LOST): "admitted as lost",
    (ADMISSION, Reason.WOULD_VIOLATE): "times the first in the queue had to wait",
    (ADMISSION, Reason.INFEASIBLE): "too large for any engine",
    (str(Loop.CLOCK), Reason.WITHIN_LIMITS): "times the lowest clock that keeps all limits",
    (str(Loop.CLOCK), Reason.LOST): "times the top clock, for a lost request",
    (str(Loop.CLOCK), Reason.AT_LIMIT): "times the top clock, as none keeps all limits",
}


def _engine_key(spec: InstanceSpec) -> _EngineKey:
    return (shape_of(spec), spec.kv_capacity, spec.max_sequences, spec.tokens_per_iteration)


def _speed_of(spec: InstanceSpec, config: ThrottllemConfig) -> SpeedTable:
    """Computes how fast the engine is, over all clocks that may be taken."""
    params = gpu_params(spec.gpu)
    own = spec.gpu, params.f_min, params.f_max
    return engine_speed(
        spec.model,
        spec.gpu,
        spec.tp,
        spec.engine,
        spec.kv_capacity,
        spec.max_sequences,
        spec.tokens_per_iteration,
        least_mhz(*own, config.clock_floor, config.clock_floor_mhz),
        trees=config.ips == "trees",
    )
