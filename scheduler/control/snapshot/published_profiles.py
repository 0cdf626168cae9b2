"""Reads what each mode does for each class: measured figures, published ones bounded by the engine model, its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from django.db.models import Count, Q

from core.controllers.fleet.shared_out import TP_DEGREES
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.engine_params import split_fault
from core.engine.gpu_slices import sliced
from core.observations.demand import class_view
from core.observations.demand.class_view import EngineChoice, profiles_of, typical_lengths
from core.observations.mode_profile import Lengths
from core.types import Limits, Mode, ModeProfile, Source
from pools.model_files import shape_figures
from pools.models import Node, Profile, ProfileSource, RequestClass, Service


def typical(service: Service, request_class: RequestClass) -> Lengths:
    """Returns the lengths to plan a class by before it had requests: typical ones, or the declared ones."""
    bounds = (request_class.input_min, request_class.input_max, request_class.output_min, request_class.output_max)
    if bounds == (0, None, 0, None) and service.expected_prompt_tokens and service.expected_output_tokens:
        return Lengths(service.expected_prompt_tokens, service.expected_output_tokens)
    return typical_lengths(*bounds)


def mode_profiles(
    service: Service,
    classes: Mapping[int, RequestClass],
    lengths: Mapping[int, Lengths],
    limits: Mapping[int, Limits],
    anywhere: bool = False,
) -> dict[tuple[int, Mode], ModeProfile]:
    """Returns profiles by (request class id, mode). `anywhere`: of modes that fit on any node."""
    rows = published(service, classes)
    engines = engine_choice(service, rows, anywhere)
    return {
        (pk, mode): profile
        for pk in classes
        for mode, profile in profiles_of(engines, rows[pk], lengths[pk], limits[pk], known=True).items()
    }


def published(service: Service, classes: Iterable[int]) -> dict[int, dict[Mode, ModeProfile]]:
    """Returns the rows by request class id. Of several of a mode the most trusted, then the newest counts."""
    trust = {ProfileSource.MEASURED: 2, ProfileSource.PUBLISHED: 1, ProfileSource.MODELLED: 0}
    found: dict[int, dict[Mode, ModeProfile]] = {pk: {} for pk in classes}
    rows = Profile.objects.filter(model_card=service.model_card, request_class__in=found)
    for row in sorted(rows, key=lambda row: (trust[ProfileSource(row.kind)], row.pk)):
        found[row.request_class_id][Mode(row.gpu_type, row.tp)] = ModeProfile(
            max_rps=row.max_rps,
            power_w=row.power_w,
            ttft_s=row.ttft_s,
            tpot_s=row.tpot_s,
            e2e_s=row.e2e_s,
            source=Source(row.kind),
        )
    return found


def engine_choice(
    service: Service, rows: Mapping[int, Mapping[Mode, ModeProfile]], anywhere: bool = False
) -> EngineChoice:
    """Returns what serves a service; where each class has rows of its own, of the modes only those of measured
    engines."""
    card, profiled = service.model_card, all(rows.values())
    offered = partial(offered_modes, service, anywhere)
    return class_view.engine_choice(card.engine_model_name, card.engine, offered, profiled)


def offered_modes(service: Service, anywhere: bool = False) -> list[Mode]:
    """Returns every TP degree that fits on some node at the service's sites (or anywhere), by GPU type, and has room
    for the model."""
    sites = largest_nodes(service, anywhere).values()
    every = {Mode(gpu, tp) for largest in sites for gpu, most in largest.items() for tp in TP_DEGREES if tp <= most}
    return sorted(mode for mode in every if has_room(service, mode))


def largest_nodes(service: Service, anywhere: bool = False) -> dict[str, dict[str, int]]:
    """Returns by site and GPU type how many GPUs, or slices, the largest node has that new instances may use."""
    here = Q() if anywhere else Q(cluster__site__pools__service=service)
    nodes = Node.objects.filter(here, schedulable=True).order_by()
    keys = ("cluster__site__name", "pk", "gpus__gpu_type", "gpu_slices")
    counts = nodes.values_list(*keys).annotate(Count("gpus", distinct=True))
    found: dict[str, dict[str, int]] = {}
    for site, _, gpu_type, slices, count in counts.exclude(gpus=None):
        own, gpu = found.setdefault(site, {}), sliced(gpu_type, slices)
        own[gpu] = max(own.get(gpu, 0), count * slices)
    return found


def no_room(service: Service) -> str:
    """Says in figures why the model fits on no node of the service's sites; empty: it may, or there is none."""
    card = service.model_card
    sites = largest_nodes(service).values()
    name = card.engine_model_name
    modes = {(gpu, max(degrees_within(name, gpu, most))) for own in sites for gpu, most in own.items()}
    try:
        found = [shape_figures.fit(name, gpu, tp, card.engine) for gpu, tp in modes]
    except UnknownConfiguration:
        return ""
    if not found or any(one.fits for one in found):
        return ""
    return f"{card.name} fits on no node: {max(found, key=lambda one: one.room_gb).reason}."


def degrees_within(model: str, gpu: str, gpus: int) -> list[int]:
    """Returns the TP degrees that a model can be cut by on so many GPUs of a type."""
    return [tp for tp in TP_DEGREES if tp <= gpus and not split_fault(model, gpu, tp)]


def has_room(service: Service, mode: Mode) -> bool:
    """Says whether the model can be cut so and has room for a KV cache; one that the engine model does not know may run
    anywhere."""
    card = service.model_card
    if split_fault(card.engine_model_name, mode.gpu, mode.tp):
        return False
    try:
        return engine_model(card.engine_model_name, mode.gpu, mode.tp, card.engine).kv_capacity_tokens > 0
    except UnknownConfiguration:
        return True
