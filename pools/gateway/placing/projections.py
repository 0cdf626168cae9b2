"""One instance as throttLL'eM judges it.

Importing this loads compiled code for a second or more: see `projected_admission`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from core.algorithms.clock.projection import Floats
from core.controllers.clock import retail_clock, throttllem_clock
from core.controllers.clock.retail_clock import RetailConfig
from core.controllers.clock.throttllem_clock import ThrottleConfig, ThrottleObservation, ThrottleState
from core.controllers.request import admission
from core.controllers.request.admission import (
    AdmissionConfig,
    AdmissionObservation,
    AdmissionState,
    RequestId,
    Requests,
)
from core.engine.engine_model import engine_model
from core.engine.engine_model import gpu as gpu_params
from core.observations.clock_given import least_mhz
from core.observations.request.request_configs import tbt_limit_s
from core.predictors.engine_speed import engine_speed
from core.types import Admit, Effects, Limits, Rationale, Reason
from pools.wire import EngineBoard

from ..fleet.instance import Instance
from ..fleet.view import Service
from ..requests.call import Call
from .own_boards import board_of, deadline_s, most_tokens
from .shared_boards import BoardElsewhere, sent_since

# Mean prompt and answer of Azure's conversation trace of 2023 (AzurePublicDataset, CC-BY): where no load is declared.
_TYPICAL_TOKENS = (1155, 211)


class InstanceProjection:
    """Admission and clock of one instance; every request that gateways have in flight there is on its scoreboard."""

    def __init__(
        self,
        model: str,
        gpu: str,
        tp: int,
        engine: str,
        ips: str = "engine",
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        floor: str = "gpu",
        floor_mhz: float | None = None,
    ) -> None:
        """Makes the projection of an idle instance.

        Args:
            ips: Of `ThrottleTuning`.
            max_num_seqs, max_num_batched_tokens: The engine's limits.
            floor, floor_mhz: The knobs clock_floor and clock_floor_mhz.

        Raises:
            UnknownConfiguration: The engine model does not know it.
        """
        self.configuration = (model, gpu, tp, engine, ips, max_num_seqs, max_num_batched_tokens, floor, floor_mhz)
        kv_tokens = int(engine_model(model, gpu, tp, engine).kv_capacity_tokens)
        params, bounds = gpu_params(gpu), (max_num_seqs, max_num_batched_tokens)
        least = least_mhz(gpu, params.f_min, params.f_max, floor, floor_mhz)
        self._speed = engine_speed(model, gpu, tp, engine, kv_tokens, *bounds, least, trees=ips == "trees")
        self._refuses = False  # the request judged last could never fit: the engine is to refuse it
        self._regressions: dict[tuple[int, int], RetailConfig] = {}  # by typical lengths; of all alike instances

    def fresh(self) -> InstanceProjection:
        """Returns a projection for another instance of the same configuration."""
        other = object.__new__(InstanceProjection)
        other.configuration, other._speed, other._regressions = self.configuration, self._speed, self._regressions
        other._refuses = False
        return other

    def alike(self, other: InstanceProjection) -> bool:
        """Says whether both judge by the same figures."""
        return self._speed is other._speed

    def warm_up(self) -> None:
        """Compiles, or loads from the cache, what judging needs."""
        one = Requests.of((admission.RequestView("warm-up", 100, 10, 100, None),))
        obs = AdmissionObservation(0.0, "warm-up", one, one, self._speed)
        state, effects = admission.step(None, obs, AdmissionConfig())
        board = admission.board_after(state, obs, AdmissionConfig(), effects)
        throttllem_clock.step(None, ThrottleObservation(0.0, "warm-up", board, self._speed), ThrottleConfig())

    def fit(self, service: Service) -> None:
        """Makes ReTail's regression for the lengths that are typical of the service. Takes 10 to 20 ms."""
        lengths = _typical_tokens(service)
        if lengths not in self._regressions:
            speed = self._speed
            self._regressions[lengths] = RetailConfig(speed.clocks_mhz, retail_clock.fit(speed, *lengths), speed.basis)

    def fitted(self, service: Service) -> bool:
        return _typical_tokens(service) in self._regressions

    def admits(
        self, service: Service, instance: Instance, call: Call, error: float, others: Sequence[BoardElsewhere] = ()
    ) -> bool | None:
        """Says whether the call may join the batch now (IV-C2); None: it never could.

        Marks it when it is lost already. What other gateways have sent since they published it is not known: each is
        taken to have sent the same as this one, or all would fill an engine at once.

        Args:
            error: Share that predicted lengths are raised by.
            others: What other gateways have there.
        """
        newcomer = admission.RequestView(
            call.request_id,
            call.prompt_tokens or 1,
            call.predicted_tokens or 1,
            most_tokens(service, call),
            deadline_s(service, call),
        )
        own = board_of(service, instance)
        boards = _with(own, others) + [(sent_since(own, other.published_s), 0.0) for other in others]
        batch, waiting = _batch(boards), Requests.of((newcomer,))
        obs = AdmissionObservation(time.monotonic(), instance.uid, batch.running, waiting, self._speed)
        config = _config(service, error, [*_limits(boards), call.limits(service)])
        _, effects = admission.step(AdmissionState(batch.lost), obs, config)
        admitted = [command for command in effects.commands if isinstance(command, Admit)]
        self._refuses = effects.rationale.reason is Reason.INFEASIBLE
        if admitted:
            call.lost = admitted[0].lost
            return True
        return None if self._refuses else False

    def lowest_clock(
        self,
        service: Service,
        instance: Instance,
        asked_mhz: float | None,
        error: float,
        others: Sequence[BoardElsewhere] = (),
    ) -> tuple[float, Rationale] | None:
        """Returns the clock for the batch, with those just admitted (IV-E); None: what came last is to be refused.

        Args:
            asked_mhz: What stands asked for.
            error: Share that predicted lengths are raised by.
            others: What other gateways have there.
        """
        if self._refuses:
            return None
        boards = _with(board_of(service, instance), others)
        config, batch = _config(service, error, _limits(boards)), _batch(boards)
        board = admission.scoreboard(batch.running, batch.lost, self._speed.shape, config.predictor_error)
        looked = ThrottleObservation(time.monotonic(), instance.uid, board, self._speed)
        state, effects = throttllem_clock.step(ThrottleState(asked_mhz), looked, ThrottleConfig(config.tbt_s))
        return _asked(state, effects)

    def retail_clock(
        self,
        service: Service,
        instance: Instance,
        asked_mhz: float | None,
        error: float,
        others: Sequence[BoardElsewhere] = (),
    ) -> tuple[float, Rationale]:
        """Returns ReTail's clock for all that runs, what was just placed included.

        Only once it is `fitted` for the service. The arguments are as of `lowest_clock`.
        """
        running = _batch(_with(board_of(service, instance), others)).running
        shape, reported = self._speed.shape, instance.state.kv_usage or 0.0
        blocks = max(float(running.computed_tokens.sum()) / shape.block_tokens, reported * shape.kv_blocks)
        seen = retail_clock.observe(time.monotonic(), instance.uid, blocks, (running,), error)
        config = self._regressions[_typical_tokens(service)]
        return _asked(*retail_clock.step(ThrottleState(asked_mhz), seen, config))


