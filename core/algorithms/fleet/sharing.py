"""Shares GPUs among services, so that none starves beside another.

A service claims what its workers take (its use) and what it still lacks of its need (its reserve), up to its fair part
of all GPUs: an instance for each class, and beyond that as many as the others (max-min fairness). Each service plans
with what the others' claims leave. One that uses GPUs which another has reserved is above its fair part: its next plan
gives them back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from core.types import Mode

_EPS = 1e-9


class NodeGpus(NamedTuple):
    """The GPUs of one type on a node."""

    site: str
    node: str
    gpu: str
    gpus: int

    @property
    def place(self) -> Place:
        return self.site, self.node, self.gpu


Place = tuple[str, str, str]  # site, node, GPU type; node empty: anywhere at the site


@dataclass(frozen=True, slots=True)
class Lack:
    """Load that no instance carries yet. `carries`: requests a second of an instance of each mode, by site."""

    rps: float
    carries: Mapping[tuple[str, Mode], float]


@dataclass(frozen=True, slots=True)
class ServiceNeed:
    """A service's GPUs, and what it lacks beside them.

    `lacks` has an entry for each class that needs instances of its own, also where it has enough of them: 0 requests a
    second, or less.
    """

    name: str
    used: Mapping[Place, int]
    lacks: tuple[Lack, ...] = ()


@dataclass(frozen=True, slots=True)
class Claims:
    """All services' claims on the nodes: the GPUs that each may go on using, those that are reserved for it, and those
    that it is to give back."""

    nodes: tuple[NodeGpus, ...]
    used: Mapping[str, Mapping[Place, int]]
    reserved: Mapping[str, Mapping[Place, int]]
    given_back: Mapping[str, Mapping[Place, int]]

    def left(self, service: str) -> tuple[NodeGpus, ...]:
        """Returns the nodes as a service may plan with them: without what others claim."""
        others = [own for held in (self.used, self.reserved) for name, own in held.items() if name != service]
        found = (node._replace(gpus=node.gpus - sum(own.get(node.place, 0) for own in others)) for node in self.nodes)
        return tuple(node for node in found if node.gpus)


def fair_parts(total: int, needs: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    """Returns each one's part of `total` GPUs: what it needs at least, and the rest to those that have fewest.

    Nobody gets more than it needs. `least`: without it a service cannot serve; left out where all together is too much.
    The last GPUs of a rest that is not even go to the first ones by name.
    """
    found = {name: min(need, least[name]) for name, need in needs.items()}
    if sum(found.values()) > total:
        found = dict.fromkeys(needs, 0)
    below = [(part, name) for name, part in found.items() if part < needs[name]]
    heapify(below)
    for _ in range(total - sum(found.values())):
        if not below:
            break
        part, name = heappop(below)
        found[name] = part + 1
        if part + 1 < needs[name]:
            heappush(below, (part + 1, name))
    return found


def claims(nodes: Sequence[NodeGpus], services: Sequence[ServiceNeed]) -> Claims:
    """Returns what each service may go on using and reserves.

    A reserve is made of instances, one at a time for the service that has claimed least: for each of its lacks the
    smallest, then by turns those of most load a GPU. It stands on free GPUs (on the fullest node that has room), else
    on those of services above their fair part, which are no longer theirs, and ends at the service's own fair part.
    Names break ties: the order of `services` has no effect.
    """
    nodes = sorted(nodes)
    services = sorted(services, key=lambda service: service.name)
    free = {node.place: node.gpus for node in nodes}
    used = _placed(services, free)
    total = sum(node.gpus for node in nodes)
    needs = {own.name: used[own.name].total() + _lacked(own.lacks, nodes, total) for own in services}
    part = fair_parts(total, needs, {own.name: sum(map(_smallest, own.lacks)) for own in services})
    reserved: dict[str, Counter[Place]] = {own.name: Counter() for own in services}
    given_back: dict[str, Counter[Place]] = {own.name: Counter() for own in services}
    lacking = {own.name: deque((lack, True) for lack in own.lacks if lack.rps > 0.0) for own in services}
    while able := [name for name, lacks in lacking.items() if lacks]:
        claimed = {own: used[own].total() + reserved[own].total() for own in able}
        name = min(able, key=lambda own: (claimed[own], own))
        lack, first = lacking[name].popleft()
        most = min(part[name] - claimed[name], _smallest(lack) if first else total)
        above = {other: max(0, own.total() - part[other]) for other, own in used.items() if other != name}
        room = {place: gpus + sum(min(used[o][place], above[o]) for o in above) for place, gpus in free.items()}
        unit = _unit(lack, most, free) or _unit(lack, most, room)
        if unit is None:
            continue
        place, tp, rps = unit
        reserved[name][place] += tp
        rest = tp - min(tp, free[place])
        free[place] -= tp - rest
        for other in above:
            back = min(rest, used[other][place], above[other])
            used[other][place] -= back
            given_back[other][place] += back
            rest -= back
        if lack.rps - rps > _EPS:
            lacking[name].append((replace(lack, rps=lack.rps - rps), False))
    return Claims(tuple(nodes), used, reserved, {name: +own for name, own in given_back.items()})


def _smallest(lack: Lack) -> int:
    """Returns the GPUs of the smallest instance that carries anything of a lack."""
    return min((mode.tp for (_, mode), rps in lack.carries.items() if rps > 0.0), default=0)


def _placed(services: Sequence[ServiceNeed], free: dict[Place, int]) -> dict[str, Counter[Place]]:
    """Returns each one's use by node, and takes it from `free`.

    What stands on a node comes before what anybody is to have anywhere at a site: that takes the smallest rooms first,
    and where none is left it is nobody's use.
    """
    found: dict[str, Counter[Place]] = {own.name: Counter() for own in services}
    wishes = [
        (not node, own.name, (site, node, gpu), gpus)
        for own in services
        for (site, node, gpu), gpus in own.used.items()
    ]
    for anywhere, name, (site, node, gpu), gpus in sorted(wishes):
        places = [place for place in free if place[0] == site and place[2] == gpu and (anywhere or node == place[1])]
        for place in sorted(places, key=lambda place: (free[place], place)):
            less = min(gpus, free[place])
            free[place] -= less
            found[name][place] += less
            gpus -= less
    return {name: +own for name, own in found.items()}


def _unit(lack: Lack, most: int, room: Mapping[Place, int]) -> tuple[Place, int, float] | None:
    """Returns the place, GPUs and load of the instance that carries most of a lack a GPU, in at most `most` GPUs."""
    found = []
    for place, gpus in room.items():
        for (site, mode), rps in lack.carries.items():
            if (site, mode.gpu) == (place[0], place[2]) and mode.tp <= min(gpus, most) and rps > 0.0:
                found.append((-min(rps, lack.rps) / mode.tp, mode.tp, gpus, place, rps))
    if not found:
        return None
    _, tp, _, place, rps = min(found)
    return place, tp, rps


def _lacked(lacks: Sequence[Lack], nodes: Sequence[NodeGpus], total: int) -> int:
    """Returns the GPUs that the lacks take on empty nodes; at most `total`."""
    empty = {node.place: node.gpus for node in nodes}
    gpus = 0
    for lack in lacks:
        while lack.rps > _EPS and gpus < total and (unit := _unit(lack, total, empty)) is not None:
            gpus += unit[1]
            lack = replace(lack, rps=lack.rps - unit[2])
    return min(gpus, total)


# -- whole nodes -----------------------------------------------------------------------------------


def whole_nodes(
    nodes: Sequence[NodeGpus],
    needs: Mapping[str, float],
    carries: Callable[[str, NodeGpus], float],
    lot: Callable[[NodeGpus], Hashable],
) -> dict[str, tuple[NodeGpus, ...]]:
    """Gives every service whole nodes of one lot (a site, or a type of GPU at a site), by need.

    The service that needs the largest part of the fleet chooses its lot first: of those that carry its need (or else
    most of it) when all that chose it have equal parts, the one that fewest chose, then the largest. In a lot each node
    goes to the service of which the smallest part of its need is carried. A lot that nobody chooses stays empty.

    Args:
        needs: Requests a second of each service.
        carries: The requests a second that a node carries for a service.

    Raises:
        ValueError: There is no lot with a node for a service; says for which.
    """
    lots: dict[Hashable, list[NodeGpus]] = {}
    for node in sorted(nodes):
        lots.setdefault(lot(node), []).append(node)
    chosen: dict[Hashable, list[str]] = {key: [] for key in lots}

    def part(name: str) -> float:
        most = sum(carries(name, node) for node in nodes)
        return needs[name] / most if most > 0.0 else 0.0

    for name in sorted(needs, key=lambda name: (-part(name), name)):
        able = {
            key: sum(carries(name, node) for node in own) / (1 + len(chosen[key]))
            for key, own in lots.items()
            if len(own) > len(chosen[key])
        }
        if max(able.values(), default=0.0) <= 0.0:
            raise ValueError(name)
        need = needs[name]
        chosen[max(able, key=lambda key: (min(able[key], need), -len(chosen[key]), able[key]))].append(name)
    found: dict[str, list[NodeGpus]] = {name: [] for name in needs}
    for key, names in chosen.items():
        covered = dict.fromkeys(names, 0.0)
        for node in sorted(lots[key], key=lambda node: -node.gpus):
            able_names = [name for name in covered if carries(name, node) > 0.0]
            if able_names:
                name = min(able_names, key=lambda name: (len(found[name]) > 0, covered[name]))
                found[name].append(node)
                covered[name] += carries(name, node) / max(needs[name], _EPS)
    if empty := [name for name, own in found.items() if not own]:
        raise ValueError(empty[0])
    return {name: tuple(own) for name, own in found.items()}
