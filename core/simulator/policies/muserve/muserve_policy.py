"""mu-Serve (paper: Qiu et al., USENIX ATC 2024) on the simulated fleet, and what it is compared with (section 4.2).

alpaserve: AlpaServe's placement, first come first served, top clock. alpaserve_sched: with mu-Serve's scheduler,
speculative SJF with aging (section 3.3). alpaserve_scaling: with its clock loop too (Algorithm 3). muserve: with its
placement as well (Algorithm 2). Each is the same stack with knobs set, and each knob can be set by itself.

The placement is made once, offline as in the paper, and stays. Where the clock stays at its top and latencies still
have too little slack, the paper's sign that another replica is needed, the model gets one on free GPUs (`growth`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.algorithms.placement.model_placement import PlacementConfig
from core.algorithms.placement.operator_partitions import DEFAULT_THRESHOLD
from core.controllers.clock import muserve_clock
from core.controllers.clock.muserve_clock import (
    STARVED,
    DeviceObservation,
    MuServeClockConfig,
    MuServeClockState,
    PartitionLoad,
    observe_instance,
)
from core.controllers.fleet import placement
from core.controllers.fleet.placement import (
    ALPASERVE,
    POWER_AWARE,
    PlacementObservation,
    PlacementOption,
    PlacingConfig,
)
from core.engine.engine_model import gpu
from core.observations import asking
from core.observations.step_configs import slack_config
from core.policy.presets import Policy
from core.simulator.kernel.commands import SERVING, Answer, Decision, FleetView
from core.simulator.kernel.simulated import Scheduling, SimulationError
from core.simulator.policies.config import Reads, any_of, period_s
from core.simulator.policies.loops import decision
from core.simulator.policies.muserve.device_placement import Placed, Placer
from core.simulator.policies.muserve.growth import Growth
from core.simulator.policies.muserve.placement_search import Needs
from core.simulator.policies.muserve.replicas import Replica, weights
from core.simulator.policies.scheduling import aging_of
from core.simulator.policies.view_observations import clock_seen
from core.simulator.policies.world import Member, Plan, PoolPlan, ServiceInfo, World
from core.types import ClockObservation, Limits, Loop, Reason, SetSmClock

_LONG_PERIOD_S = 1800.0


@dataclass(frozen=True, slots=True)
class MuServeConfig:
    """`placement`, `order`, `scaling` and `sensitivity` are the paper's parts, each on or off.

    `aging_tokens_per_s` None: by the long requests and the limits of each service.
    `sensitivity`: Algorithm 3 weighs latencies by it; without, as if all of each went with the clock. `max_devices`: CT
    of Algorithm 2; None: as many as a group has. `spread`: see PlacementConfig; 0 fills empty devices first.
    `group_gpus`: sizes of groups that are tried; none: all.
    `goal`: attainment of every service at which the search for groups may end. `guide_s`: length of its simulations;
    None: long enough. `in_flight`: the time that requests have taken so far counts as latency too. The paper looks at
    served ones; but when requests take many periods of the loop, a clock that is too low is seen too late.
    """

    name: str = "muserve"
    placement: str = "power_aware"
    order: str = "sjf"
    scaling: bool = True
    sensitivity: bool = True
    aging_tokens_per_s: float | None = None
    clock: MuServeClockConfig = field(default_factory=MuServeClockConfig)
    clock_floor_mhz: float | None = None
    max_devices: int | None = None
    spread: float = DEFAULT_THRESHOLD
    group_gpus: tuple[int, ...] = ()
    goal: float = 0.99
    guide_s: float | None = None
    in_flight: bool = True


READS = Reads(
    {
        **any_of("aging_tokens_per_s", "clock_period_s", "clock_floor_mhz"),
        "order": ("sjf", "fcfs"),
        "clock": ("slack", "fixed"),
    },
    ("placement", "slack"),
)


def of(policy: Policy) -> MuServeConfig:
    """Returns what the policy comes to. Raises ValueError: periods of the clock rule that contradict each other."""
    knobs, slack, placement = policy.knobs, policy.tuning.slack, policy.tuning.placement
    act_s = max(slack.sample_s, period_s(policy, Loop.CLOCK)) if knobs.clock_period_s is None else knobs.clock_period_s
    if act_s < slack.sample_s:
        raise ValueError(f"clock_period_s: must be at least {slack.sample_s:g}, not {act_s:g}")
    if slack.memory_s < act_s:
        raise ValueError(f"tuning.slack.memory_s: must be at least {act_s:g}, not {slack.memory_s:g}")
    return MuServeConfig(
        name=policy.name,
        placement=placement.kind,
        order=knobs.order,
        scaling=knobs.clock == "slack",
        sensitivity=slack.sensitivity,
        aging_tokens_per_s=knobs.aging_tokens_per_s,
        clock=slack_config(policy.tuning, act_s),
        clock_floor_mhz=knobs.clock_floor_mhz,
        max_devices=placement.max_devices,
        spread=placement.spread,
        group_gpus=placement.group_gpus,
        goal=placement.goal,
        guide_s=placement.guide_s,
        in_flight=slack.in_flight,
    )


def begin(config: MuServeConfig, world: World) -> Plan:
    """Places the models and begins the loops.

    Raises:
        SimulationError: Models find no room, the world has several types of GPU, or the clock's floor is not the GPU's.
    """
    placer = Placer(world, config.group_gpus, config.goal, config.guide_s)
    placed, options, reason, summary = _place(config, placer)
    rules = [_scheduling(config, service) for service in world.services]
    replicas = tuple(replace(r, spec=replace(r.spec, scheduling=rules[r.slot.service])) for r in placed.replicas)
    names = [service.name for service in world.services]
    cell_pool = [""] * world.cells
    for service in world.services:
        for cell in service.partitions[0].cell_class:
            cell_pool[cell] = service.name
    controls: list[_PlacementLog | _Clocks] = [_PlacementLog(reason, summary)]
    if config.scaling:
        chooses = PlacingConfig(config.placement, config.goal)
        growth = Growth(placer, options, replicas, chooses, rules)
        controls.append(_Clocks(config, world, placer.needs, replicas, placed.domains, growth))
    return Plan(
        tuple(Member(replica.spec, names[replica.slot.service]) for replica in replicas),
        tuple(PoolPlan(name, "least_loaded") for name in names),
        tuple(cell_pool),
        tuple(controls),
    )


def _scheduling(config: MuServeConfig, service: ServiceInfo) -> Scheduling:
    """Returns the order of a service's queues."""
    limits = [info.limits for info in service.partitions[0].classes]
    aging = aging_of(config.order, config.aging_tokens_per_s, service.long_tokens, limits)
    return Scheduling(config.order, aging=aging)


