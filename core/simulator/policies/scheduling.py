"""Tells orders that go by the work left how long tokens take at an instance."""

from __future__ import annotations

from core.engine.engine_model import engine_model
from core.observations.demand.class_view import TYPICAL_TOKENS
from core.simulator.kernel.simulated import InstanceSpec

_BATCH = 16  # sequences: in between a lone request and a full batch


def token_times_s(spec: InstanceSpec) -> tuple[float, float]:
    """Returns the times of an output token and of a token to prefill, in s, at the instance's clock."""
    if spec.costs is not None:
        return spec.costs.base_s + _BATCH * spec.costs.decode_s, spec.costs.prefill_token_s
    engine = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
    prompt = spec.tokens_per_iteration
    token_s = engine.iteration(spec.mhz, (), _BATCH, _BATCH * sum(TYPICAL_TOKENS)).t_s
    return token_s, engine.iteration(spec.mhz, [(prompt, 0)]).t_s / prompt
