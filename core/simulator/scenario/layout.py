"""Builds pools, their instances and the loops that change them from a scenario's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.engine.engine_model import engine_model
from core.observations.limits import LONG_ANSWER
from core.predictors.output_length import PRIOR_OUTPUT_TOKENS
from core.simulator.fields import ScenarioError
from core.simulator.kernel.commands import Control, Router
from core.simulator.kernel.objectives import Labels, Slo
from core.simulator.kernel.outcome import Floats, Ints
from core.simulator.kernel.simulated import FleetSpec, Handover, InstanceSpec, Load, PoolSpec
from core.simulator.policies import (
    CellLoad,
    ClassInfo,
    PartitionInfo,
    PolicyConfig,
    ServiceInfo,
    SiteInfo,
    StaticConfig,
    World,
    build,
    declared_loads,
    with_rules,
)
from core.simulator.policies.loops import spills
from core.simulator.policies.scheduling import Served
from core.simulator.scenario.class_cells import Cells, Partition
from core.simulator.scenario.scenario import DEFAULT_SITE, ROLES, DeclaredLoad, Group, Scenario, Service, SiteFleet
from core.simulator.site_series import Site
from core.types import Limits

_SURELY_OVERLOADED = 1.25  # the steady-state estimate is good to about a tenth
_SUSTAINED_S = 300.0  # a shorter burst may well exceed what the fleet can do


@dataclass(frozen=True, slots=True)
class Layout:
    """A fleet to begin with, what changes it, and what its numbers stand for."""

    fleet: FleetSpec
    labels: Labels
    controls: tuple[Control, ...] = ()
    router: Router | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """The requests at hand, as far as laying out a fleet needs them. Arrays have an entry for each cell."""

    span_s: float
    requests: Ints
    prompt_tokens: Ints  # sums
    output_tokens: Ints
    alone_s: Floats  # sums of what they take alone
    declared: tuple[CellLoad | None, ...]
    predicted: tuple[Ints, ...]  # lengths, one by one

    @classmethod
    def of(cls, loads: Sequence[Load], cells: int) -> Traffic:
        at_s, cell, prompt, output, predicted, alone_s = (
            np.concatenate([getattr(load, name) for load in loads])
            for name in ("arrival_s", "cell", "prompt_tokens", "output_tokens", "predicted_tokens", "lat_s")
        )

        def sums(weights: Ints | Floats) -> Floats:
            return np.bincount(cell, weights=weights, minlength=cells).astype(np.float64)

        return cls(
            float(at_s[-1] - at_s[0]),
            np.bincount(cell, minlength=cells),
            sums(prompt).astype(np.int64),
            sums(output).astype(np.int64),
            sums(alone_s),
            declared_loads(at_s, cell, prompt, output, cells),
            tuple(predicted[cell == c] for c in range(cells)),
        )

    def long_tokens(self, service: Service, cells: slice) -> float:
        """Returns what one predicted length in a hundred exceeds: by what a service declares, or else by the requests
        at hand."""
        if service.declared is None and (seen := np.concatenate(self.predicted[cells])).size:
            return float(np.percentile(seen, 99.0))
        if not service.declared:
            return LONG_ANSWER * PRIOR_OUTPUT_TOKENS
        means, rps = zip(*((load.output_tokens, load.rps) for load in service.declared), strict=True)
        return LONG_ANSWER * float(np.average(means, weights=rps))


def _labels(scenario: Scenario, pools: Sequence[str]) -> Labels:
    several = len(scenario.services) > 1
    classes = [(s.name, c) for s in scenario.services for c in s.classes]
    cells = [(s.name, s.cells.name(k)) for s in scenario.services for k in range(len(s.cells))]
    return Labels(
        classes=tuple(f"{service}/{c.name}" if several else c.name for service, c in classes),
        slos=tuple(c.slo for _, c in classes),
        services=tuple(service.name for service in scenario.services),
        tenants=scenario.tenants,
        cells=tuple(f"{service} {name}" if several else name for service, name in cells),
        pools=tuple(pools),
    )


# -- policies that change nothing ------------------------------------------------------------------


def static_fleet(scenario: Scenario, config: StaticConfig, traffic: Traffic) -> Layout:
    """Builds pools by policy, for each service on the groups that serve it.

    single_pool, least_loaded: every instance in one pool. multi_pool: a pool for each class. disaggregated: groups of
    role `first` hand over to those of role `second`. In a pool requests go by the policy's route.

    Raises:
        ScenarioError: The groups do not go with the policy.
    """
    specs = [spec for group in scenario.groups for spec in group.instances]
    pools: list[PoolSpec] = []
    cell_pool: list[int] = []
    first_cell = 0
    for service, groups in zip(scenario.services, _groups_by_service(scenario), strict=True):
        cells = len(service.cells)
        part = slice(first_cell, first_cell + cells)
        served = Served([limits_of(c.slo) for c in service.classes], traffic.long_tokens(service, part))
        for i in (i for _, members in groups for i in members):
            specs[i] = with_rules(specs[i], config, served)
        own, serving = _service_pools(scenario, config, service, groups, traffic.alone_s[part])
        cell_pool += [len(pools) + pool for pool in serving]
        pools += [replace(pool, routing=config.routing) for pool in own]
        first_cell += cells
    fleet = FleetSpec(tuple(specs), tuple(pools), tuple(cell_pool))
    return Layout(fleet, _labels(scenario, [pool.name for pool in pools]))


def _groups_by_service(scenario: Scenario) -> list[list[tuple[Group, range]]]:
    """Returns for each service the groups that serve it, with their instances' numbers.

    Each group serves one service.
    """
    found: list[list[tuple[Group, range]]] = [[] for _ in scenario.services]
    first = 0
    for group in scenario.groups:
        members = range(first, first + len(group.instances))
        first = members.stop
        model = group.instances[0].model
        mine = [
            n
            for n, service in enumerate(scenario.services)
            if service.name in group.services or (not group.services and service.model in (None, model))
        ]
        if len(mine) != 1:
            raise ScenarioError(
                f"fleet: group {group.instances[0].name.rpartition('-')[0]} serves {len(mine)} services; "
                "name one in its services"
            )
        found[mine[0]].append((group, members))
    for service, groups in zip(scenario.services, found, strict=True):
        if not groups:
            raise ScenarioError(f"fleet: no group serves {service.name}; name it in the services of one")
    return found


def _service_pools(
    scenario: Scenario, config: StaticConfig, service: Service, groups: list[tuple[Group, range]], work_s: Floats
) -> tuple[list[PoolSpec], list[int]]:
    """Returns the pools of a service, and for each of its cells which of them serves it. `work_s`: of its cells."""
    prefix = f"{service.name}/" if len(scenario.services) > 1 else ""
    members = tuple(i for _, own in groups for i in own)
    cells = len(service.cells)
    if config.name == "disaggregated":
        return _two_stages(scenario, prefix, groups), [0] * cells
    if config.name != "multi_pool":
        return [PoolSpec(f"{prefix}all", members)], [0] * cells
    if all(len(own.classes) < 2 for own in scenario.services):
        raise ScenarioError("classes: multi_pool needs at least two request classes; give them, or take another policy")
    class_of_cell = service.cells.classes(service.partitions[0])
    if any(group.classes for group, _ in groups):
        pools, serving = _declared_pools(service, prefix, groups)
    else:
        weight = np.zeros(len(service.classes))
        np.add.at(weight, list(class_of_cell), work_s)
        pools, serving = _shared_out(service, prefix, members, weight), list(range(len(service.classes)))
    return _that_spill(pools, config.policy.knobs.engine_queue), [serving[k] for k in class_of_cell]


def _that_spill(pools: Sequence[PoolSpec], engine_queue: int) -> list[PoolSpec]:
    """Returns pools, in the order of their classes, whose requests go to the others where they have no room."""
    names = [pool.name for pool in pools]
    return [replace(own, most_unstarted=engine_queue, spills=spills(names, n)) for n, own in enumerate(pools)]


def _two_stages(scenario: Scenario, prefix: str, groups: list[tuple[Group, range]]) -> list[PoolSpec]:
    """Returns the pools that serve a request's first part and the rest of it."""
    members = {role: tuple(i for g, own in groups if g.role == role for i in own) for role in ROLES}
    if empty := [role for role in ROLES if not members[role]]:
        raise ScenarioError(f"fleet: disaggregated needs a group of role {empty[0]}; give each group its role")
    handover = scenario.handover or Handover(ROLES[1], token_s=1.0 / 50e9, latency_s=0.001)
    spec = next(g.instances[0] for g, _ in groups)
    token_bytes = 0.0
    if spec.costs is None:
        token_bytes = engine_model(spec.model, spec.gpu, spec.tp, spec.engine).constants.kv_bytes
    handover = replace(handover, to=prefix + ROLES[1], token_s=handover.token_s * token_bytes)
    return [
        PoolSpec(prefix + ROLES[0], members[ROLES[0]], handover=handover),
        PoolSpec(prefix + ROLES[1], members[ROLES[1]]),
    ]


