"""The aging that a gateway measures: by the predictions that came, by the limits, and anew once a minute."""

from __future__ import annotations

import pytest

from core.observations.limits import LONG_ANSWER
from core.predictors.output_length import PRIOR_OUTPUT_TOKENS, WARM_UP
from pools import wire
from pools.gateway.fleet.view import Service
from pools.gateway.placing.measured_aging import PERIOD_S, MeasuredAging

LIMIT_S = 50.0


def service(expected: int | None = None, limits: wire.LatencyLimits | None = None) -> Service:
    own = wire.LatencyLimits(e2e_s=LIMIT_S) if limits is None else limits
    return Service(
        wire.FleetService("chat", "M", "vllm-v1", 8192, own, "only", [], [], expected_output_tokens=expected)
    )


def allowed_s(aging: MeasuredAging, tokens: float, now_s: float = 0.0) -> float:
    """Returns for how long a request of so many tokens is overtaken."""
    return tokens / aging.tokens_per_s(service(), now_s)


def test_long_requests_are_overtaken_for_the_limit_when_predictions_are_seen() -> None:
    aging = MeasuredAging()
    for n in range(200):
        aging.note(service(), 600 if n % 50 == 0 else 20)
    assert allowed_s(aging, 600) == pytest.approx(LIMIT_S)


@pytest.mark.parametrize(("expected", "mean"), [(None, PRIOR_OUTPUT_TOKENS), (300, 300.0)])
def test_long_requests_are_of_the_declared_mean_when_few_were_seen(expected: int | None, mean: float) -> None:
    aging = MeasuredAging()
    for _ in range(WARM_UP - 1):
        aging.note(service(), 5000)
    assert aging.tokens_per_s(service(expected), 0.0) == pytest.approx(LONG_ANSWER * mean / LIMIT_S)


def test_tail_stays_for_a_minute_when_longer_requests_come() -> None:
    aging = MeasuredAging()
    for _ in range(WARM_UP):
        aging.note(service(), 100)
    assert allowed_s(aging, 100) == pytest.approx(LIMIT_S)
    for _ in range(WARM_UP):
        aging.note(service(), 400)
    assert allowed_s(aging, 100, PERIOD_S - 0.1) == pytest.approx(LIMIT_S)
    assert allowed_s(aging, 400, PERIOD_S) == pytest.approx(LIMIT_S)


def test_limits_of_classes_go_before_those_of_the_service_when_there_are_some() -> None:
    loose, tight = (
        wire.FleetClass(name, 0, 0, None, 0, None, limits=wire.LatencyLimits(e2e_s=s))
        for name, s in (("a", 80.0), ("b", 10.0))
    )
    own = Service(wire.FleetService("chat", "M", "e", 8192, wire.LatencyLimits(e2e_s=LIMIT_S), "p", [loose, tight], []))
    assert LONG_ANSWER * PRIOR_OUTPUT_TOKENS / MeasuredAging().tokens_per_s(own, 0.0) == pytest.approx(80.0)
