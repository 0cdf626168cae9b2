"""Lays out policies that have no loop over instances.

As a preset has it, the fleet is the scenario's own groups (`core.simulator.scenario.layout`), which nothing changes
while they serve. Where a setting says what the fleet is to be, or the scenario is of a live fleet, the GPUs of the
sites are cut as those of live services are. What requests meet at an instance goes by the knobs in all cases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.observations.fleet.sleep_given import OFF
from core.observations.request.request_configs import itl_limit_s
from core.policy.presets import PRESETS, Policy
from core.policy.setting_texts import value_of
from core.simulator.kernel.simulated import ORDERS, InstanceSpec
from core.simulator.policies.config import Reads, any_of
from core.simulator.policies.cut_fleet import CutFleet
from core.simulator.policies.scheduling import Served, queue_of, served_by_model
from core.simulator.policies.sleeping_fleet import SleepingFleet
from core.simulator.policies.world import Plan, World

# What says what the fleet is to be, and how it becomes that.
_KNOBS = (
    *("partition", "class_limits", "slo_factor", "fill", "tp", "alpha", "plan_ttft_share", "plan_tpot_share"),
    *("carbon_period_s", "shadow", "sleep"),
)
_TUNING = (
    *("starts.warm_pool", "starts.weights_cached", "sleep.idle_s", "sleep.host_memory_gb"),
    *("split.first_share", "split.link_gb_per_s", "split.latency_s", "split.chunked"),
)
_ROUTINGS = {"round_robin": "round_robin", "least_loaded": "least_loaded", "weighted_round_robin": "weighted"}

READS = Reads(
    {
        **any_of(*_KNOBS, "aging_tokens_per_s", "preempts_s", "itl_limit_s", "chunk_tokens", "max_num_seqs"),
        **any_of("engine_queue"),
        "order": (*ORDERS, "spf"),
        "route": tuple(_ROUTINGS),
    },
    ("queue", "split.itl_margin", *_TUNING),
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
        """Says whether the policy says what the fleet is to be; else it is the scenario's groups, if it has any."""
        preset = PRESETS[self.name]
        return any(value_of(self.policy, name) != value_of(preset, name) for name in (*_KNOBS, *_TUNING))


def of(policy: Policy) -> StaticConfig:
    """Returns what the policy comes to."""
    preset = PRESETS[policy.name]
    same = (policy.knobs, policy.tuning) == (preset.knobs, preset.tuning)
    return StaticConfig(policy.name, None if same else policy)


def with_rules(spec: InstanceSpec, config: StaticConfig, served: Served) -> InstanceSpec:
    """Returns the instance with the policy's rules of its queue and its batches."""
    if config.own is None:
        return spec
    knobs, tuning = config.own.knobs, config.own.tuning
    by_prompt = knobs.order == "spf"
    order = "srtf" if by_prompt else knobs.order
    rules = queue_of(spec, order, knobs.aging_tokens_per_s, served, knobs.preempts_s, tuning.queue.margin_s)
    if by_prompt:
        rules = replace(rules, token_s=0.0, prefill_token_s=1.0)
    rules = replace(
        rules,
        itl_limit_s=itl_limit_s(knobs.itl_limit_s, tuning.split.itl_margin, served.limits),
        chunk_tokens=knobs.chunk_tokens,
    )
    return replace(spec, scheduling=rules, max_sequences=knobs.max_num_seqs or spec.max_sequences)


def begin(config: StaticConfig, world: World) -> Plan:
    """Cuts the fleet for the declared load, or has services take turns on it.

    Raises:
        SimulationError: There is no such partition, or no GPU can serve.
    """
    named = config.policy.knobs.partition
    served = served_by_model((service, service.partition(named)) for service in world.services)
    ruled = tuple(with_rules(spec, config, served[spec.model]) for spec in world.templates)
    if config.policy.knobs.sleep != OFF:
        return SleepingFleet(config.policy, config.routing, replace(world, templates=ruled)).begin()
    return CutFleet(config.policy, config.routing, replace(world, templates=ruled)).begin()