def _shared_out(service: Service, prefix: str, members: tuple[int, ...], weight: Floats) -> list[PoolSpec]:
    """Makes a pool for each class, in proportion to its work."""
    if len(members) < weight.size:
        raise ScenarioError(
            f"fleet: {len(members)} instances cannot make a pool for each of {weight.size} classes; "
            "raise count, or let a group serve several (classes: [...])"
        )
    shares = _share_out(len(members), weight)
    ends = np.cumsum(shares).tolist()
    return [
        PoolSpec(prefix + c.name, members[end - share : end])
        for c, end, share in zip(service.classes, ends, shares, strict=True)
    ]


def _declared_pools(
    service: Service, prefix: str, groups: list[tuple[Group, range]]
) -> tuple[list[PoolSpec], list[int]]:
    members: dict[tuple[str, ...], list[int]] = {}
    for group, own in groups:
        if not group.classes:
            raise ScenarioError("fleet: under multi_pool each group must say its classes, or none may")
        members.setdefault(group.classes, []).extend(own)
    pools = [PoolSpec(prefix + "+".join(names), tuple(own)) for names, own in members.items()]
    serving = []
    for request_class in service.classes:
        found = [n for n, names in enumerate(members) if request_class.name in names]
        if len(found) != 1:
            raise ScenarioError(
                f"fleet: class {request_class.name} is served by {len(found)} pools; name it in the classes of groups "
                "that serve exactly the same classes"
            )
        serving.append(found[0])
    return pools, serving


