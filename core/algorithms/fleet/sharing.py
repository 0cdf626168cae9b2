"""Shares GPUs among services, so that none starves beside another.

A service claims what its workers take (its use) and what it still lacks of its need (its reserve), up to its part of
all GPUs (`core.algorithms.fleet.gpu_parts`). Each service plans with what the others' claims leave, within its ceiling.
One that uses GPUs which another has reserved is above its part: its next plan gives them back. What a service needs and
does not get is a shortage, with those who have the GPUs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from core.algorithms.fleet.gpu_parts import EQUAL, Ask, Share, gpu_parts
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
    second, or less, as far as it has more than enough. `share`: what its operator says of its part.
    """

    name: str
    used: Mapping[Place, int]
    lacks: tuple[Lack, ...] = ()
    share: Share = field(default=EQUAL)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a service needs and does not get.

    Attributes:
        wanted: GPUs that its load needs.
        got: GPUs that are its.
        rps: Load of which it is known that no instance is to carry it, in requests/s; 0 where only instances that
            are there already have to go.
        max_gpus: Its ceiling, where that is what keeps it from having more.
        others: GPUs of others that it could run on, by service; empty where the ceiling is the reason.
    """

    wanted: int
    got: int
    rps: float
    max_gpus: int | None = None
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def reason(self) -> Literal["ceiling", "others", "none_fit"]:
        if self.max_gpus is not None:
            return "ceiling"
        return "others" if self.others else "none_fit"

    def text(self, name: str) -> str:
        """Says in a sentence whom it costs what, and why."""
        load = f", and {self.rps:.3g} requests/s find no instance" if self.rps > 0.0 else ""
        if self.reason == "ceiling":
            why = f"its ceiling is {self.max_gpus}"
        elif self.reason == "others":
            has = [f"{other} has {gpus}" for other, gpus in sorted(self.others.items(), key=lambda own: -own[1])]
            why = f"of those that it can run on, {', '.join(has)}"
        else:
            why = "there are no more on which an instance of it fits"
        return f"{name} gets {self.got} of the {self.wanted} GPUs that it needs{load}: {why}."


@dataclass(frozen=True, slots=True)
class Claims:
    """All services' claims on the nodes: the GPUs that each may go on using, those that are reserved for it, and those
    that it is to give back; and what each lacks for good, of those that lack anything."""

    nodes: tuple[NodeGpus, ...]
    used: Mapping[str, Mapping[Place, int]]
    reserved: Mapping[str, Mapping[Place, int]]
    given_back: Mapping[str, Mapping[Place, int]]
    ceilings: Mapping[str, int] = field(default_factory=dict)
    shortages: Mapping[str, Shortage] = field(default_factory=dict)

    def left(self, service: str, *, within_ceiling: bool = True) -> tuple[NodeGpus, ...]:
        """Returns the nodes as a service may plan with them: without what others claim, and within its ceiling.

        `within_ceiling` False: the plan is of several services, and keeps the ceiling of each by itself.
        """
        others = [own for held in (self.used, self.reserved) for name, own in held.items() if name != service]
        found = (node._replace(gpus=node.gpus - sum(own.get(node.place, 0) for own in others)) for node in self.nodes)
        left = tuple(node for node in found if node.gpus)
        return self._within(service, left) if within_ceiling and service in self.ceilings else left

    def short(self, service: str) -> str:
        """Says what the service is short of, as a sentence to follow others; empty: of nothing."""
        found = self.shortages.get(service)
        return "" if found is None else f" {found.text(service)}"

    def _within(self, service: str, nodes: Sequence[NodeGpus]) -> tuple[NodeGpus, ...]:
        """Cuts nodes down to a service's ceiling: what it claims comes first, then the nodes on which it claims
        something, then those with most GPUs."""
        rest = self.ceilings[service]
        claimed = Counter(self.used[service]) + Counter(self.reserved[service])
        kept: Counter[Place] = Counter()
        in_order = sorted(nodes, key=lambda node: (-claimed[node.place], -node.gpus, node))
        for most in (claimed, {node.place: node.gpus for node in nodes}):
            for node in in_order:
                more = min(rest, most.get(node.place, 0) - kept[node.place])
                kept[node.place] += max(0, more)
                rest -= max(0, more)
        found = (node._replace(gpus=kept[node.place]) for node in nodes)
        return tuple(node for node in found if node.gpus)


def claims(nodes: Sequence[NodeGpus], services: Sequence[ServiceNeed]) -> Claims:
    """Returns what each service may go on using and reserves, and what each lacks for good.

    A reserve is made of instances, one at a time for the service that has claimed least for its weight: for each of its
    lacks the smallest, then by turns those of most load a GPU. It stands on free GPUs (on the fullest node that has
    room), else on those of services above their part, which are no longer theirs, and ends at the service's own part.
    Names break ties: the order of `services` has no effect.
    """
    nodes = sorted(nodes)
    services = sorted(services, key=lambda service: service.name)
    free = {node.place: node.gpus for node in nodes}
    used = _placed(services, free)
    asks = {own.name: _ask(own, used[own.name].total(), nodes) for own in services}
    reserves = _Reserves(free, used, asks, gpu_parts(_kinds(nodes), asks))
    lacks_rps = reserves.fill({own.name: [lack for lack in own.lacks if lack.rps > 0.0] for own in services})
    return Claims(
        tuple(nodes),
        used,
        reserves.reserved,
        {name: +own for name, own in reserves.given_back.items()},
        {own.name: own.share.max_gpus for own in services if own.share.max_gpus is not None},
        {name: found for name, rps in lacks_rps.items() if (found := reserves.shortage(name, rps, nodes)) is not None},
    )


class _Reserves:
    """Reserves instances one by one, and takes GPUs back for them from services that are above their part."""

    def __init__(
        self, free: dict[Place, int], used: dict[str, Counter[Place]], asks: Mapping[str, Ask], parts: Mapping[str, int]
    ) -> None:
        self._free, self._used, self._asks, self._parts = free, used, asks, parts
        self.reserved: dict[str, Counter[Place]] = {name: Counter() for name in asks}
        self.given_back: dict[str, Counter[Place]] = {name: Counter() for name in asks}

    def fill(self, lacks: Mapping[str, Sequence[Lack]]) -> dict[str, float]:
        """Makes reserves for the lacks of each service; returns the load of each without one then, in requests/s."""
        lacking = {name: deque((lack, True) for lack in own) for name, own in lacks.items()}
        left_rps = dict.fromkeys(lacks, 0.0)
        while able := [name for name, own in lacking.items() if own]:
            name = min(able, key=lambda own: (self._claimed(own) / self._asks[own].share.weight, own))
            lack, first = lacking[name].popleft()
            rps = self._reserve(name, lack, first)
            if rps is None:
                left_rps[name] += lack.rps
            elif lack.rps - rps > _EPS:
                lacking[name].append((replace(lack, rps=lack.rps - rps), False))
        return left_rps

    def _claimed(self, name: str) -> int:
        return self._used[name].total() + self.reserved[name].total()

    def _reserve(self, name: str, lack: Lack, first: bool) -> float | None:
        """Reserves an instance, and returns the requests/s that it carries; None: there is no room for one."""
        own_rest = self._parts[name] - self._claimed(name)
        most = min(own_rest, _smallest(lack)) if first else own_rest
        above = {other: max(0, own.total() - self._parts[other]) for other, own in self._used.items() if other != name}
        room = {
            place: gpus + sum(min(self._used[o][place], above[o]) for o in above) for place, gpus in self._free.items()
        }
        unit = _unit(lack, most, self._free) or _unit(lack, most, room)
        if unit is None:
            return None
        place, tp, rps = unit
        self.reserved[name][place] += tp
        rest = tp - min(tp, self._free[place])
        self._free[place] -= tp - rest
        for other in above:
            back = min(rest, self._used[other][place], above[other])
            self._used[other][place] -= back
            self.given_back[other][place] += back
            rest -= back
        return rps

    def shortage(self, name: str, rps: float, nodes: Sequence[NodeGpus]) -> Shortage | None:
        """Says what a service is short of that has no instance for such a load, or gives back what it needs."""
        ask, got = self._asks[name], self._claimed(name)
        if got >= ask.wanted or (rps <= _EPS and not self.given_back[name].total()):
            return None
        most = ask.share.max_gpus
        if most is not None and got + ask.unit > most:
            return Shortage(ask.wanted, got, rps, max_gpus=most)
        places = [node.place for node in nodes if _kind(node) in ask.on]
        others = {
            other: sum(self._used[other][place] + self.reserved[other][place] for place in places)
            for other in self._asks
            if other != name
        }
        return Shortage(ask.wanted, got, rps, others={other: gpus for other, gpus in others.items() if gpus})


def _kind(node: NodeGpus) -> tuple[str, str, int]:
    """GPUs of one kind are of one type, at one site, on nodes as large: what fits on one fits on all."""
    return node.site, node.gpu, node.gpus


def _kinds(nodes: Sequence[NodeGpus]) -> Mapping[Hashable, int]:
    found: Counter[Hashable] = Counter()
    for node in nodes:
        found[_kind(node)] += node.gpus
    return found


def _ask(service: ServiceNeed, used: int, nodes: Sequence[NodeGpus]) -> Ask:
    """Returns what a service asks for: what it uses, and what it lacks or less what it has more than enough of."""
    least = sum(map(_smallest, service.lacks))
    spare = sum(_spare(lack) for lack in service.lacks)
    wanted = max(min(least, used), used - spare) + _lacked(service.lacks, nodes)
    modes = {(site, mode) for lack in service.lacks for (site, mode), rps in lack.carries.items() if rps > 0.0}
    held = {(site, gpu) for site, _, gpu in service.used}
    on = {
        _kind(node)
        for node in nodes
        if (node.site, node.gpu) in held
        or any((node.site, node.gpu) == (site, mode.gpu) and mode.tp <= node.gpus for site, mode in modes)
    }
    unit = min((mode.tp for _, mode in modes), default=1)
    return Ask(wanted, frozenset(on), unit, least, service.share)


def _spare(lack: Lack) -> int:
    """Returns the GPUs that a class has beyond its load, if they carry as much as the best would: at most that."""
    each = max((rps / mode.tp for (_, mode), rps in lack.carries.items()), default=0.0)
    return int(-lack.rps / each) if lack.rps < 0.0 and each > 0.0 else 0


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


def _lacked(lacks: Sequence[Lack], nodes: Sequence[NodeGpus]) -> int:
    """Returns the GPUs that the lacks would take on empty nodes, were there enough of them."""
    empty = {node.place: node.gpus for node in nodes}
    most, gpus = max(empty.values(), default=0), 0
    for lack in lacks:
        while lack.rps > _EPS and (unit := _unit(lack, most, empty)) is not None:
            _, tp, rps = unit
            alike = max(1, int(lack.rps // rps))  # as long as more is lacking than it carries, it stays the best
            gpus += alike * tp
            lack = replace(lack, rps=lack.rps - alike * rps)
    return gpus
