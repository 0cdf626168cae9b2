"""Table IV of DynamoLLM."""

from __future__ import annotations

import pytest

from core.policy.dynamo_classes import FACTORS, request_classes, strictest
from core.policy.request_classes import classify
from core.types import Limits

CLASSES = request_classes()
BY_NAME = {own.name: own for own in CLASSES}


@pytest.mark.parametrize(
    ("prompt", "output", "name"),
    [
        (1, 1, "SS"),
        (255, 99, "SS"),
        (256, 99, "MS"),
        (255, 100, "SM"),
        (255, 349, "SM"),
        (255, 350, "SL"),
        (1023, 10, "MS"),
        (1024, 10, "LS"),
        (8192, 5000, "LL"),
        (20_000, 5000, "LL"),
    ],
)
def test_requests_fall_in_the_published_classes(prompt, output, name):
    assert classify(CLASSES, prompt, output) == name


def test_limits_are_the_published_ones():
    assert [BY_NAME[name].limits.ttft_s for name in ("SL", "MS", "LM")] == pytest.approx([0.25, 0.4, 2.0])
    assert {own.limits.tpot_s for own in CLASSES} == {0.1}
    assert [own.rank for own in CLASSES] == list(range(9))
    assert [own.name for own in CLASSES] == ["SS", "SM", "SL", "MS", "MM", "ML", "LS", "LM", "LL"]


@pytest.mark.parametrize("factor", FACTORS)
def test_limits_scale_with_the_factor(factor):
    for own, base in zip(request_classes(factor), CLASSES, strict=True):
        assert own.limits.ttft_s == pytest.approx(base.limits.ttft_s * factor / 5.0)
        assert own.limits.tpot_s == pytest.approx(base.limits.tpot_s * factor / 5.0)


def test_factor_is_refused_when_no_request_could_keep_it():
    with pytest.raises(ValueError, match="at least 1"):
        request_classes(0.5)


def test_strictest_of_those_present_rules_when_a_pool_is_shared():
    assert strictest([Limits(0.4, 0.1), Limits(2.0, 0.05), Limits(None, None, 9.0)]) == Limits(0.4, 0.05)
    assert strictest([]) == Limits()
