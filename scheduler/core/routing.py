"""Routes a request to the instance where serving it costs the least energy and still keeps its latency limits.

Predictions come from the engine model at each instance's clock and load. They are tabled by configuration, clock and
batch, so that choosing among 64 instances takes a fraction of a millisecond. Contexts are taken as typical
(`TYPICAL_CONTEXT_TOKENS`): the tables would otherwise not be finite. Energy is at the GPUs, in joules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from scheduler.core.engine_model import MAX_SEQUENCES, EngineModel, UnknownConfiguration, engine_model
from scheduler.core.types import Limits

# Mean prompt (1155) plus half of the mean output (211) of the Azure conversation trace of 2023 (AzurePublicDataset,
# CC-BY).
TYPICAL_CONTEXT_TOKENS = 1260.0
WINDOW_FACTOR = 1.4  # W = 1.4 x Lat (FREESH C.2)
CLOCK_STEP_MHZ = 15.0  # tables are kept per step of this width: the granularity of NVIDIA's locked clocks


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready instance as the router sees it now. `kv_usage` is a share, None when the engine does not tell."""

    uid: str
    pool_id: int
    site: str
    request_class: str
    class_rank: int
    model: str
    engine: str
    gpu: str
    tp: int
    mhz: float
    running: int
    waiting: int
    queued_prompt_tokens: int
    kv_usage: float | None
    pue: float
    intensity_g_per_kwh: float | None


