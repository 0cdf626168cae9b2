"""The fleet that a policy without a loop over instances has of the sites' GPUs, cut as those of live services are.

`core.controllers.fleet.shared_out` cuts it for the declared load, and shares it out anew where that would carry what
comes much better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from core.algorithms.fleet.sharing import Claims
from core.observations.demand.class_view import ClassView, partition_option
from core.observations.fleet.pool_views import serving_class
from core.observations.limits import class_limits, planned
from core.observations.request.request_configs import first_parts
from core.observations.step_configs import shared_out_config
from core.policy.presets import Policy
from core.simulator.kernel.commands import Assign, FleetView, SimCommand
from core.simulator.kernel.simulated import SimulationError
from core.simulator.policies import gpu_cut, loops
from core.simulator.policies.change_round import Want
from core.simulator.policies.config import change_of, period_s, starting_of
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.loops import Decisions, LoopControl
from core.simulator.policies.node_occupancy import InstanceShape
from core.simulator.policies.view_observations import cells_of, class_view, first_view
from core.simulator.policies.world import PartitionInfo, Plan, PoolPlan, ServiceInfo, World
from core.types import CarbonPlan, Loop

# Ends of names, where requests are split: of the pool that does second parts, and of the one that does both, where a
# class has a single instance.
_SECOND, _BOTH = "/second", "/both"


@dataclass(slots=True)
class _Service:
    """A service, and what it has."""

    info: ServiceInfo
    partition: PartitionInfo
    plan: CarbonPlan | None = None


class CutFleet:
    """State of the loop, and its epochs. `routing`: the kernel's word."""

    def __init__(self, policy: Policy, routing: str, world: World) -> None:
        self.policy, self.world, self._routing = policy, world, routing
        in_order = sorted(world.services, key=lambda info: info.name)  # plans are the same whatever order is given
        self.services = [_Service(info, info.partition(policy.knobs.partition)) for info in in_order]
        self._pools = {
            (service.info.name, one.name): loops.pool_name(world, service.info, one.name)
            for service in self.services
            for one in service.partition.classes
        }
        names = list(self._pools.values())
        if self._splits:
            names = [own for name in names for own in (name, name + _SECOND, name + _BOTH)]
        self._names = tuple(names)
        self.fleet = Fleet(world, self._names, starting_of(policy), change_of(policy))
        self._period_s = period_s(policy, Loop.CARBON)

    @property
    def _splits(self) -> bool:
        return self.policy.knobs.split == "prompt"

    def begin(self) -> Plan:
        """Cuts the GPUs for the declared load. Raises SimulationError: no GPU can serve one of the services."""
        view, decisions = first_view(self.world), Decisions()
        self.carbon(view, decisions)
        for service, made in zip(self.services, decisions, strict=True):
            if service.plan is None:
                raise SimulationError(f"{self.policy.name}: {service.info.name}: {made.summary}")
        cell_pool = [""] * self.world.cells
        for service in self.services:
            for cell, pool in self._cell_pools(service).items():
                cell_pool[cell] = pool
        controls = loops.controls([LoopControl(str(Loop.CARBON), self._period_s, self.carbon, self.fleet)], self.fleet)
        return Plan(loops.first_members(self.fleet, view), tuple(self._plans()), tuple(cell_pool), controls)

    def carbon(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Shares the GPUs out for every service, one after another within what the others leave."""
        commands: list[SimCommand] = []
        config = shared_out_config(self.policy.knobs, self.policy.knobs.tp)
        views = {service.info.name: self._views(service, view) for service in self.services}
        for service in self.services:
            before, found = service.plan, self._claims(views)
            nodes = found.left(service.info.name)
            option = partition_option(service.partition.name, views[service.info.name])
            service.plan, effects = gpu_cut.cut(
                self.world, service.info, nodes, option, config, before, view.now_s, self._period_s
            )
            why = effects.rationale
            made = loops.decision(view, Loop.CARBON, why.reason, why.summary + found.short(service.info.name))
            decisions.append(loops.with_faults(made, views[service.info.name]))
            if before is not None and service.plan != before:
                commands.append(Assign(self._cell_pools(service)))
        self.fleet.want(self._wanted())
        return commands

    # -- observations ----------------------------------------------------------------------------------

    def _views(self, service: _Service, view: FleetView) -> list[ClassView]:
        knobs, modes, found = self.policy.knobs, self.world.modes(service.info), []
        for number, one in enumerate(service.partition.classes):
            kept = class_limits(one.limits, one.thresholds, knobs)
            own = replace(one, limits=planned(kept, knobs.plan_ttft_share, knobs.plan_tpot_share))
            cells = cells_of(service.partition, number)
            found.append(class_view(self.world, service.info, own, cells, view, self._period_s, 1, modes))
        return found

    def _claims(self, views: Mapping[str, Sequence[ClassView]]) -> Claims:
        """Returns what each service has and needs of the nodes."""
        return self.world.claims(
            gpu_cut.need(
                self.world, own.info, own.plan.workers if own.plan else {}, views[own.info.name], self.policy.knobs
            )
            for own in self.services
        )

    # -- what follows ----------------------------------------------------------------------------------

    def _wanted(self) -> dict[Want, int]:
        found: Counter[Want] = Counter()
        for service in self.services:
            for name, shapes in self._shapes(service).items():
                pool, firsts = self._pool(service, name, len(shapes)), len(shapes)
                if self._splits and len(shapes) > 1:
                    firsts = first_parts(len(shapes), self.policy.tuning.split.first_share)
                for n, shape in enumerate(shapes):
                    found[self._names.index(pool if n < firsts else pool + _SECOND), shape] += 1
        return dict(found)

    def _shapes(self, service: _Service) -> dict[str, list[InstanceShape]]:
        """Returns the instances that each class has by the plan; a mode that its site does not offer stays out."""
        found: dict[str, list[InstanceShape]] = {}
        for (site, name, mode), count in sorted(service.plan.workers.items()) if service.plan else ():
            if self.world.template(service.info, site, mode) is None:
                continue
            found.setdefault(name, []).extend([loops.kind(service.info, site, mode)] * count)
        return found

    def _pool(self, service: _Service, name: str, instances: int) -> str:
        """Returns the pool to which requests of a class go that has so many instances."""
        return self._pools[service.info.name, name] + (_BOTH if self._splits and instances == 1 else "")

    def _cell_pools(self, service: _Service) -> dict[int, str]:
        names = [own.name for own in service.partition.classes]
        shapes = self._shapes(service)
        serving = serving_class(names, shapes)
        pool = {name: self._pool(service, serving[name], len(shapes.get(serving[name], ()))) for name in names}
        return {cell: pool[names[number]] for cell, number in service.partition.cell_class.items()}

    def _plans(self) -> list[PoolPlan]:
        if not self._splits:
            by_service = [[self._pools[own.info.name, c.name] for c in own.partition.classes] for own in self.services]
            return list(loops.class_plans(by_service, self._routing, self.policy.knobs.engine_queue))
        found, tuned = [], self.policy.tuning.split
        for (owner, _), name in self._pools.items():
            info = next(service.info for service in self.services if service.info.name == owner)
            handed_over = loops.handover(self.world, info, name + _SECOND, tuned)
            found.append(PoolPlan(name, self._routing, handed_over))
            found += [PoolPlan(name + end, self._routing) for end in (_SECOND, _BOTH)]
        return found
