"""Lets policies of one service serve several.

Each service has a lot: whole nodes of one site, or of one type of GPU, and on them a policy of its own that sees no
other service. Lots are made once, from what is declared (`core.algorithms.fleet.whole_nodes`). A service that
is alone has the whole fleet, up to its ceiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from core.algorithms.fleet.sharing import NodeGpus
from core.algorithms.fleet.whole_nodes import whole_nodes
from core.observations.fleet import dynamo_servers
from core.simulator.kernel.commands import (
    Answer,
    Assign,
    Control,
    Decision,
    FleetView,
    Move,
    Placement,
    RequestView,
    Reshard,
    Router,
    SimCommand,
    Start,
)
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies import gpu_cut
from core.simulator.policies.view_observations import class_view, first_view
from core.simulator.policies.world import (
    ClassInfo,
    Member,
    PartitionInfo,
    Plan,
    PoolPlan,
    ServiceInfo,
    SiteInfo,
    World,
)
from core.types import Mode, Reason

_HEADROOM = 2.0  # of what is declared, over which a site of its own is worth no more to a service than one it shares


class Lot(StrEnum):
    """The part of a fleet that several services share by whole nodes: a site, whose instances are DynaServe's pairs; or
    one type of GPU at all sites, of which DynamoLLM's servers are made."""

    SITE = "site"
    SERVERS = "servers"


