"""Profiles of one instance at the lengths now seen, as loops that decide by energy over load are given them."""

from __future__ import annotations

from dataclasses import replace

from core.engine.corrections import configuration
from core.engine.engine_model import UnknownConfiguration
from core.engine.load_profile import LoadProfile, load_profile_of, servable
from core.engine.measured import basis, engine_costs
from core.engine.parameter_caches import cached
from core.engine.steady_state import SPARE_DEVIATIONS
from core.observations.clock_given import ProfileClocks
from core.observations.mode_profile import Lengths
from core.types import Mode


@cached(maxsize=4096)
def load_profile(model: str, engine: str, mode: Mode, lengths: Lengths) -> LoadProfile | None:
    """Returns DynamoLLM's profile, up to the load that the KV cache has room for in 99 of 100 moments at each clock.

    None: nothing is known of the configuration, or not even one such request fits.
    """
    try:
        worker = engine_costs(model, mode.gpu, mode.tp, engine)
    except UnknownConfiguration:
        return None
    found = servable(worker, lengths.prompt_tokens, lengths.output_tokens, lengths.context_tokens)
    return _of_when(found, model, engine, mode)


@cached(maxsize=4096)
def full_load_profile(
    model: str, engine: str, mode: Mode, lengths: Lengths, full_tokens: int | None, mhz: ProfileClocks
) -> LoadProfile | None:
    """Returns GreenServe's profile, whose TTFT is that of an iteration with `full_tokens` of prompts; None: with the
    request's own.

    None: nothing is known of the configuration, or not even one such request fits.
    """
    try:
        worker = engine_costs(model, mode.gpu, mode.tp, engine)
    except UnknownConfiguration:
        return None
    found = load_profile_of(
        worker,
        lengths.prompt_tokens,
        lengths.output_tokens,
        mhz.of(worker.gpu_params),
        chunk_tokens=full_tokens,
        context_tokens=lengths.running_tokens,
        spare_deviations=SPARE_DEVIATIONS,
    )
    return _of_when(found, model, engine, mode)


def _of_when(found: LoadProfile | None, model: str, engine: str, mode: Mode) -> LoadProfile | None:
    at_s = basis(configuration(model, mode.gpu, mode.tp, engine)).measured_at_s
    return None if found is None else replace(found, measured_at_s=at_s)