def _place(config: MuServeConfig, placer: Placer) -> tuple[Placed, Mapping[str, PlacementOption], Reason, str]:
    """Lets the step that live services have choose among the placements, and says how it came about."""
    found = {ALPASERVE: placer.alpaserve()}
    if config.placement == POWER_AWARE:
        own = placer.power_aware(PlacementConfig(config.max_devices or len(placer.node), config.spread))
        found |= {} if own is None else {POWER_AWARE: own}
    options = {kind: placer.option(own) for kind, own in found.items()}
    obs = PlacementObservation(0.0, options)
    chooses = PlacingConfig(config.placement, config.goal)
    state, effects = asking.step(placement.step, None, obs, chooses)
    placed = found[ALPASERVE if state is None else state.kind]
    if effects.rationale.reason is Reason.WOULD_VIOLATE:
        words = "Placed by sensitivity fewer requests would be in time: AlpaServe's placement stays."
        return placed, options, Reason.WOULD_VIOLATE, f"{words} {placed.summary}"
    return placed, options, effects.rationale.reason, placed.summary


@dataclass(frozen=True, slots=True)
class _PlacementLog:
    """The placement as the first line of the decision log."""

    reason: Reason
    summary: str
    name: str = "placement"
    period_s: float = _LONG_PERIOD_S

    def step(self, view: FleetView) -> Answer:
        if view.now_s > 0.0:
            return Answer()
        return Answer((), (Decision(0.0, self.name, str(self.reason), self.summary, 0),))


