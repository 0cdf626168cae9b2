"""throttLL'eM's admission (IV-C2): a queued request joins the batch only if, by the projection, nobody is harmed.

Three checks at the top clock, on the scoreboard as it would be with the request: the KV cache never overflows, the mean
projected time between tokens keeps its limit, and everybody's end keeps its deadline (eq. 4). A request that can not
make its own deadline but harms nobody is `lost`: it is served, and left out of later checks. Nobody overtakes.

What the paper leaves open, and what we do:
- A deadline that a running request misses also without the newcomer is not the newcomer's harm. Else one answer that
  outgrows its prediction would hold up the queue until it ends.
- Alone on the engine there is nothing to wait for: what fits in the cache is served, as lost if it keeps no limit.
- What can never fit waits as INFEASIBLE and lets others by; it is for the caller to refuse.
- An engine has only so many places in its batch: checked with the KV cache.

Predicted lengths are inflated by the predictor's error; a request that outgrows that is taken to run to its maximum
(IV-F), which the KV cache bounds as well: no engine can generate more than it can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.projection import (
    Bools,
    Floats,
    Ints,
    Outlook,
    Projection,
    Scoreboard,
    late,
    outlook,
    project,
)
from core.algorithms.clock.speed_table import EngineShape, SpeedTable
from core.types import Admit, Effects, Rationale, Reason

RequestId = str | int


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request that runs or waits. `computed_tokens` are those in the KV cache, of prompt and output."""

    request: RequestId
    prompt_tokens: int
    predicted_tokens: int  # of output, as the predictor said
    max_tokens: int  # of output, that the request may generate
    deadline_s: float | None  # of its end, on the clock of `now_s`
    computed_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Many requests, a column for each quantity: what a large batch is handed over in."""

    ids: Sequence[RequestId]
    prompt_tokens: Ints
    predicted_tokens: Ints
    max_tokens: Ints
    deadline_s: Floats  # infinite: none
    computed_tokens: Ints
    generated_tokens: Ints

    @classmethod
    def of(cls, views: Sequence[RequestView]) -> Requests:
        def column(name: str) -> Ints:
            return np.array([getattr(view, name) for view in views], dtype=np.int64)

        deadlines = [np.inf if view.deadline_s is None else view.deadline_s for view in views]
        return cls(
            tuple(view.request for view in views),
            column("prompt_tokens"),
            column("predicted_tokens"),
            column("max_tokens"),
            np.array(deadlines, dtype=np.float64),
            column("computed_tokens"),
            column("generated_tokens"),
        )


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """`predictor_error` is the share that predictions are raised by: the p95 error of the predictor in the paper."""

    tbt_s: float | None = 0.2  # the paper's limit, that of a reader: 200 ms (V-A)
    predictor_error: float = 0.3
    retry_s: float = 0.1  # until the queue is looked at again, when nothing else happens

    def __post_init__(self) -> None:
        if self.predictor_error < 0.0 or self.retry_s <= 0.0 or (self.tbt_s is not None and self.tbt_s <= 0.0):
            raise ValueError("admission needs predictor_error >= 0, retry_s > 0 and tbt_s > 0 or none")


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """The requests in the batch that were served as lost."""

    lost: frozenset[RequestId] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionObservation:
    """An engine with its batch and its queue, both in order."""

    now_s: float
    instance: str
    running: Requests
    waiting: Requests
    speed: SpeedTable


class Verdict(StrEnum):
    ADMIT = "admit"
    WAIT = "wait"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was decided about one request, and the figures it rests on. None: not looked at, as a check had failed."""

    verdict: Verdict
    reason: Reason
    failed: str | None  # kv | sequences | tbt | e2e
    peak_kv_blocks: int
    mean_tbt_s: float | None = None
    finish_s: float | None = None  # of the request itself, from now
    harmed: int = 0  # requests of the batch that would miss their deadline because of it


