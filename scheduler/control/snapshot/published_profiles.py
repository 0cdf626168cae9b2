"""Computes what each mode does for each class, as the epochs see it: published figures, bounded by the engine model."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import Count, Q

from core.controllers.fleet.shared_out import TP_DEGREES
from core.engine.engine_model import UnknownConfiguration
from core.observations.mode_profile import Lengths, mode_profile
from core.types import Limits, Mode, ModeProfile, Source
from pools.models import Node, Profile, ProfileSource, RequestClass, Service

# Of a class that nobody has asked for yet: open bounds are taken at twice their beginning, or at these.
OPEN_PROMPT_TOKENS, OPEN_OUTPUT_TOKENS = 1024, 256


def typical(service: Service, request_class: RequestClass) -> Lengths:
    """Returns the lengths to plan a class by before it had requests: the middle of its bounds, or the declared ones."""
    bounds = (request_class.input_min, request_class.input_max, request_class.output_min, request_class.output_max)
    if bounds == (0, None, 0, None) and service.expected_prompt_tokens and service.expected_output_tokens:
        return Lengths(service.expected_prompt_tokens, service.expected_output_tokens)
    return Lengths(
        _middle(request_class.input_min, request_class.input_max, OPEN_PROMPT_TOKENS),
        _middle(request_class.output_min, request_class.output_max, OPEN_OUTPUT_TOKENS),
    )


def _middle(least: int, most: int | None, unbounded: int) -> float:
    if most is None:
        return 2.0 * least if least else float(unbounded)
    return max(1.0, (least + most) / 2.0)


def mode_profiles(
    service: Service,
    classes: Mapping[int, RequestClass],
    lengths: Mapping[int, Lengths | None],
    limits: Mapping[int, Limits],
    anywhere: bool = False,
) -> dict[tuple[int, Mode], ModeProfile]:
    """Returns profiles by (request class id, mode). Of several rows of a mode the most trusted, then the newest counts.

    A published rate is for the authors' mix of lengths. Where requests now are longer, the engine model's rate at
    their mean lengths is lower, and it counts: a plan on the published rate would fall short. A class without any row
    has the engine model's figures for every mode that fits on its sites' nodes (`anywhere`: on any node).
    """
    trust = {ProfileSource.MEASURED: 2, ProfileSource.PUBLISHED: 1, ProfileSource.MODELLED: 0}
    rows = Profile.objects.filter(model_card=service.model_card, request_class__in=classes)
    found: dict[tuple[int, Mode], ModeProfile] = {}
    for row in sorted(rows, key=lambda row: (trust[ProfileSource(row.kind)], row.pk)):
        mode, pk = Mode(row.gpu_type, row.tp), row.request_class_id
        profile = ModeProfile(
            max_rps=row.max_rps,
            power_w=row.power_w,
            ttft_s=row.ttft_s,
            tpot_s=row.tpot_s,
            e2e_s=row.e2e_s,
            source=Source(row.kind),
        )
        found[pk, mode] = _bounded(profile, service, mode, lengths.get(pk), limits[pk])
    bare = classes.keys() - {pk for pk, _ in found}
    for mode in offered_modes(service, anywhere) if bare else ():
        for pk in bare:
            own = lengths.get(pk) or typical(service, classes[pk])
            modelled = _modelled(service, mode, own, limits[pk])
            if modelled is not None:
                found[pk, mode] = modelled
    return found


def offered_modes(service: Service, anywhere: bool = False) -> list[Mode]:
    """Returns every TP degree that fits on some node at the service's sites (or anywhere), by GPU type."""
    largest: dict[str, int] = {}
    here = Q() if anywhere else Q(cluster__site__pools__service=service)
    nodes = Node.objects.filter(here, schedulable=True).order_by()
    counts = nodes.values_list("pk", "gpus__gpu_type").annotate(Count("gpus", distinct=True))
    for _, gpu_type, count in counts.exclude(gpus=None):
        largest[gpu_type] = max(largest.get(gpu_type, 0), count)
    return sorted(Mode(gpu, tp) for gpu, most in largest.items() for tp in TP_DEGREES if tp <= most)


def without_limits(service: Service, profiles: Mapping[Mode, ModeProfile], lengths: Lengths) -> dict[Mode, ModeProfile]:
    """Returns the same modes without latency limits, to plan with for a class whose limits none can keep."""
    return {mode: _modelled(service, mode, lengths, Limits()) or profile for mode, profile in profiles.items()}


def _bounded(
    profile: ModeProfile, service: Service, mode: Mode, lengths: Lengths | None, limits: Limits
) -> ModeProfile:
    if lengths is None or profile.max_rps <= 0:
        return profile
    modelled = _modelled(service, mode, lengths, limits)
    return profile if modelled is None or modelled.max_rps >= profile.max_rps else modelled


def _modelled(service: Service, mode: Mode, lengths: Lengths, limits: Limits) -> ModeProfile | None:
    """Returns the engine model's profile at the top clock; None where it does not know the configuration."""
    card = service.model_card
    try:
        return mode_profile(card.name, card.engine, mode, lengths.rounded, limits)
    except UnknownConfiguration:
        return None