def _asked(state: ThrottleState, effects: Effects) -> tuple[float, Rationale]:
    assert state.target_mhz is not None  # a step always chooses
    return state.target_mhz, effects.rationale


def _typical_tokens(service: Service) -> tuple[int, int]:
    prompt, output = service.expected_lengths
    return prompt or _TYPICAL_TOKENS[0], output or _TYPICAL_TOKENS[1]


def _config(service: Service, error: float, limits: Iterable[Limits]) -> AdmissionConfig:
    """One batch has one pace: it keeps the strictest TPOT limit of the requests in it."""
    tuning = service.policy.tuning
    tbt_s = tbt_limit_s(tuning.throttle_tbt_s, limits)
    return AdmissionConfig(tbt_s, error, tuning.throttle_retry_s)


def _limits(boards: Sequence[tuple[EngineBoard, float]]) -> list[Limits]:
    return [Limits(tpot_s=board.tpot_s) for board, _ in boards]


def _with(own: EngineBoard, others: Sequence[BoardElsewhere]) -> list[tuple[EngineBoard, float]]:
    return [(own, 0.0), *((other.board, other.offset_s) for other in others)]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """The requests that an engine has; `lost` are the numbers of those that were admitted as lost."""

    running: Requests
    lost: frozenset[RequestId]


def _batch(boards: Sequence[tuple[EngineBoard, float]]) -> _Batch:
    """Returns all rows of boards as one batch, in the order in which they were sent.

    Args:
        boards: Each with what its times are behind this host's monotonic clock.
    """

    def column(name: str, kind: DTypeLike) -> NDArray[Any]:
        return np.array([value for board, _ in boards for value in getattr(board, name)], dtype=kind)

    def times(name: str) -> Floats:
        return np.array(
            [at_s + offset_s for board, offset_s in boards for at_s in getattr(board, name)], dtype=np.float64
        )

    order = np.argsort(times("sent_s"), kind="stable")
    prompts, generated = column("prompt_tokens", np.int64), column("generated_tokens", np.int64)
    # The token generated last is taken in with the next iteration.
    computed = np.where(column("begun", np.bool_), prompts + np.maximum(0, generated - 1), 0).astype(np.int64)
    lost = column("lost", np.bool_)[order]
    running = Requests(
        range(len(order)),
        prompts[order],
        column("predicted_tokens", np.int64)[order],
        column("max_tokens", np.int64)[order],
        times("deadline_s")[order],
        computed[order],
        generated[order],
    )
    return _Batch(running, frozenset(np.flatnonzero(lost).tolist()))
