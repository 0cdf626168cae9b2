"""Limits of batches and the ladder, as both worlds take them from a policy."""

from __future__ import annotations

import pytest

from core.algorithms.split.split_point import SplitPolicy
from core.controllers.request.emergency import EmergencyConfig, Rung
from core.observations.request.request_configs import emergency_config, first_parts, itl_limit_s, tbt_limit_s
from core.observations.request.split_configs import split_config
from core.policy.tuning import LadderTuning
from core.types import Limits

CLASSES = (Limits(1.0, 0.15), Limits(0.5, 0.08), Limits(0.5, None, 20.0))


@pytest.mark.parametrize(
    ("limit_s", "classes", "expected_s"),
    [
        (None, CLASSES, 0.08),
        (None, CLASSES[2:], 0.1),  # DynaServe's own
        (0.2, CLASSES, 0.2),
        (0.0, CLASSES, 0.0),  # any gap
    ],
)
def test_batches_keep_the_limit_of_the_policy_or_the_strictest_less_a_margin(limit_s, classes, expected_s):
    assert itl_limit_s(limit_s, 0.05, classes) == pytest.approx(0.95 * expected_s)


@pytest.mark.parametrize(
    ("limit_s", "classes", "expected_s"),
    [(None, CLASSES, 0.08), (None, CLASSES[2:], 0.2), (0.3, CLASSES, 0.3)],
)
def test_projections_keep_the_limit_of_the_tuning_or_the_strictest(limit_s, classes, expected_s):
    assert tbt_limit_s(limit_s, classes) == expected_s


def test_ladder_is_what_the_tuning_says_up_to_the_rung_of_the_policy():
    assert emergency_config("squash", LadderTuning()) == EmergencyConfig()
    found = emergency_config("ramp", LadderTuning(0.5, 1.0, 3.0, 7.0, 9))
    assert found == EmergencyConfig(0.5, 1.0, 3.0, 7.0, 9, Rung.RAMP)


@pytest.mark.parametrize(
    ("instances", "share", "expected"), [(2, 0.5, 1), (4, 0.5, 2), (5, 0.25, 1), (5, 0.01, 1), (5, 0.99, 4)]
)
def test_each_group_has_an_instance(instances, share, expected):
    assert first_parts(instances, share) == expected


def test_cuts_are_searched_as_the_tuning_says():
    found = split_config("any", 3, 5, 0.1)
    assert (found.policy, found.max_probes, found.margin_tokens, found.tolerance) == (SplitPolicy.DYNAMIC, 3, 5, 0.1)
    assert split_config("prompt", 6, 20, 0.002).policy is SplitPolicy.DISAGGREGATED
