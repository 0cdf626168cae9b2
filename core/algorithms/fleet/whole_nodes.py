"""Gives services whole nodes, for policies that see one service alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from types import MappingProxyType

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.algorithms.fleet.sharing import NodeGpus

_EPS = 1e-9


def whole_nodes(
    nodes: Sequence[NodeGpus],
    needs: Mapping[str, float],
    carries: Callable[[str, NodeGpus], float],
    lot: Callable[[NodeGpus], Hashable],
    shares: Mapping[str, Share] = MappingProxyType({}),
) -> dict[str, tuple[NodeGpus, ...]]:
    """Gives every service whole nodes of one lot (a site, or a type of GPU at a site), by need.

    The service that needs the largest part of the fleet chooses its lot first: of those that carry its need (or else
    most of it) when all that chose it have equal parts, the one that fewest chose, then the largest. In a lot each node
    goes to a service that has none, then to one below its floor, then to that of which the smallest part of its need is
    carried for its weight; never above a ceiling. A lot that nobody chooses stays empty. Neither choice is open that
    would leave a service without a node which another choice would leave it (a maximum bipartite matching says so).

    Args:
        needs: Requests a second of each service.
        carries: The requests a second that a node carries for a service.
        shares: What operators say of each service's part; an equal one for those without.

    Raises:
        ValueError: There is no lot with a node for a service; says for which.
    """
    nodes = sorted(nodes)
    in_order = sorted(needs, key=lambda name: (-_part(needs[name], [carries(name, node) for node in nodes]), name))
    able = {
        name: {node for node in nodes if carries(name, node) > 0.0 and _may_have(shares, name, node.gpus)}
        for name in in_order
    }
    for n, name in enumerate(in_order):
        if not _all_find_one(nodes, [able[own] for own in in_order[: n + 1]]):
            raise ValueError(name)
    lots: dict[Hashable, list[NodeGpus]] = {}
    for node in nodes:
        lots.setdefault(lot(node), []).append(node)
    chosen: dict[Hashable, list[str]] = {key: [] for key in lots}
    for name in in_order:
        parts_rps = {}
        for key, own in lots.items():
            if _all_find_one(nodes, (able | {name: able[name].intersection(own)}).values()):
                parts_rps[key] = sum(carries(name, node) for node in own) / (1 + len(chosen[key]))
        need = needs[name]
        key = max(parts_rps, key=lambda key: (min(parts_rps[key], need), -len(chosen[key]), parts_rps[key]))
        chosen[key].append(name)
        able[name].intersection_update(lots[key])
    found: dict[str, list[NodeGpus]] = {}
    for key, names in chosen.items():
        found |= _of_one_lot(lots[key], {name: needs[name] for name in names}, carries, shares)
    return {name: tuple(found[name]) for name in needs}


def _part(need_rps: float, carried_rps: Sequence[float]) -> float:
    return need_rps / sum(carried_rps) if sum(carried_rps) > 0.0 else 0.0


def _may_have(shares: Mapping[str, Share], name: str, gpus: int) -> bool:
    return shares.get(name, EQUAL).most(gpus) == gpus


def _all_find_one(nodes: Sequence[NodeGpus], able: Collection[Set[NodeGpus]]) -> bool:
    """Says whether each can have a node of its own. `able`: on which nodes each can run."""
    if not able:
        return True
    fits = csr_array(np.array([[node in own for node in nodes] for own in able], np.int8).reshape(len(able), -1))
    return bool((maximum_bipartite_matching(fits, perm_type="column") >= 0).all())


def _of_one_lot(
    nodes: Sequence[NodeGpus],
    needs: Mapping[str, float],
    carries: Callable[[str, NodeGpus], float],
    shares: Mapping[str, Share],
) -> dict[str, list[NodeGpus]]:
    """Gives out the nodes of one lot among those that chose it, the largest first."""
    found: dict[str, list[NodeGpus]] = {name: [] for name in needs}
    covered = dict.fromkeys(needs, 0.0)
    left = sorted(nodes, key=lambda node: -node.gpus)

    def gpus_of(name: str) -> int:
        return sum(own.gpus for own in found[name])

    def first_in_need(name: str) -> tuple[bool, bool, float]:
        share = shares.get(name, EQUAL)
        return gpus_of(name) > 0, gpus_of(name) >= share.min_gpus, covered[name] / share.weight

    def all_others_find_one(name: str) -> bool:
        without = [own for own in needs if own != name and not found[own]]
        able = [{n for n in left if carries(own, n) > 0.0 and _may_have(shares, own, n.gpus)} for own in without]
        return _all_find_one(left, able)

    while left:
        node = left.pop(0)
        able = [
            name
            for name in needs
            if carries(name, node) > 0.0
            and _may_have(shares, name, gpus_of(name) + node.gpus)
            and all_others_find_one(name)
        ]
        if able:
            name = min(able, key=first_in_need)
            found[name].append(node)
            covered[name] += carries(name, node) / max(needs[name], _EPS)
    return found
