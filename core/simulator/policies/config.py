"""The configurations of policies, as the `policy:` section of a scenario gives them, and its `overheads:`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.algorithms.fleet.fleet_problem import NegativeIntensity, Objective
from core.engine.engine_model import GPUS
from core.engine.overheads import Overheads, StartSteps
from core.simulator.fields import Section
from core.simulator.kernel.simulated import ORDERS

STATIC = ("single_pool", "least_loaded", "multi_pool", "disaggregated")
LOOPS = ("carbon", "scale", "shard", "clock")  # slowest first
_THRESHOLD_LOOPS = ("scale", "shard", "clock")
_ROUTINGS = ("weighted", "least_loaded")


@dataclass(frozen=True, slots=True)
class Starting:
    """The conditions under which new instances come up.

    `warm_pool`: servers at each site that stand ready (one that is used is replaced in the background); None: all do.
    """

    warm_pool: int | None = None
    weights_cached: bool = True


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """A fleet that nothing changes."""

    name: str


@dataclass(frozen=True, slots=True)
class ThresholdConfig:
    """Plain thresholds. `pools`: one (for all classes of a service) or per_class.

    Scale: alpha x peak 5-second rate / what an instance carries; `kv_high`, `kv_low`: mean share of the busiest
    resource (KV cache or places in the batch) above which a pool grows, below which it may shrink.
    Clock: to the top when requests wait, above `busy_high`, or when a latency is beyond `latency_margin` of its limit;
    down by `clock_step_mhz` below `busy_low`; never below `clock_floor_mhz` (None: where the GPU's voltage stops
    falling, since slower than that a token costs more energy, not less).
    """

    name: str = "threshold"
    loops: tuple[str, ...] = _THRESHOLD_LOOPS
    scale_period_s: float = 1800.0
    shard_period_s: float = 300.0
    clock_period_s: float = 5.0
    pools: str = "one"
    routing: str = "least_loaded"
    alpha: float = 1.1
    floor_rps: float = 0.05
    kv_high: float = 0.7
    kv_low: float = 0.4
    busy_high: float = 0.75
    busy_low: float = 0.5
    latency_margin: float = 0.8
    clock_step_mhz: float = 90.0
    clock_floor_mhz: float | None = None
    starting: Starting = field(default_factory=Starting)


@dataclass(frozen=True, slots=True)
class FreeshConfig:
    """The stack that the product runs live: FREESH eq. 1, its program within each budget, DynamoLLM's mix, MIAD.

    `loops`: those that run. Without carbon the partition and the sites of each class stay as at the start; scale then
    moves GPUs between the pools of a site. `latency_margin`: share of a class's limit at which the clock goes up.
    `order`: of every instance's queue; but for fcfs, running requests may have to give way each `preempts_s` (0: never)
    to waiting ones that are ahead by `margin_s`.

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
    alpha: float = 1.1
    floor_rps: float = 0.05
    min_saving: float = 0.01
    objective: str = "carbon"
    negative_intensity: str = "clamp"
    latency_margin: float = 0.8
    clock_increase: float = 2.0
    clock_decrease_mhz: float = 100.0
    order: str = "llf"
    preempts_s: float = 1.0
    margin_s: float = 1.0
    time_limit_s: float = 20.0
    starting: Starting = field(default_factory=Starting)


