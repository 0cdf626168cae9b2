"""What each mode does for each class, as the epochs see it: published figures, bounded by the engine model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pools.models import Profile, RequestClass, Service
from scheduler.core.engine_model import UnknownConfiguration, engine_model, gpu
from scheduler.core.types import Limits, Mode, ModeProfile, Source

# Objectives are for 99 of 100 requests: a rate that fills the KV cache on the mean leaves half of them waiting.
SPARE_DEVIATIONS = 2.33


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of the requests now seen, in tokens."""

    prompt_tokens: float
    output_tokens: float

    @property
    def rounded(self) -> Lengths:
        """To about 3 %: the engine model is asked again when traffic changes, not at every request."""
        return Lengths(_round(self.prompt_tokens), _round(self.output_tokens))


def _round(tokens: float) -> float:
    step = 2.0 ** max(0, int(tokens).bit_length() - 5)
    return max(1.0, round(tokens / step) * step)


def mode_profiles(
    service: Service, classes: Mapping[int, RequestClass], lengths: Mapping[int, Lengths | None], limits: Limits
) -> dict[tuple[int, Mode], ModeProfile]:
    """Profiles by (request class id, mode). Of several rows for one mode the most trusted, then the newest, counts.

    A published rate holds for the authors' mix of lengths. Where requests now are longer, the engine model's rate at
    their mean lengths is lower, and it counts: a plan on the published rate would fall short.
    """
    trust = {Profile.Kind.MEASURED: 2, Profile.Kind.PUBLISHED: 1, Profile.Kind.MODELLED: 0}
    rows = Profile.objects.filter(model_card=service.model_card, request_class__in=classes)
    found: dict[tuple[int, Mode], ModeProfile] = {}
    for row in sorted(rows, key=lambda row: (trust[Profile.Kind(row.kind)], row.pk)):
        mode = Mode(row.gpu_type, row.tp)
        profile = ModeProfile(
            max_rps=row.max_rps,
            power_w=row.power_w,
            ttft_s=row.ttft_s,
            tpot_s=row.tpot_s,
            e2e_s=row.e2e_s,
            source=Source(row.kind),
        )
        found[row.request_class_id, mode] = _bounded(profile, service, mode, lengths.get(row.request_class_id), limits)
    return found


def _bounded(
    profile: ModeProfile, service: Service, mode: Mode, lengths: Lengths | None, limits: Limits
) -> ModeProfile:
    card = service.model_card
    if lengths is None or profile.max_rps <= 0:
        return profile
    modelled = _modelled(card.name, card.engine, mode, lengths.rounded, limits)
    return profile if modelled is None or modelled.max_rps >= profile.max_rps else modelled


@lru_cache(maxsize=4096)
def _modelled(model: str, engine: str, mode: Mode, lengths: Lengths, limits: Limits) -> ModeProfile | None:
    """The engine model's answer at the top clock; None where it does not know the configuration."""
    try:
        worker, top_mhz = engine_model(model, mode.gpu, mode.tp, engine), gpu(mode.gpu).f_max
    except UnknownConfiguration:
        return None
    rate = worker.max_rps(lengths.prompt_tokens, lengths.output_tokens, top_mhz, limits, SPARE_DEVIATIONS)
    if rate <= 0:
        power_w = worker.idle_gpu_watts(top_mhz) * mode.tp
        return ModeProfile(0.0, power_w, None, None, None, Source.MODELLED)
    steady = worker.steady_state(rate, lengths.prompt_tokens, lengths.output_tokens, top_mhz)
    return ModeProfile(rate, steady.power_w, steady.ttft_s, steady.tpot_s, steady.e2e_s, Source.MODELLED)
