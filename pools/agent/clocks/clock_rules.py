"""The clock rules by name: each hands one engine's readings to a controller of the core, and keeps what that remembers.

A rule's state is the controller's own, None before its first decision. What stands between two decisions in the way of
readings is gathered in `Seen`, whatever the rule.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import msgspec

from core.controllers.clock import frequency, threshold_clock
from core.controllers.clock.clock_profile import ProfileClockConfig
from core.controllers.clock.frequency import MiadConfig, PrimalDualConfig
from core.controllers.clock.threshold_clock import ThresholdClockConfig
from pools.wire import ClockPolicy

from .engine_figures import Figures
from .engine_view import Rule, observation
from .frequency_rule import FrequencyRule, threshold_seen, with_curves
from .profile_rule import ProfileRule
from .slack_rule import SlackRule, slack_config

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

# The gateways decide, as only they know what each request still needs.
BY_REQUEST = ("throttle", "retail", "deadline", "iteration")


def rule_of(policy: ClockPolicy, figures: Figures) -> Rule | None:
    """None: there is nothing to decide by readings.

    Raises:
        ValueError: An unknown rule, or knobs that make no sense.
    """
    if policy.lease_s <= 0.0:
        raise ValueError("lease_s must be above 0")
    if policy.fixed_mhz is not None or policy.paused or policy.policy == "fixed" or policy.policy in BY_REQUEST:
        return None
    if policy.policy == "miad":
        return FrequencyRule(_config(MiadConfig, policy), frequency.step, observation)
    if policy.policy == "primal_dual":
        return FrequencyRule(_config(PrimalDualConfig, policy), frequency.step, with_curves(figures, policy))
    if policy.policy == "profile":
        return ProfileRule(_config(ProfileClockConfig, policy), figures, policy)
    if policy.policy == "slack":
        return SlackRule(slack_config(policy), figures, policy.by_sensitivity)
    if policy.policy == "threshold":
        return FrequencyRule(_config(ThresholdClockConfig, policy), threshold_clock.step, threshold_seen)
    raise ValueError(f"unknown policy '{policy.policy}'")


def look_period_s(policy: ClockPolicy) -> float | None:
    """Returns how often the rule wants a reading; None: not at all."""
    if policy.fixed_mhz is not None or policy.policy == "fixed" or policy.policy in BY_REQUEST:
        return None
    return min(policy.sample_s, policy.period_s) if policy.policy == "slack" else policy.period_s


def _config(kind: type[T], policy: ClockPolicy) -> T:
    """Returns a controller's configuration with the knobs of the same names; those that are None keep its defaults."""
    names = {item.name for item in fields(kind)}
    given = msgspec.structs.asdict(policy)
    return kind(**{name: value for name, value in given.items() if name in names and value is not None})
