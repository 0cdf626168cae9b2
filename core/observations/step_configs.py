"""The configurations of the loops' steps, made of a policy's knobs and tuning for every world."""

from __future__ import annotations

from core.algorithms.clock.busy_thresholds import ThresholdClockConfig
from core.algorithms.clock.miad import MiadConfig
from core.algorithms.clock.primal_dual import PrimalDualConfig
from core.algorithms.clock.slack_miad import SlackConfig
from core.algorithms.fleet.fleet_problem import NegativeIntensity, Objective
from core.controllers.clock.clock_profile import ProfileClockConfig
from core.controllers.clock.muserve_clock import MuServeClockConfig
from core.controllers.fleet.carbon import CarbonConfig
from core.controllers.fleet.placement import PlacingConfig
from core.controllers.fleet.pool_loop import PoolLoopConfig
from core.controllers.fleet.right_size import RightSizeConfig
from core.controllers.fleet.scale_dynamo import ScaleDynamoConfig
from core.controllers.fleet.scale_threshold import ScaleThresholdConfig
from core.controllers.fleet.shard_dynamo import ShardDynamoConfig
from core.controllers.fleet.shard_threshold import ShardThresholdConfig
from core.controllers.fleet.shared_out import SharedOutConfig
from core.policy.knobs import Knobs
from core.policy.tuning import Tuning

_POOL_TIME_LIMIT_S = 5.0  # of one pool's program, which is far smaller than that of all


def carbon_config(knobs: Knobs, tuning: Tuning) -> CarbonConfig:
    """Returns the configuration of FREESH's eq. 1."""
    return CarbonConfig(
        alpha=knobs.alpha,
        objective=Objective(knobs.objective),
        negative_intensity=NegativeIntensity(knobs.negative_intensity),
        time_limit_s=tuning.eq1.time_limit_s,
        floor_rps=tuning.eq1.floor_rps,
        min_saving=tuning.eq1.min_saving,
        best_effort=True,
    )


def pool_config(knobs: Knobs, tuning: Tuning) -> PoolLoopConfig:
    """Returns the configuration of FREESH's program in one budget, and of the mix of TP degrees."""
    return PoolLoopConfig(knobs.alpha, tuning.eq1.floor_rps, min(_POOL_TIME_LIMIT_S, tuning.eq1.time_limit_s))


def shared_out_config(knobs: Knobs, largest_tp: int) -> SharedOutConfig:
    """Returns the configuration of plans without a carbon loop. `largest_tp`: of an instance on the nodes there are."""
    return SharedOutConfig(tp=largest_tp, fill=knobs.fill, alpha=knobs.alpha, whole_sites=knobs.whole_sites)


def right_size_config(knobs: Knobs, tuning: Tuning, period_s: float) -> RightSizeConfig:
    """Returns the configuration of GreenServe's scale loop."""
    own = tuning.right_size
    return RightSizeConfig(
        period_s=period_s,
        headroom=knobs.alpha,
        burst=own.burst,
        hold_s=own.hold_s,
        min_saving=own.min_saving,
        mode_saving=own.mode_saving,
        changes_per_hour=knobs.changes_per_hour,
        catch_up_s=own.catch_up_s,
        learn_s=own.learn_s,
    )


def placing_config(tuning: Tuning) -> PlacingConfig:
    """Returns the configuration of mu-Serve's placement."""
    return PlacingConfig(tuning.placement.kind, tuning.placement.goal)


def scale_dynamo_config(knobs: Knobs, tuning: Tuning, period_s: float) -> ScaleDynamoConfig:
    """Returns the configuration of DynamoLLM's scale loop."""
    return ScaleDynamoConfig(
        epoch_s=period_s,
        headroom=knobs.alpha,
        hand_down=knobs.hand_down,
        proactive=knobs.proactive,
        warm_pool=tuning.starts.warm_pool,
        down_after=tuning.dynamo.down_after,
    )


def shard_dynamo_config(knobs: Knobs, tuning: Tuning, period_s: float) -> ShardDynamoConfig:
    """Returns the configuration of DynamoLLM's shard loop."""
    own = tuning.dynamo
    return ShardDynamoConfig(
        epoch_s=period_s, alpha=own.shard_alpha, clocks=own.clocks, wave=own.wave, min_saving=own.min_saving
    )


def scale_threshold_config(knobs: Knobs, tuning: Tuning, period_s: float) -> ScaleThresholdConfig:
    """Returns the configuration of scale by thresholds."""
    own = tuning.threshold
    return ScaleThresholdConfig(period_s, knobs.alpha, tuning.eq1.floor_rps, own.kv_high, own.kv_low)


def shard_threshold_config(knobs: Knobs, tuning: Tuning, period_s: float) -> ShardThresholdConfig:
    """Returns the configuration of shard by thresholds."""
    own = tuning.threshold
    return ShardThresholdConfig(period_s, knobs.alpha, tuning.eq1.floor_rps, own.gain, own.streak)


def threshold_clock_config(tuning: Tuning, period_s: float) -> ThresholdClockConfig:
    """Returns the configuration of the clock by thresholds."""
    own = tuning.threshold
    return ThresholdClockConfig(period_s, own.busy_high, own.busy_low, own.clock_step_mhz)


def clock_config(
    knobs: Knobs, tuning: Tuning, period_s: float
) -> MiadConfig | PrimalDualConfig | ProfileClockConfig | MuServeClockConfig | None:
    """Returns the configuration of the rule that sets clocks each `period_s`; None: it is of another kind.

    Raises:
        ValueError: Periods of mu-Serve's rule that contradict each other.
    """
    match knobs.clock:
        case "miad":
            return MiadConfig(tuning.miad.increase, tuning.miad.decrease_mhz, period_s)
        case "primal_dual":
            own = tuning.primal_dual
            constants = own.full_at, own.sensitivity, own.power_exponent, own.beta, own.urgency
            return PrimalDualConfig(*constants, by_profile=own.by == "profile", period_s=period_s)
        case "profile":
            return profile_clock_config(tuning, period_s)
        case "slack":
            return slack_config(tuning, period_s)
    return None


def profile_clock_config(tuning: Tuning, period_s: float) -> ProfileClockConfig:
    """Returns the configuration of DynamoLLM's rule, which sets clocks by profile."""
    return ProfileClockConfig(period_s, tuning.profile.min_saving)


def slack_config(tuning: Tuning, period_s: float) -> MuServeClockConfig:
    """Returns the configuration of mu-Serve's rule. Raises ValueError: its periods contradict each other."""
    own = tuning.slack
    rule = SlackConfig(own.step_mhz, own.increase, own.reserve)
    return MuServeClockConfig(rule, own.sample_s, period_s, own.memory_s)
