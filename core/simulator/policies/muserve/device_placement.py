"""Places models as mu-Serve does (section 3.2): groups of devices by a guiding simulation, then devices by sensitivity.

A model takes its devices together, by tensor parallelism, where AlpaServe would also consider a pipeline. So AlpaServe
spreads every model of a group over all of the group's devices, which then have one clock; mu-Serve takes as few devices
for a model as hold it, and Algorithm 2 says which: those whose models are as sensitive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from core.algorithms.placement.model_placement import GroupPlacement, PlacementConfig, Selection, place, select_groups
from core.algorithms.placement.operator_partitions import OperatorGroup
from core.algorithms.placement.own_gpus import Place
from core.controllers.fleet.placement import TOLERANCE, PlacementOption
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.muserve.placement_search import Guide, needs
from core.simulator.policies.muserve.replicas import Replica, Slot, clock_domains, engine_of, model_bytes, scored, sized
from core.simulator.policies.world import World
from core.types import Mode

_SPELLED = 12  # replicas that the summary names


@dataclass(frozen=True, slots=True)
class Placed:
    """Replicas, those of them that share a clock, the share of requests that they serve in time, and how they came
    about."""

    replicas: tuple[Replica, ...]
    domains: tuple[tuple[int, ...], ...]
    attainment: float
    summary: str


class Placer:
    """Finds the placement for a world. `sizes`: of groups, in GPUs; none given: any."""

    def __init__(self, world: World, sizes: Sequence[int], goal: float, guide_s: float | None) -> None:
        self.world, self.goal, self.sizes = world, goal, tuple(sizes)
        self.gpu = _one_gpu_type(world)
        self.node = {
            f"{site.name}/{k}": (site.name, n)
            for site in world.sites
            for k, n in enumerate(
                n for n, node in enumerate(site.nodes) for _ in range(node.gpus) if node.gpu == self.gpu
            )
        }
        if not self.node:
            raise SimulationError(f"sites: none has a {self.gpu}")
        self.number = {service.name: n for n, service in enumerate(world.services)}
        self.needs = [needs(world, service) for service in world.services]
        self.device_bytes = engine_of(replace(self._offered(0)[0], tp=1, kv_capacity_tokens=1)).memory_bytes
        self._guide = Guide(world, goal, guide_s)
        self._known: dict[tuple[tuple[int, tuple[str, ...]], ...], float] = {}

    def option(self, placed: Placed) -> PlacementOption:
        """Returns a placement as the step sees it that chooses among them, as live ones."""
        return PlacementOption(self.counted(placed.replicas), placed.attainment)

    def counted(self, replicas: Iterable[Replica]) -> dict[Place, int]:
        """Counts replicas by site, service and mode."""
        names = [service.name for service in self.world.services]
        kinds = ((r.spec.site, names[r.slot.service], Mode(r.spec.gpu, r.spec.tp)) for r in replicas)
        return dict(Counter(kinds))

    def fewest(self, n: int) -> Mode:
        """Returns the mode with the fewest GPUs that a service's model fits on."""
        return Mode(self.gpu, self._fewest(n).tp)

    def offers(self, n: int, site: str, mode: Mode) -> bool:
        """Says whether a service's model may run in a mode at a site."""
        return self.world.template(self.world.services[n], site, mode) is not None

    def alpaserve(self) -> Placed:
        """Places models on groups, each on all devices of its groups."""
        slots = self._whole(self._selected.placement)
        return self._placed(slots, "on all devices of their groups", self._selected.attainment)

    def power_aware(self, config: PlacementConfig) -> Placed | None:
        """Places on the same groups, with Algorithm 2 within each; None: so the models do not fit.

        Where models as sensitive make a device too busy while others are empty, the empty ones are filled first.
        """
        enough = min(self._selected.attainment, self.goal) - TOLERANCE
        placed = None
        for spread in dict.fromkeys((config.spread, 0.0)):
            slots = self._by_sensitivity(self._selected.placement, replace(config, spread=spread))
            attainment = self._attainment(slots)
            if attainment >= 0.0:
                placed = self._placed(slots, "on devices with models as sensitive", attainment)
            if attainment >= enough:
                break
        return placed

    # -- the first step --------------------------------------------------------------------------------

    @cached_property
    def _selected(self) -> Selection:
        needed = {name: self._bytes(n) for name, n in self.number.items()}
        found = select_groups(tuple(self.node), self.device_bytes, needed, self._guided)
        if missing := [name for name in self.number if not any(name in own for own in found.placement.models)]:
            raise SimulationError(
                f"no group of {self.gpu} takes {', '.join(missing)} and its KV cache: give its group more tp_choices, "
                "or the site more GPUs"
            )
        return found

    def _guided(self, placement: GroupPlacement) -> float:
        """Returns the attainment of a placement, below 0 where it cannot be.

        Groups are alike: what counts is which models meet.
        """
        used = ((g, m) for g, m in zip(placement.groups, placement.models, strict=True) if m)
        key = tuple(sorted((len(group), tuple(sorted(models))) for group, models in used))
        if not self._allowed(placement):
            return -1.0
        if key not in self._known:
            self._known[key] = self._attainment(self._whole(placement))
        return self._known[key]

    def _allowed(self, placement: GroupPlacement) -> bool:
        """Groups in use are within a node, of a size that is asked for and in which every model is offered."""
        return all(
            len({self.node[device] for device in group}) == 1
            and (not self.sizes or len(group) in self.sizes)
            and all(self._template(n, group) is not None for n in self.number.values())
            for group, models in zip(placement.groups, placement.models, strict=True)
            if models
        )

    def _attainment(self, slots: Sequence[Slot]) -> float:
        replicas = sized(slots, self.needs, self.device_bytes)
        if replicas is None:
            return -1.0
        return self._guide.attainment([(replica.slot.service, replica.spec) for replica in replicas])

    def _whole(self, placement: GroupPlacement) -> list[Slot]:
        return [
            self.slot(self.number[name], group)
            for group, models in zip(placement.groups, placement.models, strict=True)
            for name in sorted(models)
        ]

    # -- the second step -------------------------------------------------------------------------------

    def _by_sensitivity(self, selection: GroupPlacement, config: PlacementConfig) -> list[Slot]:
        """Applies Algorithm 2. A group in which it finds no place for a model stays as AlpaServe has it."""
        replicas = Counter(name for models in selection.models for name in models)
        bins = place(selection, self.device_bytes, lambda name, devices: self._shards(name, replicas[name]), config)
        found = []
        for group, models, own in zip(selection.groups, selection.models, bins, strict=True):
            chosen = {name: [d for d in group if d in own.devices_of(name)] for name in sorted(models)}
            if any(len(devices) != self._fewest(self.number[name]).tp for name, devices in chosen.items()):
                chosen = {name: list(group) for name in chosen}
            found += [self.slot(self.number[name], devices) for name, devices in chosen.items()]
        return found

    def _shards(self, name: str, replicas: int) -> tuple[OperatorGroup, ...]:
        """Cuts a model for Algorithm 2: equal parts of a tensor-parallel cut, one for each device that it needs."""
        n = self.number[name]
        template, need = self._fewest(n), self.needs[n]
        operators = scored(template, need, need.rps / replicas)
        scale = self._bytes(n) / sum(operator.memory_bytes for operator in operators) / template.tp
        own = tuple(replace(operator, memory_bytes=operator.memory_bytes * scale) for operator in operators)
        return tuple(OperatorGroup(name, f"{name}[{k}]", own) for k in range(template.tp))

    # -- small things ----------------------------------------------------------------------------------

    def _bytes(self, n: int) -> float:
        return model_bytes(self._offered(n)[0], self.needs[n])

    def _offered(self, n: int) -> list[InstanceSpec]:
        """Returns the model's kinds of instance, from few GPUs to many."""
        model = self.world.services[n].model
        own = (spec for spec in self.world.templates if (spec.model, spec.gpu) == (model, self.gpu))
        return sorted(own, key=lambda spec: spec.tp)

    def _fewest(self, n: int) -> InstanceSpec:
        """Returns the kind with the fewest GPUs that the model fits on."""
        offered = self._offered(n)
        return next((spec for spec in offered if self._bytes(n) <= spec.tp * self.device_bytes), offered[-1])

    def _template(self, n: int, devices: Sequence[str]) -> InstanceSpec | None:
        site, _ = self.node[devices[0]]
        return self.world.template(self.world.services[n], site, Mode(self.gpu, len(devices)))

    def _unused(self) -> str:
        """Says which GPUs of the sites the placement leaves out: it is for one type."""
        others = sorted({gpu for site in self.world.sites for gpu, count in site.gpus.items() if count} - {self.gpu})
        return f" Placed on {self.gpu} only; {' and '.join(others)} stay idle." if others else ""

    def slot(self, n: int, devices: Sequence[str]) -> Slot:
        """Returns a place for a service's model on devices. Raises SimulationError: it is not offered on so many."""
        template = self._template(n, devices)
        if template is None:
            raise SimulationError(f"{self.world.services[n].name}: not offered on {len(devices)} x {self.gpu}")
        return Slot(n, tuple(devices), replace(template, name=self.world.services[n].name))

    def _placed(self, slots: Sequence[Slot], how: str, attainment: float) -> Placed:
        replicas = sized(slots, self.needs, self.device_bytes)
        if replicas is None:
            raise SimulationError("the models leave too little room for their KV cache: give the sites more GPUs")
        spelled = [f"{r.spec.name} on {'+'.join(r.slot.devices)} ({r.spec.gpu_share:.0%})" for r in replicas]
        more = f" and {len(spelled) - _SPELLED} more" if len(spelled) > _SPELLED else ""
        summary = (
            f"{len(replicas)} replicas {how}, {attainment:.1%} in time in {self._selected.simulations} simulations: "
            f"{', '.join(spelled[:_SPELLED])}{more}.{self._unused()}"
        )
        return Placed(tuple(replicas), clock_domains(slots), attainment, summary)


def _one_gpu_type(world: World) -> str:
    """Returns the type of GPU of which there are most among those that every service's model is offered on."""
    gpus = sorted({spec.gpu for spec in world.templates})
    common = [gpu for gpu in gpus if all(any(mode.gpu == gpu for mode in world.modes(s)) for s in world.services)]
    if not common:
        raise SimulationError(
            f"mu-Serve and AlpaServe place on one type of GPU: offer every service on one of {', '.join(gpus)}"
        )
    return max(common, key=lambda gpu: sum(site.gpus.get(gpu, 0) for site in world.sites))
