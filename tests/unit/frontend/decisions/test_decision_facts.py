from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.decisions import decision_facts


@pytest.mark.parametrize("reason", ["congested", "slack", "at_limit"])
@pytest.mark.parametrize("kind", ["carbon", "scale", "shard"])
def test_reasons_of_loops_that_change_the_fleet_say_nothing_of_clocks(kind: str, reason: str) -> None:
    assert "clock" in decision_facts.why("clock", reason)
    assert decision_facts.why(kind, reason)
    assert "clock" not in decision_facts.why(kind, reason)


@pytest.mark.parametrize("kind", ["scale", "clock"])
def test_a_reason_that_every_loop_may_have_is_explained_alike(kind: str) -> None:
    assert decision_facts.why(kind, "no_data") == "an input is missing or stale; the last plan is kept"
    assert decision_facts.why(kind, "within_limits") == ""


def clock(at_s: float) -> str:
    return f"at {at_s:g}"


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_scalars_are_facts_in_words_and_units():
    found = decision_facts.readable(
        {"mean_power_w": 2_460.0, "forecast_issued_at_s": 5.0, "ok": True, "x": None}, clock
    )
    assert [(f.name, plain(f.value)) for f in found.facts] == [
        ("mean power", "2.46 kW"),
        ("forecast issued at", "at 5"),
        ("ok", "yes"),
        ("x", "\u2013"),
    ]


def texts(table: decision_facts.Table) -> list[list[str]]:
    return [[plain(cell.text) for cell in row] for row in ((table.header,) if table.header else ()) + table.rows]


def test_series_by_name_is_a_table_over_steps_with_its_unit_said_once():
    (table,) = decision_facts.readable({"intensity_g_per_kwh": {"east": [410.0, None], "west": [280.5]}}, clock).tables
    assert (table.title, table.unit) == ("intensity", "gCO₂e/kWh")
    assert texts(table) == [["", "step 1", "step 2"], ["east", "410", "\u2013"], ["west", "280.5", ""]]


def test_mapping_of_records_is_a_table_with_a_column_for_each_name():
    (table,) = decision_facts.readable({"pools": {"a": {"power_w": 5.0}, "b": {"gpus": 2}}}, clock).tables
    assert texts(table) == [["", "power", "GPUs"], ["a", "5.00 W", "\u2013"], ["b", "\u2013", "2"]]


def test_records_within_records_get_tables_of_their_own():
    inputs = {
        "partitions": [
            {"name": "cut-a", "classes": [{"max": 1, "name": "SS", "limits": {"ttft_s": 0.3}, "demand_rps": [0.5, 1]}]}
        ]
    }
    (table,) = decision_facts.readable(inputs, clock).tables
    assert table.title == "partitions: cut-a, classes"
    assert texts(table) == [["", "max", "limits", "demand"], ["SS", "1", "TTFT: 300 ms", "0.5, 1 req/s"]]
    assert [cell.number for cell in table.rows[0]] == [False, True, False, False]


def test_records_by_name_within_records_get_tables_of_their_own():
    profiles = {"SS A100/TP2": {"max_rps": 5.0, "source": "interpolated"}, "SS A100/TP4": {"max_rps": 9.0}}
    (table,) = decision_facts.readable({"partitions": [{"name": "cut-a", "profiles": profiles}]}, clock).tables
    assert table.title == "partitions: cut-a, profiles"
    assert texts(table)[1:] == [["SS A100/TP2", "5 req/s", "interpolated"], ["SS A100/TP4", "9 req/s", "\u2013"]]


def test_chosen_alternative_comes_first_and_unknown_columns_are_left_out():
    table = decision_facts.alternatives(
        [
            {"label": "b", "chosen": False, "feasible": False, "failed": "GPUs at east", "power_w": 2.0},
            {"label": "a", "chosen": True, "feasible": True, "power_w": 1.0, "cost_usd": None},
        ]
    )
    assert table.header == ("power",)
    assert [(row.label, row.result) for row in table.rows] == [("a", "chosen"), ("b", "ruled out: GPUs at east")]


def test_prediction_is_compared_in_percent_when_realised():
    rows = decision_facts.comparisons({"energy_j": 100.0, "note": "x"}, {"energy_j": 110.0, "requests": 4}, clock)
    assert [(r.name, r.difference.replace("\u00a0", " ")) for r in rows] == [
        ("energy", "+10.0 %"),
        ("note", ""),
        ("requests", ""),
    ]


def test_predicted_power_is_held_against_the_mean_that_was_metered():
    predicted = {"power_w": 100.0, "source": "published"}
    realised = {
        "from": "2026-03-01T10:00:00+00:00",
        "to": "2026-03-01T10:01:00+00:00",
        "mean_power_w": 90.0,
        "slo_attainment": 0.987,
    }
    rows = decision_facts.comparisons(predicted, realised, clock)
    assert [(r.name, plain(r.realised), plain(r.difference)) for r in rows] == [
        ("mean power", "90.0 W", "-10.0 %"),
        ("SLO attainment", "98.7 %", ""),
    ]
    assert (
        decision_facts.span(predicted, realised, clock, {})
        == "Predicted: published. Realised: at 1.77236e+09 to at 1.77236e+09"
    )
    assert decision_facts.span({"source": "modelled by data sheet"}, None, clock, {}) == (
        "Predicted: modelled by data sheet, which leaves wide margins: nobody has measured a GPU type of the plan"
    )
    assert decision_facts.span({}, None, clock, None) == ""


def test_measured_figures_are_named_with_their_age():
    profiles = {"SS a": {"source": "measured", "measured_at_s": 5.0}, "LL a": {"source": "modelled"}}
    found = decision_facts.span({"source": "modelled"}, None, clock, {"classes": [{"profiles": profiles}]})
    assert found == "Predicted: modelled. Measured figures are of at 5"
    profiles["LL a"] = {"measured_at_s": 9.0}
    assert decision_facts.span({}, None, clock, profiles) == "Measured figures are of at 5 to at 9"


def test_prediction_stands_alone_when_nothing_is_known_yet():
    (row,) = decision_facts.comparisons({"energy_j": 100.0}, None, clock)
    assert row.realised == "\u2013"


def test_command_is_one_line_when_nested():
    line = decision_facts.command({"type": "ScaleTo", "pool": {"site": "east"}, "workers": {"A100/TP4": 2}})
    assert line == "ScaleTo: pool site: east; workers A100/TP4: 2"


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_any_recorded_inputs_can_be_shown(inputs):
    decision_facts.readable(inputs, clock)
