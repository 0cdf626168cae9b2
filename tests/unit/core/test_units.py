import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import units

ENERGY = st.floats(min_value=0.0, max_value=1e12)


def test_energy_is_converted_when_shown_in_watt_hours() -> None:
    assert units.j_to_wh(3_600.0) == 1.0
    assert units.j_to_kwh(3_600_000.0) == 1.0


def test_marginal_rate_is_converted_when_a_feed_gives_pounds_per_mwh() -> None:
    assert units.lb_per_mwh_to_g_per_kwh(1_000.0) == pytest.approx(453.59237)


def test_milliseconds_are_seconds_inside() -> None:
    assert units.ms_to_s(150.0) == pytest.approx(0.15)


def test_one_kwh_emits_the_intensity_times_pue_when_metered_at_the_gpu() -> None:
    assert units.gco2e(units.J_PER_KWH, 400.0, pue=1.5) == pytest.approx(600.0)


def test_carbon_is_negative_when_the_marginal_intensity_is() -> None:
    assert units.gco2e(units.J_PER_KWH, -50.0) == pytest.approx(-50.0)


@given(ENERGY, ENERGY)
def test_carbon_adds_up_when_energy_is_split(a_j: float, b_j: float) -> None:
    whole = units.gco2e(a_j + b_j, 321.0, 1.2)
    assert units.gco2e(a_j, 321.0, 1.2) + units.gco2e(b_j, 321.0, 1.2) == pytest.approx(whole)
