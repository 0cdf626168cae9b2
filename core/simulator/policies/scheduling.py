"""Tells orders how long tokens take at an instance, and how fast waiting makes a request shorter."""

from __future__ import annotations

from collections.abc import Iterable

from core.algorithms.queue.ssjf import measured_aging
from core.engine.engine_model import engine_model
from core.observations.demand.class_view import TYPICAL_TOKENS
from core.simulator.kernel.simulated import InstanceSpec
from core.types import Limits

_BATCH = 16  # sequences: in between a lone request and a full batch


def token_times_s(spec: InstanceSpec) -> tuple[float, float]:
    """Returns the times of an output token and of a token to prefill, in s, at the instance's clock."""
    if spec.costs is not None:
        return spec.costs.base_s + _BATCH * spec.costs.decode_s, spec.costs.prefill_token_s
    engine = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
    prompt = spec.tokens_per_iteration
    token_s = engine.iteration(spec.mhz, (), _BATCH, _BATCH * sum(TYPICAL_TOKENS)).t_s
    return token_s, engine.iteration(spec.mhz, [(prompt, 0)]).t_s / prompt


def aging_of(order: str, aging_tokens_per_s: float | None, long_tokens: float, limits: Iterable[Limits]) -> float:
    """Returns the aging of an instance's queue, in tokens/s, as gateways have it.

    Args:
        aging_tokens_per_s: The knob. None: by the long ones and the limits.
        long_tokens: What one predicted length in a hundred exceeds.
        limits: Of the service's classes.
    """
    if order != "sjf":
        return 0.0
    return measured_aging(long_tokens, limits) if aging_tokens_per_s is None else aging_tokens_per_s