def _share_out(count: int, weight: Floats) -> list[int]:
    """Returns whole shares of `count`, at least one each, as near to the weights as can be (largest remainder)."""
    spare = count - weight.size
    total = float(weight.sum())
    exact = spare * weight / total if total > 0.0 else np.full(weight.size, spare / weight.size)
    shares = np.floor(exact).astype(np.int64)
    for k in np.argsort(-(exact - shares), kind="stable")[: spare - int(shares.sum())]:
        shares[k] += 1
    return [int(share) + 1 for share in shares]


def check_load(fleet: FleetSpec, traffic: Traffic) -> None:
    """Refuses a load that the fleet can never serve.

    Raises:
        ScenarioError: A pool would get more than its instances can do.
    """
    if traffic.span_s < _SUSTAINED_S:
        return
    for n, pool in enumerate(fleet.pools):
        mine = np.flatnonzero(np.array(fleet.cell_pool) == n)
        requests = int(traffic.requests[mine].sum())
        if not requests or pool.handover is not None:
            continue
        prompt, output = (float(c[mine].sum()) / requests for c in (traffic.prompt_tokens, traffic.output_tokens))
        rate_rps = requests / traffic.span_s
        most_rps = sum(_most_rps(fleet.instances[i], prompt, output) for i in pool.members)
        if rate_rps > _SURELY_OVERLOADED * most_rps:
            raise ScenarioError(
                f"pool {pool.name} can never serve its load: {rate_rps:.3g} requests a second of {prompt:.0f} prompt "
                f"and {output:.0f} output tokens, where its {len(pool.members)} instances do at most about "
                f"{most_rps:.3g}; add instances (fleet.count), lower the rate, or say overload: allow"
            )


def _most_rps(spec: InstanceSpec, prompt: float, output: float) -> float:
    if spec.costs is None:
        model = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
        return model.max_rps(prompt, output, spec.mhz, Limits())
    costs, batch = spec.costs, spec.max_sequences
    return 1.0 / (costs.prefill_token_s * prompt + (output - 1.0) * costs.decode_s + output * costs.base_s / batch)


# -- policies that do ------------------------------------------------------------------------------


def dynamic_fleet(scenario: Scenario, config: PolicyConfig, traffic: Traffic) -> Layout:
    """Builds the policy's own first fleet, on the GPUs of the sites. The declared load is that of the requests at hand.

    Raises:
        SimulationError: The policy cannot serve such a scenario.
    """
    world = _seen(scenario, world_of(scenario, _declared(scenario, traffic)), traffic)
    plan = build(config, world)
    names = [pool.name for pool in plan.pools]
    pools = tuple(
        PoolSpec(
            pool.name,
            tuple(i for i, m in enumerate(plan.members) if m.pool == pool.name),
            pool.routing,
            pool.handover,
            pool.most_unstarted,
            pool.spills,
        )
        for pool in plan.pools
    )
    fleet = FleetSpec(
        tuple(member.spec for member in plan.members),
        pools,
        tuple(names.index(name) for name in plan.cell_pool),
        tuple(member.weight for member in plan.members),
        plan.cell_limits,
    )
    return Layout(fleet, _labels(scenario, names), plan.controls, plan.router)


def _seen(scenario: Scenario, world: World, traffic: Traffic) -> World:
    """Returns the world with what each service's long requests are predicted to take."""
    ends = np.cumsum([len(service.cells) for service in scenario.services]).tolist()
    parts = zip(world.services, scenario.services, ends, strict=True)
    services = tuple(
        replace(info, long_tokens=traffic.long_tokens(service, slice(end - len(service.cells), end)))
        for info, service, end in parts
    )
    return replace(world, services=services)


