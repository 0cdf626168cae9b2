"""Models on GPUs of their own: mu-Serve's two steps (section 3.2) where no GPU has two models.

AlpaServe's step cuts the nodes into groups of one size and gives a model whole groups, each to one replica. Where
groups are too few, they go by weight, and within floors and ceilings of the models' services. mu-Serve's
takes of these groups as few GPUs as hold a replica, and as many replicas as the load needs: the other GPUs of a group
stay idle, at their lowest power. Algorithm 2, which puts models of like sensitivity on one device, has nothing to
choose here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.types import Mode

_EPS = 1e-9

Place = tuple[str, str, Mode]  # site, model, mode of a replica
Nodes = Mapping[tuple[str, str, int], int]  # nodes by (site, GPU type, GPUs)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """`rps`: what comes, requests/s, above 0. `carries_rps`: of one replica within the limits; 0: of none in this mode.
    `sites`: where it may run. `service`: whose it is. `share`: what the service's operator says of its part."""

    name: str
    rps: float
    carries_rps: Mapping[Mode, float]
    sites: frozenset[str]
    service: str = ""
    share: Share = EQUAL

    def carried(self, replicas: Mapping[Place, int]) -> float:
        """Returns the requests/s that it has replicas for, at most those that come."""
        own = (n * self.carries_rps.get(mode, 0.0) for (_, name, mode), n in replicas.items() if name == self.name)
        return min(self.rps, math.fsum(own))

    def fewest(self, gpu: str, most: float = math.inf) -> Mode | None:
        """Returns the mode with the fewest GPUs of a type in which it keeps its limits; None: in none of at most
        `most`."""
        able = (mode for mode, rps in self.carries_rps.items() if mode.gpu == gpu and rps > 0.0 and mode.tp <= most)
        return min(able, key=lambda mode: mode.tp, default=None)


def attainment(replicas: Mapping[Place, int], models: Sequence[ModelLoad]) -> float:
    """Returns the share of all requests that find capacity within their limits, in 0..1; of no model: 0."""
    total = sum(model.rps for model in models)
    return sum(model.carried(replicas) for model in models) / total if total > 0.0 else 0.0


def gpus_by_service(replicas: Mapping[Place, int], models: Sequence[ModelLoad]) -> Counter[str]:
    """Returns the GPUs that the models of each service have."""
    service = {model.name: model.service for model in models}
    found: Counter[str] = Counter()
    for (_, name, mode), count in replicas.items():
        if name in service:
            found[service[name]] += count * mode.tp
    return found


def in_groups(nodes: Nodes, models: Sequence[ModelLoad], sizes: Sequence[int]) -> dict[Place, int]:
    """Returns AlpaServe's placement: of those with groups of one size the one that attains most; of equals the one with
    the smallest groups. Groups that no request needs have no model."""
    found = [_selected(_groups(nodes, sizes, size), models) for size in sorted(sizes)]
    return max(found, key=lambda own: round(attainment(own, models), 9), default={})


def on_fewest(groups: Mapping[Place, int], models: Sequence[ModelLoad], max_devices: int | None) -> dict[Place, int]:
    """Returns mu-Serve's placement: each model on its groups, its replicas on as few GPUs as hold one.

    Args:
        groups: As `in_groups` has them: a replica's mode says how large its group is.
        max_devices: CT of Algorithm 2, the most GPUs of a replica; None: as many as a group has.
    """
    found: Counter[Place] = Counter()
    for model in models:
        lack_rps = model.rps
        for (site, name, group), count in sorted(groups.items()):
            mode = model.fewest(group.gpu, max_devices or math.inf) if name == model.name else None
            if mode is None or lack_rps <= _EPS:
                continue
            carries_rps = model.carries_rps[mode]
            taken = min(count * (group.tp // mode.tp), math.ceil(lack_rps / carries_rps - _EPS))
            found[site, name, mode] += taken
            lack_rps -= taken * carries_rps
    return dict(found)


def fit(nodes: Nodes, replicas: Mapping[Place, int]) -> bool:
    """Says whether the nodes have room for the replicas, none of which spans two."""
    return _left(nodes, replicas) is not None


def room(nodes: Nodes, replicas: Mapping[Place, int], model: ModelLoad) -> list[tuple[str, Mode]]:
    """Returns where one more replica of a model stands beside these, on as few GPUs as hold it: fewest first."""
    left = _left(nodes, replicas)
    if left is None:
        return []
    found = set()
    for (site, gpu, free), count in left.items():
        mode = model.fewest(gpu)
        if mode is not None and count and mode.tp <= free and site in model.sites:
            found.add((site, mode))
    return sorted(found, key=lambda place: (place[1].tp, place))


def _groups(nodes: Nodes, sizes: Sequence[int], size: int) -> Counter[tuple[str, Mode]]:
    """Cuts every node into groups of a size, and what is left into the next smaller ones."""
    found: Counter[tuple[str, Mode]] = Counter()
    for (site, gpu, gpus), count in nodes.items():
        left = gpus
        for degree in sorted((own for own in sizes if own <= size), reverse=True):
            whole, left = divmod(left, degree)
            found[site, Mode(gpu, degree)] += whole * count
    return +found


def _selected(groups: Counter[tuple[str, Mode]], models: Sequence[ModelLoad]) -> dict[Place, int]:
    """Gives groups to models one after another: to one that has none, then to one of a service below its floor, then to
    that of which the smallest share is carried for its weight; never above a ceiling. A model gets the group that helps
    it most (AlpaServe's greedy choice, where capacities add up)."""
    free, lack = Counter(groups), {model.name: model.rps for model in models}
    found: Counter[Place] = Counter()
    placed: set[str] = set()
    while True:
        had = gpus_by_service(found, models)
        options = [
            (
                (
                    model.name not in placed,
                    had[model.service] < model.share.min_gpus,
                    (lack[model.name] / model.rps - 1.0) / model.share.weight,
                    gain,
                ),
                (gain, model, site, mode),
            )
            for (site, mode), count in sorted(free.items())
            for model in models
            if count
            and site in model.sites
            and (gain := min(lack[model.name], model.carries_rps.get(mode, 0.0))) > _EPS
            and model.share.most(had[model.service] + mode.tp) == had[model.service] + mode.tp
        ]
        if not options:
            return dict(found)
        _, (gain, model, site, mode) = max(options, key=lambda own: own[0])
        free[site, mode] -= 1
        lack[model.name] -= gain
        found[site, model.name, mode] += 1
        placed.add(model.name)


def _left(nodes: Nodes, replicas: Mapping[Place, int]) -> Counter[tuple[str, str, int]] | None:
    """Returns nodes by (site, type, GPUs that are free) beside the replicas, the largest placed first, each on the
    fullest node that has room; None: they do not fit."""
    free = Counter(nodes)
    wanted = sorted(((mode, site, count) for (site, _, mode), count in replicas.items()), key=lambda own: -own[0].tp)
    for mode, site, count in wanted:
        for _ in range(count):
            fitting = [key for key, n in free.items() if n and key[:2] == (site, mode.gpu) and key[2] >= mode.tp]
            if not fitting:
                return None
            key = min(fitting, key=lambda own: own[2])
            free[key] -= 1
            free[site, mode.gpu, key[2] - mode.tp] += 1
    return free
