"""Figures for people: readable whatever their size, and never nothing where there is something."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.unit_scale import CARBON, ENERGY, energy_words, places_for, scale_for, written


@pytest.mark.parametrize(
    ("kwh", "unit"), [(0.0, "kWh"), (3e-7, "mWh"), (0.0125, "Wh"), (1.0, "kWh"), (9_999.0, "kWh"), (12_000.0, "MWh")]
)
def test_unit_is_that_of_the_largest_figure(kwh, unit):
    assert scale_for(ENERGY, [str(kwh), None, kwh / 50]).unit == unit


def test_unit_is_the_usual_one_when_nothing_is_known():
    assert scale_for(CARBON, [None]).unit == "kgCO2e"


@given(st.floats(-1e9, 1e9, allow_subnormal=False), st.integers(0, 4))
def test_figure_is_nothing_only_when_it_is_nothing(value, places):
    text = written(value, places)
    looks_like_nothing = re.fullmatch(r"-?0(\.0+)?", text) is not None
    assert looks_like_nothing == (value == 0)


def test_figures_are_said_in_words():
    assert written(1_234_567.891, 1) == "1\u00a0234\u00a0567.9"
    assert (written(0.004, 2), written(-0.004, 2)) == ("<0.01", ">-0.01")
    assert energy_words(45_000_000_000) == "12.500 Wh"
    assert (places_for(3, ["0.00042", None]), places_for(3, ["2"]), places_for(0, ["0"])) == (7, 3, 0)
