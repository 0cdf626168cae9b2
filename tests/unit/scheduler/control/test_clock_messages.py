"""The clock rule that agents make of what is published is the one that simulated loops run."""

from __future__ import annotations

from typing import Any

import pytest

from core.controllers.clock.muserve_clock import MuServeClockConfig
from core.observations.step_configs import clock_config
from core.policy.presets import policy
from pools.agent.clocks.clock_rules import rule_of
from pools.agent.clocks.engine_figures import Figures
from scheduler.control import service_policy

CHANGED: dict[str, dict[str, Any]] = {
    "miad": {"increase": 1.5, "decrease_mhz": 60.0},
    "primal_dual": {
        **{"by": "constants", "full_at": 8.0, "sensitivity": 0.5, "power_exponent": 2.0, "beta": 1.5, "urgency": 2.0}
    },
    "profile": {"min_saving": 0.1, "memory_s": 20.0, "step_mhz": 90.0, "counts_ttft": False, "full_iteration": True},
    "slack": {
        **{"step_mhz": 50.0, "increase": 1.5, "reserve": 0.1, "sample_s": 0.25, "memory_s": 20.0, "sensitivity": False}
    },
}


@pytest.mark.parametrize("own", [False, True], ids=["preset", "changed"])
@pytest.mark.parametrize("clock", list(CHANGED))
def test_agents_and_simulated_loops_configure_a_rule_alike(clock: str, own: bool) -> None:
    tuning = {"tuning": {clock: CHANGED[clock]}} if own else {}
    found = policy("freesh", {"clock": clock, "clock_period_s": 2.0, **tuning})
    message = service_policy.clock_rule(found.knobs, found.tuning)
    rule: Any = rule_of(message, Figures())
    simulated = clock_config(found.knobs, found.tuning, 2.0)
    if isinstance(simulated, MuServeClockConfig):
        assert rule.by_sensitivity == found.tuning.slack.sensitivity
    assert rule.config == simulated
    if clock == "profile":
        assert all(getattr(message, name) == getattr(found.tuning.profile, name) for name in CHANGED["profile"])


@pytest.mark.parametrize("clock", ["fixed", "throttle", "retail", "deadline", "iteration"])
def test_rules_of_other_kinds_have_no_configuration_of_their_own(clock: str) -> None:
    found = policy("freesh", {"clock": clock})
    assert clock_config(found.knobs, found.tuning, 1.0) is None
    assert rule_of(service_policy.clock_rule(found.knobs, found.tuning), Figures()) is None


@pytest.mark.parametrize(("own", "error", "measured"), [({}, 0.3, True), ({"predictor_error": 0.2}, 0.2, False)])
def test_gateways_measure_the_error_of_predictions_unless_it_is_set(
    own: dict[str, Any], error: float, measured: bool
) -> None:
    found = policy("throttllem", own)
    message = service_policy.request_policy(found.knobs, found.tuning)
    assert (message.predictor_error, message.predictor_error_measured) == (error, measured)
    assert service_policy.clock_rule(found.knobs, found.tuning).predictor_error == error
