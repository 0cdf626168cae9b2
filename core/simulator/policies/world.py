"""The values that a policy knows of the fleet before it starts, and those that it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.algorithms.fleet.sharing import Claims, NodeGpus, ServiceNeed, claims
from core.engine import gpu_slices
from core.engine.overheads import Overheads
from core.observations.demand.class_view import typical_lengths
from core.observations.limits import LONG_ANSWER
from core.policy.dynamo_classes import strictest
from core.policy.knobs import DYNAMO, WHOLE, WHOLE_CLASS
from core.predictors.output_length import PRIOR_OUTPUT_TOKENS
from core.simulator.kernel.commands import STRETCH_S, Control, Router
from core.simulator.kernel.simulated import Handover, InstanceSpec, SimulationError
from core.types import Limits, Mode, ModeProfile

GPUS_PER_NODE = 8
_MINUTE_S = 60.0

# (site, from_s, to_s, step_s) -> grams, or dollars, a kWh of each step, None where the feed has none
Ahead = Callable[[str, float, float, float], tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """A site: its GPUs by type, on nodes of `gpus_per_node` (the last one of a type may be smaller), or on those that
    `sizes` lists by type.

    `power_cap_w`: most that it may draw, PUE included; None: there is no cap.
    """

    name: str
    gpus: Mapping[str, int]
    pue: float = 1.0
    gpus_per_node: int = GPUS_PER_NODE
    power_cap_w: float | None = None
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[NodeGpus, ...]:
        found = []
        for gpu, count in sorted(self.gpus.items()):
            sizes = self.sizes.get(gpu) or alike(count, self.gpus_per_node)
            if gpu_slices.is_slice(gpu):  # no instance has two: for plans each is a node of its own
                sizes = (1,) * count
            for n, size in enumerate(sizes):
                found.append(NodeGpus(self.name, f"{gpu}/{n:05}", gpu, size))
        return tuple(found)


def alike(gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Returns the GPUs of each node where all nodes but the last are as large."""
    whole, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * whole + (rest,) * bool(rest)


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A request class of a partition, with limits. Bounds as in `core.policy.request_classes`: lower inclusive, upper
    exclusive. `thresholds`: of its own, which count beside `limits` where a policy has `class_limits`, and for clocks.
    `profiles`: of modes, as measured or published elsewhere. `profiled`: all classes of its partition have some.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    input_min: int = 0
    input_max: int | None = None
    output_min: int = 0
    output_max: int | None = None
    thresholds: Limits = field(default_factory=Limits)
    profiles: Mapping[Mode, ModeProfile] = field(default_factory=dict)
    profiled: bool = False

    @property
    def typical_tokens(self) -> tuple[float, float]:
        """Lengths to plan with when none are known: typical ones, brought within the bounds."""
        own = typical_lengths(self.input_min, self.input_max, self.output_min, self.output_max)
        return own.prompt_tokens, own.output_tokens


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One way to cut a service's requests. `cell_class`: for each of the service's cells the class it falls in."""

    name: str
    classes: tuple[ClassInfo, ...]
    cell_class: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """A service: its model and engine, and the partitions to choose from. The first is the one to begin with.

    `long_tokens`: what one predicted length in a hundred exceeds. `share`: what its operator says of its part of the
    GPUs.
    """

    name: str
    model: str
    partitions: tuple[PartitionInfo, ...]
    engine: str = "vllm-v1"
    long_tokens: float = LONG_ANSWER * PRIOR_OUTPUT_TOKENS
    share: Share = EQUAL

    def partition(self, name: str) -> PartitionInfo:
        """Returns the partition of a name. Where the service has none of the two that every policy knows: `whole` is
        made of its first one's classes, and for `dynamo` stands the first one itself.

        Raises:
            SimulationError: There is no such partition.
        """
        known = {own.name: own for own in self.partitions}
        if name in known:
            return known[name]
        first = self.partitions[0]
        if name == WHOLE:
            return PartitionInfo(WHOLE, (_of_all(first.classes),), dict.fromkeys(first.cell_class, 0))
        if name == DYNAMO:
            return first
        raise SimulationError(f"policy.partition: unknown '{name}'; known: {', '.join((*known, WHOLE))}")


def _of_all(classes: Sequence[ClassInfo]) -> ClassInfo:
    """All classes as one: every request is to keep the tightest limits, but for E2E, which goes with the length."""
    e2e = [own.limits.e2e_s for own in classes]
    longest = None if None in e2e else max(value for value in e2e if value is not None)
    return ClassInfo(WHOLE_CLASS, replace(strictest(own.limits for own in classes), e2e_s=longest))


@dataclass(frozen=True, slots=True)
class CellLoad:
    """The load that is expected of a cell before anything is seen: its peak 5-second rate and mean lengths.

    `minute_rps`: its rate in the busiest minute; None: unknown.
    """

    rps: float
    prompt_tokens: float
    output_tokens: float
    minute_rps: float | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Everything a policy starts from.

    `templates`: the kinds of instance that may run, one for each (site, GPU, TP, model). `declared[c]`: what is
    expected of cell c; None or an empty tuple: nothing is.
    """

    sites: tuple[SiteInfo, ...]
    services: tuple[ServiceInfo, ...]
    templates: tuple[InstanceSpec, ...]
    cells: int
    declared: tuple[CellLoad | None, ...] = ()
    overheads: Overheads = field(default_factory=Overheads)
    intensity: Ahead = field(default=lambda site, from_s, to_s, step_s: ())
    prices: Ahead = field(default=lambda site, from_s, to_s, step_s: ())

    def __post_init__(self) -> None:
        names = {site.name for site in self.sites}
        for spec in self.templates:
            if spec.costs is not None:
                raise SimulationError(f"{spec.name}: a policy that scales needs model and gpu, not fixed_costs")
            if spec.site not in names:
                raise SimulationError(f"{spec.name}: site '{spec.site}' is not among the sites: {', '.join(names)}")
        for service in self.services:
            if not any(spec.model == service.model for spec in self.templates):
                raise SimulationError(f"service {service.name}: no fleet group runs its model {service.model}")

    @property
    def nodes(self) -> tuple[NodeGpus, ...]:
        return tuple(node for site in self.sites for node in site.nodes)

    def claims(self, needs: Iterable[ServiceNeed]) -> Claims:
        """Returns the claims of services. One that is alone, without a ceiling, may plan with everything: what it needs
        is not asked for then."""
        if len(self.services) == 1 and self.services[0].share.max_gpus is None:
            return Claims(self.nodes, {}, {}, {})
        return claims(self.nodes, tuple(needs))

    def site(self, name: str) -> SiteInfo:
        return next(site for site in self.sites if site.name == name)

    def template(self, service: ServiceInfo, site: str, mode: Mode) -> InstanceSpec | None:
        for spec in self.templates:
            if (spec.site, spec.model, spec.gpu, spec.tp) == (site, service.model, mode.gpu, mode.tp):
                return spec
        return None

    def modes(self, service: ServiceInfo, site: str | None = None) -> tuple[Mode, ...]:
        """Returns the modes that the service may run in, at a site or at any."""
        found = {Mode(s.gpu, s.tp) for s in self.templates if s.model == service.model and site in (None, s.site)}
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Member:
    """An instance that serves from the first second on."""

    spec: InstanceSpec
    pool: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A pool, which may be empty at first. All but the name are PoolSpec's."""

    name: str
    routing: str
    handover: Handover | None = None
    most_unstarted: int = 0
    spills: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's answer: who serves at first, the pools, the pool of each cell, the loops that change all that, who
    places requests in the place of the pools' routing, and the limits of each cell for clocks by deadlines."""

    members: tuple[Member, ...]
    pools: tuple[PoolPlan, ...]
    cell_pool: tuple[str, ...]
    controls: tuple[Control, ...]
    router: Router | None = None
    cell_limits: tuple[Limits, ...] = ()


def declared_loads(
    arrival_s: NDArray[np.float64],
    cell: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    cells: int,
) -> tuple[CellLoad | None, ...]:
    """Returns what an operator would declare of requests, (n,) each: of each cell the peak rates and mean lengths.

    A cell without any request gets None.
    """
    found: list[CellLoad | None] = []
    for c in range(cells):
        mine = cell == c
        if not mine.any():
            found.append(None)
            continue
        peak, minute = (
            int(np.bincount((arrival_s[mine] // stretch_s).astype(np.int64)).max()) / stretch_s
            for stretch_s in (STRETCH_S, _MINUTE_S)
        )
        lengths = (float(prompt_tokens[mine].mean()), float(output_tokens[mine].mean()))
        found.append(CellLoad(peak, *lengths, minute_rps=minute))
    return tuple(found)
