"""Lays out policies whose fleet nothing changes while it serves.

As a preset has it, the fleet is the scenario's own groups (`core.simulator.scenario.layout`). Where a knob says what
the fleet is to be, the GPUs of the sites are cut by the step that cuts those of live services. What requests meet at
an instance goes by the knobs in both cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.controllers.fleet import shared_out
from core.controllers.fleet.shared_out import NodeView, SharedOutConfig, SharedOutObservation
from core.observations.class_view import partition_option
from core.observations.limits import at_factor, planned
from core.observations.request_configs import itl_limit_s
from core.policy.knobs import USUAL_S
from core.policy.presets import PRESETS, Policy
from core.simulator.kernel.simulated import ORDERS, InstanceSpec, Scheduling, SimulationError
from core.simulator.policies.config import Reads, any_of
from core.simulator.policies.loops import plans
from core.simulator.policies.scheduling import token_times_s
from core.simulator.policies.service_slices import Lot, begin_in_slices
from core.simulator.policies.view_observations import cells_of, class_view, first_view
from core.simulator.policies.world import Member, Plan, World
from core.types import Limits, Loop

_FLEET = ("partition", "slo_factor", "fill", "tp", "alpha", "plan_ttft_share", "plan_tpot_share")
_ROUTINGS = {"round_robin": "round_robin", "least_loaded": "least_loaded", "weighted_round_robin": "weighted"}

READS = Reads(
    {
        **any_of(*_FLEET, "aging_tokens_per_s", "preempts_s", "itl_limit_s", "chunk_tokens", "max_num_seqs"),
        "order": (*ORDERS, "spf"),
        "route": tuple(_ROUTINGS),
    },
    ("queue", "split.itl_margin"),
)


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """A policy that changes nothing, by its name. `own`: the policy, where it is otherwise than its preset."""

    name: str
    own: Policy | None = None

    @property
    def policy(self) -> Policy:
        return self.own or PRESETS[self.name]

    @property
    def routing(self) -> str:
        """The kernel's word for how requests of a pool find an instance."""
        return _ROUTINGS[self.policy.knobs.route]

    @property
    def cuts_fleet(self) -> bool:
        """Says whether the policy says what the fleet is to be; else it is the scenario's groups."""
        return bool(_of_fleet(self.policy))


def of(policy: Policy) -> StaticConfig:
    """Returns what the policy comes to. Raises ValueError: its two stages need groups with roles."""
    preset = PRESETS[policy.name]
    if policy.knobs.split == "prompt":
        for name in _of_fleet(policy):
            usual, what = getattr(preset.knobs, name), "whose stages are the scenario's groups, by their roles"
            raise ValueError(f"{name}: must be {usual} in a simulated {policy.name}, {what}")
    same = (policy.knobs, policy.tuning) == (preset.knobs, preset.tuning)
    return StaticConfig(policy.name, None if same else policy)


def _of_fleet(policy: Policy) -> list[str]:
    """Returns the knobs that say what the fleet is to be and are not as in the preset."""
    preset = PRESETS[policy.name].knobs
    return [name for name in _FLEET if getattr(policy.knobs, name) != getattr(preset, name)]


def with_rules(spec: InstanceSpec, config: StaticConfig, limits: Iterable[Limits]) -> InstanceSpec:
    """Returns the instance with the policy's rules of its queue and its batches. `limits`: of the classes it serves."""
    if config.own is None:
        return spec
    knobs, tuning = config.own.knobs, config.own.tuning
    token_s, prefill_token_s = (0.0, 1.0) if knobs.order == "spf" else token_times_s(spec)
    rules = Scheduling(
        "srtf" if knobs.order == "spf" else knobs.order,
        aging=knobs.aging_tokens_per_s if knobs.order == "sjf" else 0.0,
        token_s=token_s,
        prefill_token_s=prefill_token_s,
        preempts_s=0.0 if knobs.order == "fcfs" else knobs.preempts_s,
        margin=tuning.queue.margin_s,
        itl_limit_s=itl_limit_s(knobs.itl_limit_s, tuning.split.itl_margin, limits),
        chunk_tokens=knobs.chunk_tokens,
    )
    return replace(spec, scheduling=rules, max_sequences=knobs.max_num_seqs or spec.max_sequences)


def begin(config: StaticConfig, world: World) -> Plan:
    """Cuts the fleet for the declared load. Several services each have nodes of a site for themselves.

    Raises:
        SimulationError: There is no such partition, or no GPU can serve.
    """
    if len(world.services) > 1:
        return begin_in_slices(_begin, config, world, Lot.SITE)
    return _begin(config, world)


def _begin(config: StaticConfig, world: World) -> Plan:
    service, knobs = world.services[0], config.policy.knobs
    partition, view = service.partition(knobs.partition), first_view(world)
    period_s, modes = USUAL_S[Loop.CARBON], world.modes(service)
    views = []
    for number, info in enumerate(partition.classes):
        own = planned(at_factor(info.limits, knobs.slo_factor), knobs.plan_ttft_share, knobs.plan_tpot_share)
        cells = cells_of(partition, number)
        views.append(class_view(world, service, replace(info, limits=own), cells, view, period_s, 1, modes))
    nodes = tuple(NodeView(node.site, node.gpu, node.gpus) for node in world.nodes)
    given = SharedOutObservation(0.0, period_s, nodes, partition_option(partition.name, views))
    shared, effects = shared_out.step(None, given, SharedOutConfig(knobs.tp, knobs.fill, knobs.alpha))
    if shared is None:
        raise SimulationError(f"{config.name}: {effects.rationale.summary}")
    members = []
    limits = [info.limits for info in partition.classes]
    for (site, name, mode), count in sorted(shared.workers.items()):
        spec = world.template(service, site, mode)
        if spec is not None:
            kind = with_rules(spec, config, limits)
            members += [Member(replace(kind, name=f"{spec.name}-{name}-{n + 1}"), name) for n in range(count)]
    pools = _serving([info.name for info in partition.classes], {member.pool for member in members})
    cell_pool = [pools[partition.cell_class[cell]] for cell in range(world.cells)]
    return Plan(tuple(members), plans(dict.fromkeys(pools), config.routing), tuple(cell_pool), ())


def _serving(names: list[str], there: set[str]) -> list[str]:
    """Returns the pool of each class: its own, or where it has none the next larger one's, as live load spills."""
    found = []
    for n, name in enumerate(names):
        larger = [other for other in names[n:] if other in there]
        smaller = [other for other in names[:n] if other in there]
        found.append((larger or smaller[-1:] or [name])[0])
    return found
