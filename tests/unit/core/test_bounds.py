"""What a quantity can be is found by the unit that its name ends with."""

import math

import pytest

from core import bounds


@pytest.mark.parametrize(
    ("name", "table", "most"),
    [
        ("floor_rps", "", 1e6),
        ("rps", "", 1e6),
        ("max_rps", "profile", 100_000.0),
        ("clock_floor_mhz", "", 10_000.0),
        ("mhz", "", 10_000.0),
        ("carbon_period_s", "", 31 * 86_400.0),
        ("tpot_threshold_s", "requestclass", 86_400.0),
        ("factor_g_per_kwh", "instrument", 20_000.0),
        ("price_per_kwh", "tariff", 1e6),
        ("volume_kwh", "instrument", 1e12),
        ("aging_tokens_per_s", "", 1e9),
        ("value", "pue", 10.0),
    ],
)
def test_bound_is_that_of_the_unit_or_of_the_name(name, table, most):
    bound = bounds.of(name, table)
    assert bound is not None
    assert bound.most == most


@pytest.mark.parametrize("name", ["value", "alpha", "link_bytes_per_s", "watts_per_rps", "status", "s_", ""])
def test_name_that_says_no_quantity_has_no_bound(name):
    assert bounds.of(name) is None


def test_fault_says_which_end_is_passed():
    bound = bounds.Bound(1.0, 10.0)
    assert [bound.fault(value) for value in (1, 10)] == ["", ""]
    assert bound.fault(0.5) == "must be at least 1"
    assert bound.fault(1e12) == "must be at most 10"
    assert bound.fault(math.nan)