def read_threshold(section: Section) -> ThresholdConfig:
    """Reads the settings of `threshold`. Raises ScenarioError."""
    d = ThresholdConfig()
    found = ThresholdConfig(
        loops=_loops(section, _THRESHOLD_LOOPS, _THRESHOLD_LOOPS),
        scale_period_s=_positive(section, "scale_period_s", d.scale_period_s),
        shard_period_s=_positive(section, "shard_period_s", d.shard_period_s),
        clock_period_s=_positive(section, "clock_period_s", d.clock_period_s),
        pools=section.choice("pools", ("one", "per_class"), d.pools),
        routing=section.choice("routing", _ROUTINGS, d.routing),
        alpha=_least(section, "alpha", d.alpha, 1.0),
        floor_rps=_least(section, "floor_rps", d.floor_rps, 0.0),
        kv_high=_share(section, "kv_high", d.kv_high),
        kv_low=_share(section, "kv_low", d.kv_low),
        busy_high=_share(section, "busy_high", d.busy_high),
        busy_low=_share(section, "busy_low", d.busy_low),
        latency_margin=_share(section, "latency_margin", d.latency_margin),
        clock_step_mhz=_positive(section, "clock_step_mhz", d.clock_step_mhz),
        clock_floor_mhz=section.number("clock_floor_mhz", None, above=0.0),
        starting=_starting(section),
    )
    for low, high in (("kv_low", "kv_high"), ("busy_low", "busy_high")):
        if getattr(found, low) >= getattr(found, high):
            raise section.error(low, f"must be below {high}, {getattr(found, high):g}")
    return found


FREESH = {
    "freesh": FreeshConfig(),
    "min_energy": FreeshConfig("min_energy", objective="energy"),
    "freesh_baseline": FreeshConfig("freesh_baseline", loops=(), order="fcfs", preempts_s=0.0),
}


def read_freesh(section: Section) -> FreeshConfig:
    """Reads the settings of `freesh` or one of its baselines. Raises ScenarioError."""
    name = section.text("name")
    d = FREESH[name]
    found = FreeshConfig(
        name=name,
        loops=_loops(section, LOOPS, d.loops),
        carbon_period_s=_positive(section, "carbon_period_s", d.carbon_period_s),
        scale_period_s=_positive(section, "scale_period_s", d.scale_period_s),
        shard_period_s=_positive(section, "shard_period_s", d.shard_period_s),
        clock_period_s=_positive(section, "clock_period_s", d.clock_period_s),
        step_s=_positive(section, "step_s", d.step_s),
        partition=section.text("partition", "") or None,
        routing=section.choice("routing", _ROUTINGS, d.routing),
        alpha=_least(section, "alpha", d.alpha, 1.0),
        floor_rps=_least(section, "floor_rps", d.floor_rps, 0.0),
        min_saving=_least(section, "min_saving", d.min_saving, 0.0),
        objective=section.choice("objective", [str(item) for item in Objective], d.objective),
        negative_intensity=section.choice(
            "negative_intensity", [str(item) for item in NegativeIntensity], d.negative_intensity
        ),
        latency_margin=_share(section, "latency_margin", d.latency_margin),
        clock_increase=_positive(section, "clock_increase", d.clock_increase, 1.0),
        clock_decrease_mhz=_positive(section, "clock_decrease_mhz", d.clock_decrease_mhz),
        order=section.choice("order", ORDERS, d.order),
        preempts_s=_least(section, "preempts_s", d.preempts_s, 0.0),
        margin_s=_least(section, "margin_s", d.margin_s, 0.0),
        time_limit_s=_positive(section, "time_limit_s", d.time_limit_s),
        starting=_starting(section),
    )
    if found.carbon_period_s < found.step_s:
        raise section.error("step_s", f"must be at most carbon_period_s, {found.carbon_period_s:g}")
    return found


def _loops(section: Section, known: Sequence[str], default: tuple[str, ...]) -> tuple[str, ...]:
    given = section.texts("loops")
    for loop in given:
        if loop not in known:
            raise section.error("loops", f"unknown '{loop}'; known: {', '.join(known)}")
    return tuple(loop for loop in known if loop in given) if "loops" in section.names() else default


def _starting(section: Section) -> Starting:
    return Starting(section.maybe_integer("warm_pool", least=0), section.flag("weights_cached", True))


def _positive(section: Section, key: str, default: float, above: float = 0.0) -> float:
    value = section.number(key, default, above=above)
    return default if value is None else value


def _least(section: Section, key: str, default: float, least: float) -> float:
    value = section.number(key, default, least=least)
    return default if value is None else value


def _share(section: Section, key: str, default: float) -> float:
    value = _positive(section, key, default)
    if value > 1.0:
        raise section.error(key, f"must be at most 1, not {value:g}")
    return value


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