def _declared(scenario: Scenario, traffic: Traffic) -> tuple[CellLoad | None, ...]:
    """Returns what is expected of each cell: what the service declares, or else the requests at hand."""
    found: list[CellLoad | None] = []
    for service in scenario.services:
        cells = len(service.cells)
        own = traffic.declared[len(found) : len(found) + cells]
        found += own if service.declared is None else _by_cell(service, service.declared)
    return tuple(found)


def _by_cell(service: Service, declared: Sequence[DeclaredLoad]) -> list[CellLoad | None]:
    """Returns the declared loads of each cell as one; None: nothing of its lengths is declared."""
    found: list[CellLoad | None] = [None] * len(service.cells)
    if not declared:
        return found
    lengths = np.array([(load.prompt_tokens, load.output_tokens) for load in declared])
    rps = np.array([load.rps for load in declared])
    cell_of = service.cells.of_lengths(*np.rint(lengths).astype(np.int64).T)
    for cell in np.unique(cell_of).tolist():
        mine = cell_of == cell
        prompt, output = np.average(lengths[mine], axis=0, weights=rps[mine]).tolist()
        found[cell] = CellLoad(float(rps[mine].sum()), prompt, output)
    return found


def world_of(scenario: Scenario, declared: tuple[CellLoad | None, ...] = ()) -> World:
    """Returns the world that policies start from."""
    services, first_cell = [], 0
    for service in scenario.services:
        services.append(_service_info(scenario, service, first_cell))
        first_cell += len(service.cells)
    return World(
        sites=_site_infos(scenario),
        services=tuple(services),
        templates=_templates(scenario),
        cells=first_cell,
        declared=declared,
        overheads=scenario.overheads,
        intensity=lambda site, from_s, to_s, step_s: _site(scenario, site).intensities(from_s, to_s, step_s),
        prices=lambda site, from_s, to_s, step_s: _site(scenario, site).prices(from_s, to_s, step_s),
    )


def _service_info(scenario: Scenario, service: Service, first_cell: int) -> ServiceInfo:
    model = service.model or scenario.groups[0].instances[0].model
    engine = next(g.instances[0].engine for g in scenario.groups if g.instances[0].model == model)
    partitions = tuple(_partition_info(p, service.cells, first_cell) for p in service.partitions)
    return ServiceInfo(service.name, model, partitions, engine, share=service.share)


def _partition_info(partition: Partition, cells: Cells, first_cell: int) -> PartitionInfo:
    classes = tuple(
        ClassInfo(
            name=one.name,
            limits=limits_of(one.slo),
            input_min=one.input_min,
            input_max=one.input_max,
            output_min=one.output_min,
            output_max=one.output_max,
            thresholds=one.thresholds,
            profiles=one.profiles,
            profiled=all(other.profiles for other in partition.classes),
        )
        for one in partition.classes
    )
    return PartitionInfo(
        partition.name, classes, {first_cell + cell: k for cell, k in enumerate(cells.classes(partition))}
    )


def limits_of(slo: Slo) -> Limits:
    """Returns the limits that policies plan by: the gap between tokens stands for its mean where only its p99 has a
    limit."""
    tpot_s = slo.tpot_mean_s if slo.tpot_mean_s is not None else slo.itl_p99_s
    return Limits(slo.ttft_s, tpot_s, slo.e2e_s)


def _templates(scenario: Scenario) -> tuple[InstanceSpec, ...]:
    """Lists each group's kind of instance in each of its TP degrees."""
    found: dict[tuple[str, str, str, int], InstanceSpec] = {}
    for group in scenario.groups:
        first = group.instances[0]
        name = first.name.rpartition("-")[0]
        for tp in group.tps:
            spec = replace(first, name=f"{name}-tp{tp}" if len(group.tps) > 1 else name, tp=tp)
            found.setdefault((spec.site, spec.model, spec.gpu, tp), spec)
    return tuple(found.values())


def _site_infos(scenario: Scenario) -> tuple[SiteInfo, ...]:
    """Returns the GPUs of each site: as its section says, else those that its groups hold."""
    gpus_of: dict[str, dict[str, int]] = {}
    for group in scenario.groups:
        first = group.instances[0]
        own = gpus_of.setdefault(first.site, {})
        own[first.gpu] = own.get(first.gpu, 0) + len(group.instances) * first.tp
    infos = []
    for name, gpus in gpus_of.items():
        fleet = scenario.site_fleets.get(name, SiteFleet())
        site = _site(scenario, name)
        nodes = fleet.gpus_per_node, site.power_cap_w, fleet.nodes
        infos.append(SiteInfo(name, fleet.gpus or gpus, site.pue, *nodes))
    return tuple(infos)


def _site(scenario: Scenario, name: str) -> Site:
    return scenario.sites.get(name) or Site(name or DEFAULT_SITE)