@dataclass(frozen=True, slots=True)
class _Round:
    """A pass over the queue."""

    admitted: tuple[tuple[RequestId, Judgement], ...]
    kept_waiting: tuple[tuple[RequestId, Judgement], ...]


def step(
    state: AdmissionState | None, obs: AdmissionObservation, config: AdmissionConfig
) -> tuple[AdmissionState, Effects]:
    """Admits from the head of the queue until the first that has to wait; an Admit for each."""
    lost = frozenset() if state is None else state.lost & frozenset(obs.running.ids)
    found = _admit(lost, obs, config)
    commands = tuple(Admit(obs.instance, name, it.verdict is Verdict.LOST) for name, it in found.admitted)
    lost |= {name for name, it in found.admitted if it.verdict is Verdict.LOST}
    waits = len(obs.waiting.ids) > len(found.admitted)
    return AdmissionState(lost), Effects(
        commands, obs.now_s + config.retry_s if waits else None, _rationale(obs, found)
    )


def board_after(
    state: AdmissionState, obs: AdmissionObservation, config: AdmissionConfig, effects: Effects
) -> Scoreboard:
    """Returns the scoreboard once the admissions of `effects` are carried out: what the clock is searched for."""
    admitted = {command.request for command in effects.commands if isinstance(command, Admit)}
    board = scoreboard(obs.running, state.lost, obs.speed.shape, config.predictor_error)
    if not admitted:
        return board
    queue = scoreboard(obs.waiting, state.lost, obs.speed.shape, config.predictor_error)
    which = [n for n, name in enumerate(obs.waiting.ids) if name in admitted]
    return board.plus(queue.rows(np.array(which, dtype=np.int64)))


def scoreboard(
    requests: Requests, lost: frozenset[RequestId], shape: EngineShape, predictor_error: float
) -> Scoreboard:
    """Returns the rows of requests, with their predictions raised by the error, and to the maximum where they have
    outgrown it.

    A request whose cache lacks more than the token it generated last, new or preempted, has those tokens to take in;
    one that has generated none, whatever it lacks, and be it a prompt of one token.
    """
    most = np.minimum(requests.max_tokens, shape.kv_tokens - requests.prompt_tokens)
    raised = np.minimum(np.ceil(requests.predicted_tokens * (1.0 + predictor_error) - 1e-9), most).astype(np.int64)
    expected = np.where(requests.generated_tokens >= raised, most, raised)
    missing = requests.prompt_tokens + requests.generated_tokens - requests.computed_tokens
    marked = np.zeros(len(requests.ids), dtype=np.bool_)
    if lost:
        marked = np.array([name in lost for name in requests.ids], dtype=np.bool_)
    return Scoreboard(
        requests.computed_tokens,
        np.where(missing > np.minimum(requests.generated_tokens, 1), missing, 0),
        np.maximum(1, expected - requests.generated_tokens),
        requests.deadline_s,
        marked,
    )


def judge(board: Scoreboard, newcomer: Scoreboard, now_s: float, speed: SpeedTable, tbt_s: float | None) -> Judgement:
    """Applies the checks of IV-C2 to one request, a scoreboard of one row, beside those that run."""
    shape = speed.shape
    virtual = board.plus(newcomer)
    projection = project(virtual, shape.block_tokens, shape.chunk_tokens)
    peak = projection.peak_kv_blocks
    if peak > shape.kv_blocks or virtual.size > shape.max_sequences:
        alone = peak if board.size == 0 else project(newcomer, shape.block_tokens, shape.chunk_tokens).peak_kv_blocks
        reason = Reason.INFEASIBLE if alone > shape.kv_blocks else Reason.WOULD_VIOLATE
        return Judgement(Verdict.WAIT, reason, "kv" if peak > shape.kv_blocks else "sequences", peak)
    look = outlook(projection, speed, speed.top)
    finish_s = float(look.finish_s[-1])
    slow = tbt_s is not None and look.mean_tbt_s > tbt_s
    missed = late(virtual, look, now_s)
    harmed = _harmed(board, missed[:-1], now_s, speed)
    figures: tuple[int, float, float, int] = (peak, look.mean_tbt_s, finish_s, harmed)
    if board.size > 0 and (slow or harmed):
        return Judgement(Verdict.WAIT, Reason.WOULD_VIOLATE, "tbt" if slow else "e2e", *figures)
    if slow or missed[-1]:
        return Judgement(Verdict.LOST, Reason.LOST, "tbt" if slow else "e2e", *figures)
    return Judgement(Verdict.ADMIT, Reason.WITHIN_LIMITS, None, *figures)


