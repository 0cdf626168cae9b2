"""Builds what a service has and lacks of the GPUs that services share (`core.algorithms.fleet.sharing`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.algorithms.fleet.sharing import Lack, Place, ServiceNeed
from core.observations.demand.class_view import ClassView
from core.policy.knobs import Knobs
from core.types import Mode

FLOOR_RPS = 0.05  # of a class of which nothing came: one instance is to be there


def service_need(
    name: str,
    used: Mapping[Place, int],
    workers: Mapping[tuple[str, Mode], int],
    classes: Sequence[ClassView],
    sites_of: Callable[[Mode], Collection[str]],
    knobs: Knobs,
    share: Share = EQUAL,
) -> ServiceNeed:
    """Returns the need of a service.

    Args:
        used: GPUs that its pools have.
        workers: Its instances by class and mode.
        sites_of: Where it may have more of a mode.
        share: What its operator says of its part.
    """
    able = [own for own in classes if own.servable]
    groups = [[own] for own in able] if knobs.class_instances else [able] if able else []
    lacks = []
    for group in groups:
        rps, carries = _together(group, knobs.tp)
        names = {own.demand.name for own in group}
        rps -= sum(n * carries.get(mode, 0.0) for (of_class, mode), n in workers.items() if of_class in names)
        lacks.append(Lack(rps, {(site, mode): own for mode, own in carries.items() for site in sites_of(mode)}))
    return ServiceNeed(name, used, tuple(lacks), share)


def _together(classes: Collection[ClassView], most_tp: int) -> tuple[float, dict[Mode, float]]:
    """Returns the rps of classes that share instances, and how much of that mix an instance of each mode carries."""
    rates = {own.demand.name: max([FLOOR_RPS, *own.demand.demand_rps]) for own in classes}
    carries = {}
    for mode in {mode for own in classes for mode in own.profiles if mode.tp <= most_tp}:
        able = [own for own in classes if mode in own.profiles and own.profiles[mode].max_rps > 0.0]
        if able:
            seconds = sum(rates[own.demand.name] / own.profiles[mode].max_rps for own in able)
            carries[mode] = sum(rates[own.demand.name] for own in able) / seconds
    return sum(rates.values()), carries