@dataclass(frozen=True, slots=True)
class RouteRequest:
    prompt_tokens: int
    predicted_output_tokens: int
    class_rank: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the request goes and what to expect there.

    The figures are None when the engine model does not know the instance's configuration. `window_s` is the fairness
    window W = 1.4 x Lat with Lat = predicted tokens x TPOT + TTFT (FREESH C.2).
    """

    uid: str
    predicted_energy_j: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    window_s: float | None
    meets_slo: bool
    reason: str


class _Prediction(NamedTuple):
    """A tuple, since one is made for every candidate of every request."""

    energy_j: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    meets_slo: bool
    candidate: Candidate


def choose(
    candidates: Sequence[Candidate], request: RouteRequest, rng_tiebreak: Callable[[], float] | None = None
) -> Choice | None:
    """The instance for `request`; None only when there are no candidates.

    Instances of the request's class come first, then those of the next larger classes, then of the smaller ones. In the
    first class where any instance keeps the limits, the one of least energy is taken. When none does anywhere, the one
    with the least end-to-end time is, and the reason says so. Equals: the faster, the less
    loaded, then `rng_tiebreak`, then uid.
    """
    by_rank: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_rank.setdefault(candidate.class_rank, []).append(candidate)
    prompt = _round_up(request.prompt_tokens)
    slow: list[_Prediction] = []
    for rank in sorted(by_rank, key=lambda rank: _distance(rank, request.class_rank)):
        keeping: list[_Prediction] = []
        for candidate in by_rank[rank]:
            prediction = _predict(candidate, request, prompt)
            if prediction is not None:
                (keeping if prediction.meets_slo else slow).append(prediction)
        if keeping:
            best = _least(keeping, [p.energy_j for p in keeping], rng_tiebreak)
            if rank == request.class_rank:
                return _choice(best, "least energy within the limits")
            return _choice(best, f"spilled to {best.candidate.request_class}: its own class cannot keep the limits")
    if slow:
        return _choice(_least(slow, [p.e2e_s for p in slow], rng_tiebreak), "no instance keeps the limits: fastest")
    return _least_loaded(candidates)


def _least(
    predictions: list[_Prediction], values: list[float], rng_tiebreak: Callable[[], float] | None
) -> _Prediction:
    least = min(values)
    equals = [p for p, value in zip(predictions, values, strict=True) if value == least]
    if len(equals) == 1:
        return equals[0]

    def order(p: _Prediction) -> tuple[float, int, float, str]:
        draw = rng_tiebreak() if rng_tiebreak is not None else 0.0
        return p.e2e_s, p.candidate.running + p.candidate.waiting, draw, p.candidate.uid

    return min(equals, key=order)


def _distance(rank: int, wanted: int) -> tuple[int, int]:
    """Own class, then larger ones upwards, then smaller ones downwards."""
    return (0, rank - wanted) if rank >= wanted else (1, wanted - rank)


def _choice(p: _Prediction, reason: str) -> Choice:
    window_s = WINDOW_FACTOR * p.e2e_s
    return Choice(p.candidate.uid, p.energy_j, p.ttft_s, p.tpot_s, p.e2e_s, window_s, p.meets_slo, reason)


def _least_loaded(candidates: Sequence[Candidate]) -> Choice | None:
    if not candidates:
        return None
    uid = min(candidates, key=lambda c: (c.running + c.waiting, c.uid)).uid
    reason = "no instance has a configuration that the engine model knows: least loaded"
    return Choice(uid, None, None, None, None, None, False, reason)


def _predict(candidate: Candidate, request: RouteRequest, prompt: int) -> _Prediction | None:
    """TTFT, TPOT, E2E and extra energy of one more sequence; None: configuration unknown to the engine model.

    `prompt` is the prompt's length as `_round_up` gives it.
    """
    table = _table(
        candidate.model, candidate.gpu, candidate.tp, candidate.engine, round(candidate.mhz / CLOCK_STEP_MHZ)
    )
    if table is None:
        return None
    others = min(candidate.running + candidate.waiting, MAX_SEQUENCES - 1)
    output = request.predicted_output_tokens
    tpot_s, iteration_j = table.decode(others + 1)
    prefill_s, prefill_j = table.prefill(prompt, others)
    ttft_s = prefill_s + candidate.queued_prompt_tokens * table.prefill_s_per_token
    if candidate.kv_usage is not None:
        ttft_s += _kv_wait_s(candidate, request, table.kv_capacity_tokens, tpot_s)
    e2e_s = ttft_s + output * tpot_s
    # Without the request an idle instance would draw idle power for as long; a busy one would iterate without it.
    before_j = table.decode(others)[1] if others else table.idle_w * tpot_s
    energy_j = (prefill_j + output * (iteration_j - before_j)) * candidate.pue
    limits = request.limits
    meets_slo = (
        (limits.ttft_s is None or ttft_s <= limits.ttft_s)
        and (limits.tpot_s is None or tpot_s <= limits.tpot_s)
        and (limits.e2e_s is None or e2e_s <= limits.e2e_s)
    )
    return _Prediction(energy_j, ttft_s, tpot_s, e2e_s, meets_slo, candidate)


def _kv_wait_s(candidate: Candidate, request: RouteRequest, capacity_tokens: float, tpot_s: float) -> float:
    """How long until running sequences have freed the KV cache that the request needs (0: it fits now).

    Each of the running sequences is taken to be half-way through an output of the same length as the request's.
    """
    used = (candidate.kv_usage or 0.0) * capacity_tokens
    missing = used + candidate.queued_prompt_tokens + request.prompt_tokens - capacity_tokens
    if missing <= 0.0:
        return 0.0
    remaining_s = max(1, request.predicted_output_tokens) / 2.0 * tpot_s
    return missing / max(used, 1.0) * 2.0 * remaining_s


class _Table:
    """Predictions of one configuration at one clock, filled as they are asked for."""

    __slots__ = ("_decode", "_mhz", "_model", "_prefill", "idle_w", "kv_capacity_tokens", "prefill_s_per_token")

    def __init__(self, model: EngineModel, mhz: float) -> None:
        self._model = model
        self._mhz = mhz
        self._decode: list[tuple[float, float] | None] = [None] * (MAX_SEQUENCES + 1)
        self._prefill: dict[tuple[int, int], tuple[float, float]] = {}
        self.idle_w = model.tp * model.idle_gpu_watts(mhz)
        self.kv_capacity_tokens = model.kv_capacity_tokens
        self.prefill_s_per_token = model.iteration(mhz, ((2048, 0),)).t_s / 2048.0

    def decode(self, batch: int) -> tuple[float, float]:
        """Time and energy of an iteration that decodes `batch` sequences (1 or more)."""
        known = self._decode[batch]
        if known is None:
            result = self._model.iteration(self._mhz, (), batch, batch * TYPICAL_CONTEXT_TOKENS)
            known = self._decode[batch] = (result.t_s, result.energy_j)
        return known

    def prefill(self, prompt_tokens: int, others: int) -> tuple[float, float]:
        """Time of the iteration with the prompt in it, and what it costs more than `others` sequences alone.

        Tabled by prompt (as `_round_up` gives it) and batch (down to a power of two).
        """
        key = (prompt_tokens, others.bit_length())
        known = self._prefill.get(key)
        if known is None:
            batch = min(1 << others.bit_length() >> 1, MAX_SEQUENCES)
            result = self._model.iteration(self._mhz, ((prompt_tokens, 0),), batch, batch * TYPICAL_CONTEXT_TOKENS)
            before_j = self.decode(batch)[1] if batch else self.idle_w * result.t_s
            known = self._prefill[key] = (result.t_s, result.energy_j - before_j)
        return known


def _round_up(tokens: int) -> int:
    """The next length with at most five significant bits: at most 1/16 longer, and few enough to table."""
    shift = max(0, tokens.bit_length() - 5)
    return max(1, -(-tokens >> shift) << shift)


@lru_cache(maxsize=4096)
def _table(model: str, gpu: str, tp: int, engine: str, clock_step: int) -> _Table | None:
    try:
        return _Table(engine_model(model, gpu, tp, engine), clock_step * CLOCK_STEP_MHZ)
    except UnknownConfiguration:
        return None