def _harmed(board: Scoreboard, missed: Bools, now_s: float, speed: SpeedTable) -> int:
    """Counts the requests that would be late and would not be without the newcomer."""
    if not missed.any():
        return 0
    before: Projection = project(board, speed.shape.block_tokens, speed.shape.chunk_tokens)
    look: Outlook = outlook(before, speed, speed.top)
    harmed: NDArray[np.bool_] = missed & ~late(board, look, now_s)
    return int(np.count_nonzero(harmed))


def _admit(lost: frozenset[RequestId], obs: AdmissionObservation, config: AdmissionConfig) -> _Round:
    board = scoreboard(obs.running, lost, obs.speed.shape, config.predictor_error)
    queue = scoreboard(obs.waiting, lost, obs.speed.shape, config.predictor_error)
    admitted: list[tuple[RequestId, Judgement]] = []
    kept_waiting: list[tuple[RequestId, Judgement]] = []
    for n, name in enumerate(obs.waiting.ids):
        newcomer = queue.rows(slice(n, n + 1))
        found = judge(board, newcomer, obs.now_s, obs.speed, config.tbt_s)
        if found.verdict is Verdict.WAIT:
            kept_waiting.append((name, found))
            if found.reason is not Reason.INFEASIBLE:
                break
            continue
        admitted.append((name, found))
        board = board.plus(replace(newcomer, lost=np.array([found.verdict is Verdict.LOST])))
    return _Round(tuple(admitted), tuple(kept_waiting))


_WHY = {
    "kv": "the KV cache would overflow",
    "sequences": "the batch is full",
    "tbt": "tokens would come too slowly",
    "e2e": "a deadline would be missed",
}


def _rationale(obs: AdmissionObservation, found: _Round) -> Rationale:
    shape = obs.speed.shape
    lost = sum(it.verdict is Verdict.LOST for _, it in found.admitted)
    parts = []
    if found.admitted:
        parts.append(
            f"{len(found.admitted)} of {len(obs.waiting.ids)} admitted" + (f", {lost} as lost" if lost else "")
        )
    parts += [f"{name} waits: {_WHY[it.failed or 'e2e']}" for name, it in found.kept_waiting[-1:]]
    inputs: dict[str, Any] = {
        "running": len(obs.running.ids),
        "waiting": len(obs.waiting.ids),
        "kv_capacity_blocks": shape.kv_blocks,
        "top_mhz": float(obs.speed.clocks_mhz[-1]),
        "judged": {str(name): _json(it) for name, it in (*found.admitted[-8:], *found.kept_waiting[-1:])},
    }
    if found.kept_waiting:
        reason = found.kept_waiting[-1][1].reason
    elif lost:
        reason = Reason.LOST
    else:
        reason = Reason.WITHIN_LIMITS if found.admitted else Reason.NO_CHANGE
    return Rationale(reason, f"{'; '.join(parts) or 'Nothing waits'}.", inputs)


def _json(it: Judgement) -> dict[str, Any]:
    return {
        "verdict": it.verdict.value,
        "failed": it.failed,
        "peak_kv_blocks": it.peak_kv_blocks,
        "mean_tbt_s": it.mean_tbt_s,
        "finish_s": it.finish_s,
        "harmed": it.harmed,
    }
