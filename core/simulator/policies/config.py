"""The configurations of policies, as the `policy:` section of a scenario gives them, and its `overheads:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.algorithms.clock.busy_thresholds import ThresholdClockConfig
from core.algorithms.clock.miad import MiadConfig
from core.algorithms.clock.primal_dual import PrimalDualConfig
from core.algorithms.queue.queueing import WINDOW_FACTOR
from core.controllers.fleet.scale_threshold import ScaleThresholdConfig
from core.controllers.fleet.shard_threshold import ShardThresholdConfig
from core.engine.engine_model import GPUS
from core.engine.overheads import Overheads, StartSteps
from core.observations.step_configs import (
    clock_config,
    scale_threshold_config,
    shard_threshold_config,
    threshold_clock_config,
)
from core.policy.knobs import USUAL_S, WHOLE
from core.policy.presets import Policy
from core.simulator.fields import Section
from core.simulator.kernel.simulated import ORDERS
from core.types import ChangeKind, Loop

LOOPS = ("carbon", "scale", "shard", "clock")  # slowest first
_THRESHOLD_LOOPS = ("scale", "shard", "clock")
_BY_POOL = {"weighted_round_robin": "weighted", "least_loaded": "least_loaded"}  # the kernel's words by the knob's
_ROUTINGS = {**_BY_POOL, "least_energy": "energy"}  # FREESH's loops have a router for that one


@dataclass(frozen=True, slots=True)
class Reads:
    """The settings that the simulated loops of a family read. `knobs`: by name, the values that they know; none: all.

    `tuning`: records, or single fields as RECORD.FIELD.
    """

    knobs: Mapping[str, tuple[str, ...]]
    tuning: tuple[str, ...] = ()


def any_of(*names: str) -> dict[str, tuple[str, ...]]:
    """Returns knobs that are read whatever their value."""
    return dict.fromkeys(names, ())


_PERIODS = ("scale_period_s", "shard_period_s", "clock_period_s")
_CLOCK_SHARES = ("clock_ttft_share", "clock_tpot_share")
THRESHOLD_READS = Reads(
    {
        **any_of(*_PERIODS, *_CLOCK_SHARES, "partition", "alpha", "clock_floor", "clock_floor_mhz", "shadow"),
        **any_of("engine_queue"),
        "scale": ("threshold", "static"),
        "shard": ("threshold", "off"),
        "clock": ("threshold", "fixed"),
        "route": tuple(_BY_POOL),
    },
    ("threshold", "eq1.floor_rps", "starts"),
)
FREESH_READS = Reads(
    {
        **any_of(*_PERIODS, *_CLOCK_SHARES, "carbon_period_s", "partition", "alpha", "frozen", "preempts_s", "shadow"),
        **any_of("objective", "negative_intensity", "freeze_tp", "clock_floor", "clock_floor_mhz", "engine_queue"),
        **any_of("aging_tokens_per_s"),
        "shard": ("mix", "off"),
        "clock": ("miad", "primal_dual", "fixed"),
        "route": tuple(_ROUTINGS),
        "order": ORDERS,
    },
    ("eq1", "miad", "primal_dual", "queue", "starts"),
)


@dataclass(frozen=True, slots=True)
class Starting:
    """The conditions under which new instances come up.

    `warm_pool`: servers at each site that stand ready (one that is used is replaced in the background); None: all do.
    """

    warm_pool: int | None = None
    weights_cached: bool = True


@dataclass(frozen=True, slots=True)
class ThresholdConfig:
    """Plain thresholds, with a pool for each class of `partition`.

    `ttft_share`, `tpot_share`: of limits, at which the clock goes up. Its floor is where the GPU's voltage stops
    falling, unless another is given: slower than that a token costs more energy, not less.
    """

    name: str = "threshold"
    loops: tuple[str, ...] = _THRESHOLD_LOOPS
    scale: ScaleThresholdConfig = field(default_factory=ScaleThresholdConfig)
    shard: ShardThresholdConfig = field(default_factory=ShardThresholdConfig)
    clock: ThresholdClockConfig = field(default_factory=ThresholdClockConfig)
    partition: str = WHOLE
    routing: str = "least_loaded"
    engine_queue: int = 32
    ttft_share: float = 0.8
    tpot_share: float = 0.8
    clock_floor: str = "voltage"
    clock_floor_mhz: float | None = None
    starting: Starting = field(default_factory=Starting)
    change: ChangeKind = ChangeKind.RESTART


@dataclass(frozen=True, slots=True)
class FreeshConfig:
    """The stack that the product runs live: FREESH eq. 1, its program within each budget, DynamoLLM's mix, MIAD.

    `loops`: those that run. Without carbon the partition and the sites of each class stay as at the start; scale then
    moves GPUs between the pools of a site. `clock`: the rule; None: it does not run. `ttft_share`, `tpot_share`: of a
    class's limits, at which the clock goes up.
    `order`: of every instance's queue; but for fcfs, running requests may have to give way each `preempts_s` (0: never)
    to waiting ones that are ahead by `margin_s`. `aging_tokens_per_s`: of sjf; None: by the long requests and the
    limits. `window_factor`: over what a request takes alone, when it is due.

    min_energy is the same with energy for its objective. freesh_baseline is the paper's Baseline (section 4.1): no
    classifier, so the partition with the fewest classes, and no knob: the fleet of the first moment, at its top clock,
    first come first served.
    """

    name: str = "freesh"
    loops: tuple[str, ...] = LOOPS
    carbon_period_s: float = 1800.0
    scale_period_s: float = 1800.0
    shard_period_s: float = 300.0
    clock_period_s: float = 1.0
    step_s: float = 300.0
    partition: str | None = None
    routing: str = "weighted"
    engine_queue: int = 32
    freeze_tp: bool = False
    alpha: float = 1.1
    floor_rps: float = 0.05
    min_saving: float = 0.01
    objective: str = "carbon"
    negative_intensity: str = "clamp"
    ttft_share: float = 0.8
    tpot_share: float = 0.8
    clock_floor: str = "voltage"
    clock_floor_mhz: float | None = None
    clock: MiadConfig | PrimalDualConfig | None = field(default_factory=MiadConfig)
    order: str = "llf"
    aging_tokens_per_s: float | None = None
    preempts_s: float = 1.0
    margin_s: float = 1.0
    window_factor: float = WINDOW_FACTOR
    time_limit_s: float = 20.0
    starting: Starting = field(default_factory=Starting)
    change: ChangeKind = ChangeKind.RESTART


def threshold_of(policy: Policy) -> ThresholdConfig:
    """Returns what the policy comes to for `threshold`."""
    knobs, tuning = policy.knobs, policy.tuning
    return ThresholdConfig(
        loops=running(policy, _THRESHOLD_LOOPS),
        scale=scale_threshold_config(knobs, tuning, period_s(policy, Loop.SCALE)),
        shard=shard_threshold_config(knobs, tuning, period_s(policy, Loop.SHARD)),
        clock=threshold_clock_config(tuning, period_s(policy, Loop.CLOCK)),
        partition=knobs.partition,
        routing=_BY_POOL[knobs.route],
        engine_queue=knobs.engine_queue,
        ttft_share=knobs.clock_ttft_share,
        tpot_share=knobs.clock_tpot_share,
        clock_floor=knobs.clock_floor,
        clock_floor_mhz=knobs.clock_floor_mhz,
        starting=starting_of(policy),
        change=change_of(policy),
    )


def freesh_of(policy: Policy) -> FreeshConfig:
    """Returns what the policy comes to for FREESH's loops."""
    knobs, eq1, carbon_s = policy.knobs, policy.tuning.eq1, period_s(policy, Loop.CARBON)
    rule = clock_config(knobs, policy.tuning, period_s(policy, Loop.CLOCK))
    return FreeshConfig(
        name=policy.name,
        loops=tuple(loop for loop in running(policy, LOOPS) if loop not in knobs.frozen),
        carbon_period_s=carbon_s,
        scale_period_s=period_s(policy, Loop.SCALE),
        shard_period_s=period_s(policy, Loop.SHARD),
        clock_period_s=period_s(policy, Loop.CLOCK),
        step_s=carbon_s / eq1.steps,
        partition=None if knobs.partition in ("", WHOLE) else knobs.partition,
        routing=_ROUTINGS[knobs.route],
        engine_queue=knobs.engine_queue,
        freeze_tp=knobs.freeze_tp,
        alpha=knobs.alpha,
        floor_rps=eq1.floor_rps,
        min_saving=eq1.min_saving,
        objective=knobs.objective,
        negative_intensity=knobs.negative_intensity,
        ttft_share=knobs.clock_ttft_share,
        tpot_share=knobs.clock_tpot_share,
        clock_floor=knobs.clock_floor,
        clock_floor_mhz=knobs.clock_floor_mhz,
        clock=rule if isinstance(rule, (MiadConfig, PrimalDualConfig)) else None,
        order=knobs.order,
        aging_tokens_per_s=knobs.aging_tokens_per_s,
        preempts_s=knobs.preempts_s,
        margin_s=policy.tuning.queue.margin_s,
        window_factor=policy.tuning.queue.window_factor,
        time_limit_s=eq1.time_limit_s,
        starting=starting_of(policy),
        change=change_of(policy),
    )


