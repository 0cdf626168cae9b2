"""DynamoLLM's knobs, and its baselines as settings of the same knobs (HPCA 2025, section V-A)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from core.policy.dynamo_classes import FACTORS, PUBLISHED_FACTOR
from core.simulator.fields import Section
from core.simulator.kernel.simulated import ORDERS
from core.simulator.policies.config import Starting

RUNGS = ("reorder", "ramp", "resteer", "squash")
LOOPS = ("scale", "shard", "clock")  # slowest first
ROUTINGS = ("energy", "least_loaded")
CLOCKS = ("top", "all")


@dataclass(frozen=True, slots=True)
class DynamollmConfig:
    """`loops`: those that run; a knob without its loop stays at its best: all nodes shared out, TP 8, top clock.

    `slo_factor`: what the policy plans for, the scenario's limits taken as 5 x a request by itself. `wait_share`: part
    of a TTFT limit that the mean iteration with a prompt may take, since a request also waits for the one under way;
    `margin`: part of any limit that a predicted latency may take. `headroom` is on the forecast, `alpha` on the load of
    a shard epoch. `hand_down`, `proactive`, `warm_pool`, `down_after`, `wave`, `clocks`, `min_saving`: see
    `ScaleDynamoConfig` and `ShardDynamoConfig`. `order`: of every instance's queue; the ladder reorders only those that
    are first come first served. `emergency`: the ladder of IV-D, up to the rung `emergency_up_to`.
    """

    name: str = "dynamollm"
    loops: tuple[str, ...] = LOOPS
    scale_period_s: float = 1800.0
    shard_period_s: float = 300.0
    clock_period_s: float = 5.0
    slo_factor: float = PUBLISHED_FACTOR
    margin: float = 0.9
    wait_share: float = 0.5
    headroom: float = 1.0
    alpha: float = 1.1
    hand_down: bool = True
    proactive: bool = True
    down_after: int = 2
    wave: int = 2
    clocks: str = "top"
    min_saving: float = 0.01
    routing: str = "energy"
    order: str = "fcfs"
    emergency: bool = True
    emergency_up_to: str = RUNGS[-1]
    emergency_period_s: float = 1.0
    starting: Starting = field(default_factory=Starting)


# Each of the three scales one knob of MultiPool: separate pools, without what is DynamoLLM's own. ScaleInst starts
# servers when their load is there, from nothing (V-B: "overheads ... on the critical path").
_PLAIN = DynamollmConfig(name="", loops=(), hand_down=False, proactive=False, routing="least_loaded", emergency=False)
PRESETS: dict[str, DynamollmConfig] = {
    "dynamollm": DynamollmConfig(),
    "scale_inst": replace(_PLAIN, name="scale_inst", loops=("scale",), starting=Starting(0, weights_cached=False)),
    "scale_shard": replace(_PLAIN, name="scale_shard", loops=("shard",)),
    "scale_freq": replace(_PLAIN, name="scale_freq", loops=("clock",)),
}


def read_dynamollm(section: Section) -> DynamollmConfig:
    """Reads the settings of `dynamollm` or a baseline; the name says which defaults stand where a key is not given.

    Raises:
        ScenarioError: A value is out of range.
    """
    d = PRESETS[section.text("name")]

    def number(key: str, least: float | None = None, above: float | None = None) -> float:
        value = section.number(key, None, least=least, above=above)
        return float(getattr(d, key)) if value is None else value

    def share(key: str) -> float:
        value = number(key, above=0.0)
        if value > 1.0:
            raise section.error(key, f"must be at most 1, not {value:g}")
        return value

    found = DynamollmConfig(
        name=d.name,
        loops=_loops(section, d),
        scale_period_s=number("scale_period_s", above=0.0),
        shard_period_s=number("shard_period_s", above=0.0),
        clock_period_s=number("clock_period_s", above=0.0),
        slo_factor=number("slo_factor"),
        margin=share("margin"),
        wait_share=share("wait_share"),
        headroom=number("headroom", least=1.0),
        alpha=number("alpha", least=1.0),
        hand_down=section.flag("hand_down", d.hand_down),
        proactive=section.flag("proactive", d.proactive),
        down_after=section.integer("down_after", d.down_after, least=1),
        wave=section.integer("wave", d.wave, least=1),
        clocks=section.choice("clocks", CLOCKS, d.clocks),
        min_saving=number("min_saving", least=0.0),
        routing=section.choice("routing", ROUTINGS, d.routing),
        order=section.choice("order", ORDERS, d.order),
        emergency=section.flag("emergency", d.emergency),
        emergency_up_to=section.choice("emergency_up_to", RUNGS, d.emergency_up_to),
        emergency_period_s=number("emergency_period_s", above=0.0),
        starting=_starting(section, d.starting),
    )
    if found.slo_factor not in FACTORS:
        known = ", ".join(f"{factor:g}" for factor in FACTORS)
        raise section.error("slo_factor", f"must be one of {known}, not {found.slo_factor:g}")
    return found


def _loops(section: Section, default: DynamollmConfig) -> tuple[str, ...]:
    given = section.texts("loops")
    for loop in given:
        if loop not in LOOPS:
            raise section.error("loops", f"unknown '{loop}'; known: {', '.join(LOOPS)}")
    return tuple(loop for loop in LOOPS if loop in given) if "loops" in section.names() else default.loops


def _starting(section: Section, default: Starting) -> Starting:
    warm_pool = section.maybe_integer("warm_pool", least=0) if "warm_pool" in section.names() else default.warm_pool
    return Starting(warm_pool, section.flag("weights_cached", default.weights_cached))