class _Clocks:
    """Algorithm 3 on each clock domain: replicas on devices that must have one clock."""

    name = str(Loop.CLOCK)

    def __init__(
        self,
        config: MuServeConfig,
        world: World,
        load: Sequence[Needs],
        replicas: Sequence[Replica],
        domains: Sequence[Sequence[int]],
        growth: Growth,
    ) -> None:
        self.period_s = config.clock.sample_s
        self._config, self._in_flight, self._domains = config.clock, config.in_flight, list(domains)
        self._by_sensitivity, self._load, self._growth = config.sensitivity, load, growth
        self._limits_of = [_limits(service) for service in world.services]
        self._weights: list[Mapping[str, float]] = []
        self._limits: list[Limits] = []
        self._service: list[int] = []
        for replica in replicas:
            self._know(replica)
        own = gpu(replicas[0].spec.gpu)
        floor = own.f_min if config.clock_floor_mhz is None else config.clock_floor_mhz
        if not own.f_min <= floor <= own.f_max:
            raise SimulationError(
                f"policy.clock_floor_mhz: must be from {own.f_min:g} to {own.f_max:g} on a {own.name}, not {floor:g}"
            )
        self._range = floor, own.f_max
        self._states: list[MuServeClockState | None] = [None] * len(domains)

    def step(self, view: FleetView) -> Answer:
        commands: list[SetSmClock] = []
        reasons: Counter[Reason] = Counter()
        starved, short = 0, set[int]()
        for k, domain in enumerate(self._domains):
            if view.state[domain[0]] != SERVING:  # a new replica that starts
                continue
            state, effects = asking.step(
                muserve_clock.step, self._states[k], self._observation(view, domain), self._config
            )
            starved += state.starved == STARVED and state.acted_s == view.now_s
            if state.starved and state.starved % STARVED == 0 and state.acted_s == view.now_s:
                short |= self._short(view, domain, effects.rationale.inputs["partitions"])
            self._states[k] = state
            for command in effects.commands:
                if isinstance(command, SetSmClock):
                    own = [view.instances[i].name for i in domain if view.mhz[i] != command.mhz]
                    commands += [SetSmClock(name, command.mhz) for name in own]
                    reasons[effects.rationale.reason] += bool(own)
        decisions = [
            decision(view, Loop.CLOCK, reason, f"{reasons[reason]} clock domains clocked {way}.", len(commands))
            for reason, way in ((Reason.CONGESTED, "up"), (Reason.SLACK, "down"))
            if reasons[reason]
        ]
        if starved:
            text = f"{starved} clock domains were short at their top clock {STARVED} times in a row: add replicas."
            decisions.append(decision(view, Loop.CLOCK, Reason.AT_LIMIT, text))
        if not short:
            return Answer(tuple(commands), tuple(decisions))
        replica, starts, why = self._growth.step(view, short)
        if replica is not None:
            self._domains.append((len(self._service),))
            self._states.append(None)
            self._know(replica)
        held = why.reason == Reason.NO_CHANGE  # one was added of late
        return Answer((*commands, *starts), (*decisions, *(() if held else (why,))))

    def _know(self, replica: Replica) -> None:
        """Takes in a replica, which is the next instance."""
        n = replica.slot.service
        self._weights.append(weights(replica.spec, self._load[n], replica.rps) if self._by_sensitivity else {})
        self._limits.append(self._limits_of[n])
        self._service.append(n)

    def _short(self, view: FleetView, domain: Sequence[int], partitions: Mapping[str, Any]) -> set[int]:
        """Returns the services of a starved domain whose latencies have too little slack."""
        late = {name for name, own in partitions.items() if own["slack"] is not None}
        late = {name for name in late if partitions[name]["slack"] < self._config.slack.reserve}
        alone = len(domain) == 1
        return {
            self._service[i]
            for i in domain
            if any(alone or name.startswith(f"{view.instances[i].name}.") for name in late)
        }

    def _observation(self, view: FleetView, domain: Sequence[int]) -> DeviceObservation:
        """Returns the domain as one device with the latencies of all its replicas.

        Replicas are numbered as instances.
        """
        low, high = self._range
        partitions: list[PartitionLoad] = []
        for i in domain:
            seen = self._so_far(view, i, clock_seen(view, i, low, high, self._limits[i]))
            of_one = observe_instance(seen, self._weights[i]).partitions
            if len(domain) > 1:
                of_one = tuple(replace(own, name=f"{seen.instance}.{own.name}") for own in of_one)
            partitions += of_one
        return DeviceObservation(view.now_s, view.instances[domain[0]].name, low, high, tuple(partitions))

    def _so_far(self, view: FleetView, i: int, seen: ClockObservation) -> ClockObservation:
        """Counts the ages of those that still wait for a latency with the worst of those that had it recently."""
        if not self._in_flight or not seen.running + seen.waiting:
            return seen
        own = view.sequences(i)
        age_s = view.now_s - own.arrival_s
        late_s = age_s[own.generated_tokens == 0]
        ttft_s = max(seen.ttft_s or 0.0, float(late_s.max())) if late_s.size else seen.ttft_s
        return replace(seen, ttft_s=ttft_s, e2e_s=max(seen.e2e_s or 0.0, float(age_s.max())))


def _limits(service: ServiceInfo) -> Limits:
    """Returns the tightest of a service's classes, but for E2E, which goes with the length: there the loosest."""
    own = [info.limits for info in service.partitions[0].classes]
    ttft = [limits.ttft_s for limits in own if limits.ttft_s is not None]
    tpot = [limits.tpot_s for limits in own if limits.tpot_s is not None]
    e2e = [limits.e2e_s for limits in own if limits.e2e_s is not None]
    return Limits(min(ttft, default=None), min(tpot, default=None), max(e2e) if len(e2e) == len(own) else None)
