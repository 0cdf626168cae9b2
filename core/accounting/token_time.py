"""Seconds for which one token keeps an engine busy, by the engine model: the weights by which energy is shared out."""

from __future__ import annotations

from core.accounting.allocation import TokenTime
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.iteration import Totals
from core.engine.parameter_caches import cached

# Where a token's time is taken: a prompt of FREESH's middle length beside a batch in the middle of engines' range.
PROMPT_TOKENS, BATCH, CONTEXT_TOKENS = 1_024, 16, 1_024
# For engines that the model does not know: about what it says of Llama3-70B on four A100-80GB.
OTHERS = TokenTime(1.0, 10.0, "default: an output token as long as ten of a prompt")


@cached(maxsize=1024)
def token_time_of(model: str, engine_model_name: str, gpu_type: str, tp: int, engine: str) -> TokenTime:
    """Returns how long one token keeps the engine busy at its top clock, in seconds.

    Args:
        model: What the source of the figures calls the model.
        engine_model_name: What the engine model calls it; of one that it does not know: OTHERS.
    """
    try:
        costs = engine_model(engine_model_name, gpu_type, tp, engine)
    except UnknownConfiguration:
        return OTHERS
    mhz = costs.gpu_params.f_max
    prefill_s = costs.iteration_of(mhz, Totals.plain(PROMPT_TOKENS, 0.0, 0.0)).t_s / PROMPT_TOKENS
    decode_s = costs.iteration_of(mhz, Totals.plain(0.0, BATCH, BATCH * CONTEXT_TOKENS)).t_s / BATCH
    return TokenTime(prefill_s, decode_s, f"engine model of {model} on {gpu_type}/TP{tp} under {engine}")
