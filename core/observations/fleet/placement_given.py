"""Builds what a placement of live models is given: the placements that there are on GPUs of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.algorithms.placement import own_gpus
from core.algorithms.placement.own_gpus import ModelLoad, Nodes, Place
from core.controllers.fleet.placement import ALPASERVE, POWER_AWARE, PlacementObservation, PlacementOption
from core.controllers.fleet.shared_out import TP_DEGREES, NodeView
from core.policy.tuning import PlacementTuning
from core.types import Mode, PartitionOption

FLOOR_RPS = 0.05  # where nothing was ever asked of a model, it is to have somewhere to be


def models(
    service: str, option: PartitionOption, sites: Iterable[str], tp: int, share: Share = EQUAL
) -> list[ModelLoad]:
    """Returns a service's models, one for each class, which has instances of its own.

    Args:
        tp: The largest TP degree of an instance.
        share: What the service's operator says of its part beside others.
    """
    found = []
    for own in option.classes:
        profiles = {mode: profile for (name, mode), profile in option.profiles.items() if name == own.name}
        carries = {mode: profile.max_rps for mode, profile in profiles.items() if mode.tp <= tp and not mode.also}
        rps = max(FLOOR_RPS, max(own.demand_rps, default=0.0))
        found.append(ModelLoad(model_name(service, own.name), rps, carries, frozenset(sites), service, share))
    return found


def model_name(service: str, request_class: str) -> str:
    """Returns the name of a service's model for a class, which no other service's has."""
    return f"{service}/{request_class}"


def observation(
    now_s: float,
    nodes: Sequence[NodeView],
    loads: Sequence[ModelLoad],
    present: Mapping[Place, int],
    starved: Iterable[str],
    tuning: PlacementTuning,
) -> PlacementObservation:
    """Returns what a turn is given.

    Args:
        present: Replicas of all these models that there are to be; several services' are placed together.
        starved: Models that want more than the top clock.
    """
    counted: Counter[tuple[str, str, int]] = Counter((node.site, node.gpu, node.gpus) for node in nodes)
    groups = own_gpus.in_groups(counted, loads, tuning.group_gpus or TP_DEGREES)
    fewest = own_gpus.on_fewest(groups, loads, tuning.max_devices)
    options = {
        name: PlacementOption(replicas, own_gpus.attainment(replicas, loads))
        for name, replicas in ((ALPASERVE, groups), (POWER_AWARE, fewest))
    }
    short = tuple(sorted(set(starved)))
    return PlacementObservation(
        now_s,
        options,
        present,
        own_gpus.fit(counted, present) and _all_able(present, loads),
        own_gpus.attainment(present, loads),
        short,
        _room(counted, loads, present, short),
    )


def _all_able(present: Mapping[Place, int], loads: Sequence[ModelLoad]) -> bool:
    """Says whether each model has a replica."""
    there = {name for (_, name, _), count in present.items() if count}
    return all(model.name in there for model in loads)


def _room(
    nodes: Nodes, loads: Sequence[ModelLoad], present: Mapping[Place, int], short: Sequence[str]
) -> dict[str, tuple[tuple[str, Mode], ...]]:
    had = own_gpus.gpus_by_service(present, loads)
    return {
        model.name: tuple(
            place
            for place in own_gpus.room(nodes, present, model)
            if had[model.service] + place[1].tp <= model.share.most(had[model.service] + place[1].tp)
        )
        for model in loads
        if model.name in short
    }
