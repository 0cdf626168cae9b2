"""The settings of a policy that DynamoLLM's simulated loops read (HPCA 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from core.controllers.clock.clock_profile import ProfileClockConfig
from core.controllers.fleet.scale_dynamo import ScaleDynamoConfig
from core.controllers.fleet.shard_dynamo import ShardDynamoConfig
from core.controllers.request.emergency import EmergencyConfig
from core.observations import step_configs
from core.observations.request.request_configs import emergency_config
from core.policy.knobs import Knobs
from core.policy.presets import Policy
from core.policy.tuning import ProfileTuning
from core.simulator.kernel.simulated import ORDERS
from core.simulator.policies.config import Reads, Starting, any_of, period_s, running, starting_of
from core.types import Loop

LOOPS = ("scale", "shard", "clock")  # slowest first
ROUTINGS = {"least_energy": "energy", "least_loaded": "least_loaded"}  # the router's words by the knob's


@dataclass(frozen=True, slots=True)
class DynamollmConfig:
    """`loops`: those that run; a knob without its loop stays at its best: all GPUs shared out, `tp`, top clock.

    `knobs`: what the policy plans for (`slo_factor`, the scenario's limits being taken as 5 x a request by itself; its
    shares of limits), the lowest clock, how requests are routed and ordered (the ladder reorders only those that are
    first come first served), and whether there is the ladder of IV-D. The other fields are those of the loops' steps.
    """

    name: str
    loops: tuple[str, ...]
    knobs: Knobs
    scale: ScaleDynamoConfig
    shard: ShardDynamoConfig
    clock: ProfileClockConfig
    profile: ProfileTuning
    ladder: EmergencyConfig
    starting: Starting


READS = Reads(
    {
        **any_of("scale_period_s", "shard_period_s", "clock_period_s", "slo_factor", "alpha", "hand_down", "proactive"),
        **any_of("plan_ttft_share", "plan_tpot_share", "clock_ttft_share", "clock_tpot_share"),
        **any_of("partition", "tp", "class_limits", "emergencies", "emergencies_up_to", "aging_tokens_per_s"),
        **any_of("clock_floor", "clock_floor_mhz"),
        "scale": ("dynamo", "static"),
        "shard": ("dynamo", "off"),
        "clock": ("profile", "fixed"),
        "route": tuple(ROUTINGS),
        "order": ORDERS,
    },
    ("dynamo", "profile", "ladder", "starts"),
)


def of(policy: Policy) -> DynamollmConfig:
    """Returns what the policy comes to."""
    knobs, tuning = policy.knobs, policy.tuning
    return DynamollmConfig(
        name=policy.name,
        loops=running(policy, LOOPS),
        knobs=knobs,
        scale=step_configs.scale_dynamo_config(knobs, tuning, period_s(policy, Loop.SCALE)),
        shard=step_configs.shard_dynamo_config(knobs, tuning, period_s(policy, Loop.SHARD)),
        clock=step_configs.profile_clock_config(tuning, period_s(policy, Loop.CLOCK)),
        profile=tuning.profile,
        ladder=emergency_config(knobs.emergencies_up_to, tuning.ladder),
        starting=starting_of(policy),
    )