def running(policy: Policy, known: Sequence[str]) -> tuple[str, ...]:
    """Returns those of a family's loops that the policy leaves something to decide."""
    return tuple(loop for loop in known if not policy.knobs.has_no_choice(Loop(loop)))


def period_s(policy: Policy, loop: Loop) -> float:
    """Returns the period of a loop, in s: the policy's, or else the usual one."""
    return policy.knobs.period_s(loop, USUAL_S[loop])


def starting_of(policy: Policy) -> Starting:
    """Returns the conditions under which the policy's new instances come up."""
    return Starting(policy.tuning.starts.warm_pool, policy.tuning.starts.weights_cached)


def change_of(policy: Policy) -> ChangeKind:
    """Returns how the policy's instances become others: as live ones do, never in place."""
    return ChangeKind.SHADOW if policy.knobs.shadow else ChangeKind.RESTART


def _positive(section: Section, key: str, default: float, above: float = 0.0) -> float:
    value = section.number(key, default, above=above)
    return default if value is None else value


def _least(section: Section, key: str, default: float, least: float) -> float:
    value = section.number(key, default, least=least)
    return default if value is None else value


def read_overheads(section: Section) -> Overheads:
    """Reads published figures, but for what the section says: the steps of a start, re-shards and clock switches.

    Raises:
        ScenarioError: An unknown key, or a value out of range.
    """
    d, steps = Overheads(), StartSteps()
    start = StartSteps(
        vm_s=_least(section, "vm_s", steps.vm_s, 0.0),
        environment_s=_least(section, "environment_s", steps.environment_s, 0.0),
        download_s=_least(section, "download_s", steps.download_s, 0.0),
        engine_s=_least(section, "engine_s", steps.engine_s, 0.0),
        weights_s=_least(section, "weights_s", steps.weights_s, 0.0),
    )
    switches = dict(d.clock_switch_s)
    if own := section.optional("clock_switch_s"):
        given = {name: own.number(name, None, least=0.0) for name in GPUS}
        own.finish()
        switches |= {name: value for name, value in given.items() if value is not None}
    found = Overheads(
        start=start,
        sync_s=_least(section, "sync_s", d.sync_s, 0.0),
        link_bytes_per_s=_positive(section, "link_bytes_per_s", d.link_bytes_per_s),
        clock_set_s=_least(section, "clock_set_s", d.clock_set_s, 0.0),
        clock_switch_s=switches,
    )
    section.finish()
    return found
