from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend import formats
from frontend.formats import UNKNOWN


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", ",")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "W", "0 W"),
        (3_210.0, "W", "3.21 kW"),
        (999.7, "W", "1.00 kW"),
        (1_234_567.0, "J", "1.23 MJ"),
        (42.0, "", "42.0"),
        (None, "W", UNKNOWN),
        (-1_500.0, "gCO₂e", "-1.50 kgCO₂e"),
    ],
)
def test_si_uses_the_prefix_that_fits(value, unit, text):
    assert plain(formats.si(value, unit)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, UNKNOWN), (0.046, "46 ms"), (2.0, "2 s"), (2.04, "2 s"), (12.3, "12 s"), (300, "5 min"), (90_000, "25 h")],
)
def test_seconds_reads_naturally(value, text):
    assert plain(formats.seconds(value)) == text


@pytest.mark.parametrize(
    ("share", "text"), [(None, UNKNOWN), (1.0, "100.0 %"), (0.99999, "99.9 %"), (0.0, "0.0 %"), (0.5, "50.0 %")]
)
def test_percent_never_rounds_up_to_all(share, text):
    assert plain(formats.percent(share)) == text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean_power_w", ("mean power", "W")),
        ("intensity_g_per_kwh", ("intensity", "gCO₂e/kWh")),
        ("gpu_budget", ("GPU budget", "")),
        ("ttft_s", ("TTFT", "s")),
        ("status", ("status", "")),
    ],
)
def test_unit_is_read_from_the_name(name, said):
    assert formats.unit_of(name) == said


@given(st.floats(min_value=1e-3, max_value=1e13))
def test_prefixed_number_stays_between_one_and_a_thousand(value):
    divisor, _ = formats.prefix(value, floor=1e-3)
    assert 1.0 <= value / divisor < 1_000.0 or value >= 1e15


@given(st.floats(min_value=0, max_value=1, exclude_max=True))
def test_percent_says_100_only_when_all_met(share):
    assert "100" not in formats.percent(share)


def test_few_says_how_many_others_there_are_when_names_are_many():
    names = [f"n{n}" for n in range(2_000)]
    assert formats.few(names[:3]) == "n0, n1, n2"
    assert formats.few(names[:6]) == "n0, n1, n2, n3, n4, n5", "a single other one is named"
    assert formats.few(names) == "n0, n1, n2, n3, n4 and 1,995 others"
