"""The settings of a policy that DynamoLLM's simulated loops read (HPCA 2025)."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.controllers.request.emergency import EmergencyConfig
from core.observations.request_configs import emergency_config
from core.policy.dynamo_classes import PUBLISHED_FACTOR
from core.policy.presets import Policy
from core.simulator.kernel.simulated import ORDERS
from core.simulator.policies.config import Reads, Starting, any_of, period_s, running, starting_of
from core.types import Loop

LOOPS = ("scale", "shard", "clock")  # slowest first
ROUTINGS = {"least_energy": "energy", "least_loaded": "least_loaded"}  # the router's words by the knob's


@dataclass(frozen=True, slots=True)
class DynamollmConfig:
    """`loops`: those that run; a knob without its loop stays at its best: all nodes shared out, TP 8, top clock.

    `slo_factor`: what the policy plans for, the scenario's limits taken as 5 x a request by itself. `ttft_share`: part
    of a TTFT limit that the mean iteration with a prompt may take, since a request also waits for the one under way;
    `tpot_share`: part of a TPOT limit that a predicted mean may take. The clock loop has such shares of its own, and a
    floor (`Knobs.clock_floor`). `headroom` is on the forecast, `alpha` on the
    load of a shard epoch. `hand_down`, `proactive`, `warm_pool`, `down_after`, `wave`, `clocks`, `min_saving`: see
    `ScaleDynamoConfig` and `ShardDynamoConfig`. `order`: of every instance's queue; the ladder reorders only those that
    are first come first served. `emergency`: whether there is the ladder of IV-D.
    """

    name: str = "dynamollm"
    loops: tuple[str, ...] = LOOPS
    scale_period_s: float = 1800.0
    shard_period_s: float = 300.0
    clock_period_s: float = 5.0
    slo_factor: float = PUBLISHED_FACTOR
    ttft_share: float = 0.45
    tpot_share: float = 0.9
    clock_ttft_share: float = 0.45
    clock_tpot_share: float = 0.9
    clock_floor: str = "gpu"
    clock_floor_mhz: float | None = None
    clock_min_saving: float = 0.02
    clock_memory_s: float = 60.0
    clock_counts_ttft: bool = True
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
    ladder: EmergencyConfig = field(default_factory=EmergencyConfig)
    starting: Starting = field(default_factory=Starting)


READS = Reads(
    {
        **any_of("scale_period_s", "shard_period_s", "clock_period_s", "slo_factor", "alpha", "hand_down", "proactive"),
        **any_of("plan_ttft_share", "plan_tpot_share", "clock_ttft_share", "clock_tpot_share"),
        **any_of("emergencies", "emergencies_up_to", "clock_floor", "clock_floor_mhz"),
        "scale": ("dynamo", "static"),
        "shard": ("dynamo", "off"),
        "clock": ("profile", "fixed"),
        "route": tuple(ROUTINGS),
        "order": ORDERS,
    },
    ("dynamo", "profile.min_saving", "profile.memory_s", "profile.counts_ttft", "ladder", "starts"),
)


def of(policy: Policy) -> DynamollmConfig:
    """Returns what the policy comes to."""
    knobs, tuned = policy.knobs, policy.tuning.dynamo
    return DynamollmConfig(
        name=policy.name,
        loops=running(policy, LOOPS),
        scale_period_s=period_s(policy, Loop.SCALE),
        shard_period_s=period_s(policy, Loop.SHARD),
        clock_period_s=period_s(policy, Loop.CLOCK),
        slo_factor=knobs.slo_factor,
        ttft_share=knobs.plan_ttft_share,
        tpot_share=knobs.plan_tpot_share,
        clock_ttft_share=knobs.clock_ttft_share,
        clock_tpot_share=knobs.clock_tpot_share,
        clock_floor=knobs.clock_floor,
        clock_floor_mhz=knobs.clock_floor_mhz,
        clock_min_saving=policy.tuning.profile.min_saving,
        clock_memory_s=policy.tuning.profile.memory_s,
        clock_counts_ttft=policy.tuning.profile.counts_ttft,
        headroom=knobs.alpha,
        alpha=tuned.shard_alpha,
        hand_down=knobs.hand_down,
        proactive=knobs.proactive,
        down_after=tuned.down_after,
        wave=tuned.wave,
        clocks=tuned.clocks,
        min_saving=tuned.min_saving,
        routing=ROUTINGS[knobs.route],
        order=knobs.order,
        emergency=knobs.emergencies,
        ladder=emergency_config(knobs.emergencies_up_to, policy.tuning.ladder),
        starting=starting_of(policy),
    )