def lots(world: World, lot: Lot) -> tuple[World, ...]:
    """Returns a world for each service; the world itself when it is one service's that has no ceiling.

    Raises:
        SimulationError: There is no node for one of the services.
    """
    if len(world.services) == 1 and world.services[0].share.max_gpus is None:
        return (world,)
    seen = {
        service.name: class_view(
            world, service, ClassInfo(service.name), _cells(service), first_view(world), 0.0, 1, world.modes(service)
        )
        for service in world.services
    }
    services = {service.name: service for service in world.services}

    servers = {
        (name, gpu): _server(world, service, gpu)
        for name, service in services.items()
        for gpu in sorted({node.gpu for node in world.nodes})
    }

    def carries(name: str, node: NodeGpus) -> float:
        own = [mode for mode in world.modes(services[name], node.site) if mode.gpu == node.gpu]
        if lot is Lot.SERVERS:
            own = [mode for mode in own if mode == servers[name, node.gpu]]
        return max((node.gpus // mode.tp * seen[name].profiles[mode].max_rps for mode in own), default=0.0)

    needs = {name: _HEADROOM * own.demand.demand_rps[0] for name, own in seen.items()}
    try:
        shares = {name: own.share for name, own in services.items()}
        shared = whole_nodes(world.nodes, needs, carries, lambda node: _lot_of(node, lot), shares)
    except ValueError as error:
        raise SimulationError(
            f"service {error} finds no part of the fleet: each needs a node for itself on which its model fits, within "
            "its max_gpus; give the sites more nodes, or its group more tp_choices, or take another policy"
        ) from error
    return tuple(_lot_world(world, service, shared[service.name]) for service in world.services)


def _lot_of(node: NodeGpus, lot: Lot) -> tuple[str, ...]:
    return (node.site,) if lot is Lot.SITE else (node.gpu,)


def _server(world: World, service: ServiceInfo, gpu: str) -> Mode | None:
    modes = world.modes(service)
    nodes = [node for node in gpu_cut.offered(world, service, world.nodes) if node.gpu == gpu]
    return dynamo_servers.server_mode(nodes, lambda mode: mode in modes)


def _cells(service: ServiceInfo) -> range:
    """Returns the service's cells, which follow one another."""
    own = service.partitions[0].cell_class
    return range(min(own), max(own) + 1)


def _lot_world(world: World, service: ServiceInfo, nodes: Sequence[NodeGpus]) -> World:
    cells = _cells(service)
    sites = tuple(_part(site, [node for node in nodes if node.site == site.name]) for site in world.sites)
    gpus = {site.name: site.gpus for site in sites}
    return replace(
        world,
        sites=tuple(site for site in sites if site.gpus),
        services=(replace(service, partitions=tuple(_from_first(own, cells) for own in service.partitions)),),
        templates=tuple(
            replace(spec, owner=service.name)
            for spec in world.templates
            if spec.model == service.model and spec.gpu in gpus[spec.site]
        ),
        cells=len(cells),
        declared=world.declared[cells.start : cells.stop],
    )


def _part(site: SiteInfo, nodes: Sequence[NodeGpus]) -> SiteInfo:
    """Returns the site with those of its nodes alone."""
    gpus: Counter[str] = Counter()
    sizes: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        gpus[node.gpu] += node.gpus
        sizes[node.gpu] = (*sizes.get(node.gpu, ()), node.gpus)
    listed = {name: sizes[name] for name in site.sizes if name in sizes}
    return replace(site, gpus={name: gpus[name] for name in site.gpus if gpus[name]}, sizes=listed)


def _from_first(partition: PartitionInfo, cells: range) -> PartitionInfo:
    return replace(partition, cell_class={cell - cells.start: n for cell, n in partition.cell_class.items()})


def begin_in_lots(begin: Callable[[Any, World], Plan], config: Any, world: World, lot: Lot) -> Plan:
    """Begins the policy in each lot, and makes one plan of all.

    Raises:
        SimulationError: There is no lot for one of the services, or the policy cannot serve in its lot.
    """
    parts = lots(world, lot)
    if parts == (world,):
        return begin(config, world)
    members: list[Member] = []
    pools: list[PoolPlan] = []
    cell_pool: list[str] = []
    controls: list[Control] = []
    lenses: list[_Lens] = []
    routers: list[Router | None] = []
    for service, part in zip(world.services, parts, strict=True):
        plan = begin(config, part)
        lens = _Lens(service.name, _cells(service), range(len(pools), len(pools) + len(plan.pools)))
        members += [
            replace(member, spec=lens.named(member.spec), pool=lens.name(member.pool)) for member in plan.members
        ]
        pools += [lens.pool(pool) for pool in plan.pools]
        cell_pool += [lens.name(pool) for pool in plan.cell_pool]
        begun = Decision(0.0, "lots", str(Reason.POLICY), _summary(config.name, service, part), 0)
        slowest = max(plan.controls, key=lambda control: control.period_s, default=None)
        controls += [LotControl(own, lens, begun if own is slowest else None) for own in plan.controls]
        lenses.append(lens)
        routers.append(plan.router)
    found = [router for router in routers if router is not None]
    return Plan(
        tuple(members),
        tuple(pools),
        tuple(cell_pool),
        tuple(controls),
        SliceRouter(found, lenses) if found else None,
    )


def _summary(policy: str, service: ServiceInfo, part: World) -> str:
    there = [
        " and ".join(f"{count} {name}" for name, count in sorted(site.gpus.items())) + f" at {site.name}"
        for site in part.sites
    ]
    return f"{service.name} has {', '.join(there)} for itself, as {policy} sees one service."


class _Lens:
    """A service's part of the fleet as its policy sees it: its cells, its pools, and its instances in the order in
    which they appeared, each by numbers of its own."""

    def __init__(self, owner: str, cells: range, pools: range) -> None:
        self._owner, self.cells, self._pools = owner, cells, pools
        self._slots: list[int] = []
        self._instances: tuple[InstanceSpec, ...] = ()
        self._looked_at = 0

    def see(self, view: FleetView) -> FleetView:
        if self._looked_at < len(view.instances):
            new = range(self._looked_at, len(view.instances))
            self._slots += [slot for slot in new if view.instances[slot].owner == self._owner]
            self._instances = tuple(view.instances[slot] for slot in self._slots)
            self._looked_at = len(view.instances)
        own, first = np.array(self._slots, np.int64), self._pools.start
        pool = view.pool[own]
        return FleetView(
            view.now_s,
            self._instances,
            view.state[own],
            np.where(pool < 0, pool, pool - first),
            view.mhz[own],
            view.running[own],
            view.waiting[own],
            view.kv_used_tokens[own],
            view.ttft_s[own],
            view.tpot_s[own],
            view.e2e_s[own],
            tuple(number - first for number in view.cell_pool[self.cells.start : self.cells.stop]),
            view.unplaced[first : self._pools.stop],
            view.arrived[self.cells.start : self.cells.stop],
            lambda instance: view.sequences(self._slots[instance]),
        )

    def slot(self, instance: int) -> int:
        """Returns the instance's place in the whole view; below 0 it is none."""
        return self._slots[instance] if instance >= 0 else instance

    def name(self, own: str) -> str:
        return own if own == self._owner else f"{self._owner}/{own}"

    def named(self, spec: InstanceSpec) -> InstanceSpec:
        return replace(spec, name=self.name(spec.name))

    def pool(self, plan: PoolPlan) -> PoolPlan:
        handover = None if plan.handover is None else replace(plan.handover, to=self.name(plan.handover.to))
        return replace(plan, name=self.name(plan.name), handover=handover, spills=tuple(map(self.name, plan.spills)))

    def command(self, command: SimCommand) -> SimCommand:
        """Returns a command of the lot's policy for the whole fleet; instances have one name in both."""
        if isinstance(command, Start):
            return replace(command, spec=self.named(command.spec), pool=self.name(command.pool))
        if isinstance(command, Move):
            return replace(command, pool=self.name(command.pool))
        if isinstance(command, Reshard):
            return replace(command, into=tuple(self.named(spec) for spec in command.into))
        if isinstance(command, Assign):
            return Assign({self.cells.start + cell: self.name(pool) for cell, pool in command.pools.items()})
        return command


@dataclass(slots=True)
class LotControl:
    """A loop of a lot's policy as a Control of the whole fleet. `begun`: what is logged first, before its own."""

    control: Control
    lens: _Lens
    begun: Decision | None = None

    @property
    def name(self) -> str:
        return self.control.name

    @property
    def period_s(self) -> float:
        return self.control.period_s

    def step(self, view: FleetView) -> Answer:
        answer = self.control.step(self.lens.see(view))
        begun, self.begun = self.begun, None
        return Answer(
            tuple(self.lens.command(command) for command in answer.commands),
            (*(() if begun is None else (begun,)), *answer.decisions),
        )


class SliceRouter:
    """Asks the router of a request's service."""

    def __init__(self, routers: Sequence[Router], lenses: Sequence[_Lens]) -> None:
        self._routers, self._lenses = routers, lenses
        self.tick_s = min(router.tick_s for router in routers)

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        lens, router = self._lenses[request.service], self._routers[request.service]
        own = replace(request, cell=request.cell - lens.cells.start, service=0)
        found = router.place(own, lens.see(view))
        if found is None:
            return None
        commands = tuple(lens.command(command) for command in found.commands)
        return Placement(lens.slot(found.instance), found.split, lens.slot(found.second), commands)
