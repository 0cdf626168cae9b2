"""Market-based Scope 2: contracts over what a site consumed, by the hour and over the period."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.contracts import HOUR_S, SOURCES, UJ_PER_KWH, UJ_PER_WH, Contract, Generated
from telemetry.report_values.market import HOURLY, MATCHINGS, PERIOD
from telemetry.report_values.scope2 import Scope2
from telemetry.report_values.scope2_table import SCOPE2_CELLS, as_json, write_scope2_csv

DAY_S = 86_400
BIG = 10**13


def contract(kind="ppa", factor="0", volume_kwh=None, start_s=0, end_s=DAY_S, **given):
    volume_wh = None if volume_kwh is None else volume_kwh * 1_000
    return Contract("berlin", kind, factor, volume_wh, start_s, end_s, given.pop("source", kind), **given)


def matched(hours_kwh, *contracts, matching=HOURLY, start_s=0, end_s=None):
    """Scope 2 of a site that uses so much in one hour after the other."""
    return in_uj([round(kwh * UJ_PER_KWH) for kwh in hours_kwh], *contracts, matching=matching, start_s=start_s)


def in_uj(hours_uj, *contracts, matching=HOURLY, start_s=0):
    end_s = start_s + len(hours_uj) * HOUR_S
    found = Scope2.of(matching, {"berlin": sum(hours_uj)}, contracts, start_s, end_s)
    for n, uj in enumerate(hours_uj):
        span = (start_s + n * HOUR_S, start_s + (n + 1) * HOUR_S)
        found.add("berlin", span, (uj, uj), (0, 0))
    return found


def cells(scope2):
    sums = scope2.total()
    return {name: cell(sums) for name, cell in SCOPE2_CELLS.items()}


SOLAR = (0,) * 8 + (1,) * 8 + (0,) * 8
RESIDUAL = contract("residual", "500", end_s=2 * DAY_S)


def test_golden_day_when_the_sun_covers_a_flat_load():
    """24 kWh in a flat load; 24 kWh of sun in 8 hours: 8 are matched by the hour, all of them over the day."""
    sun = contract(volume_kwh=24, generation="profile", profile=SOLAR, factor="10", mix={"solar": "1"})
    found = matched([1] * 24, sun, RESIDUAL)
    assert cells(found) == {
        "energy_j": "86400000",
        "facility_kwh": "24",
        "location_kgco2e": "0",
        "without_intensity_kwh": "0",
        "market_hourly_kgco2e": "8.08",  # 8 kWh at 10 g, 16 kWh at 500 g
        "without_contract_hourly_kwh": "0",
        "matched_hourly_kwh": "8",
        "matched_hourly_share": "0.333333333333",
        "carbon_free_kwh": "8",
        "carbon_free_share": "0.333333333333",
        "supplier_kwh": "0",
        "residual_kwh": "16",
        "surplus_kwh": "16",
        "market_period_kgco2e": "0.24",  # 24 kWh at 10 g
        "without_contract_period_kwh": "0",
        "matched_period_kwh": "24",
        "matched_period_share": "1",
        "hours": "24",
        "generation_unknown_hours": "0",
    }
    by_hour = as_json(found, lambda at_s: at_s // HOUR_S)["hours_of_day"]
    assert [one["matched_share"] for one in by_hour] == [str(weight) for weight in SOLAR]


def test_rest_is_unknown_and_not_the_grids_when_no_residual_mix_is_declared():
    found = cells(matched([1] * 24, contract(volume_kwh=12)))
    assert (found["market_hourly_kgco2e"], found["without_contract_hourly_kwh"]) == (None, "12")
    assert (found["market_period_kgco2e"], found["without_contract_period_kwh"]) == (None, "12")
    none = cells(matched([1]))
    assert (none["market_hourly_kgco2e"], none["without_contract_hourly_kwh"]) == (None, "1")


def test_rest_is_the_suppliers_before_the_residual_mix():
    found = matched([1] * 24, contract("certificate", volume_kwh=6), contract("supplier", "400"), RESIDUAL)
    assert [cover.contract.kind for cover in found.sites["berlin"].covers(HOURLY)] == ["certificate", "supplier"]
    assert cells(found)["market_hourly_kgco2e"] == "7.2"


def test_suppliers_factor_holds_for_its_own_hours_alone():
    """Over the period a factor must be valid throughout; by the hour it counts in each hour in which it is."""
    found = cells(matched([1] * 24, contract("supplier", "400", end_s=DAY_S // 2)))
    assert (found["without_contract_hourly_kwh"], found["without_contract_period_kwh"]) == ("12", "24")


def test_volume_counts_by_the_time_when_it_holds_longer_than_the_period():
    year = contract(volume_kwh=8_760, end_s=365 * DAY_S)
    assert cells(matched([2] * 24, year))["matched_hourly_kwh"] == "24"


def test_silent_hour_of_a_metered_contract_covers_nothing_and_is_counted():
    metered = contract(generation="metered", hours=((0, 700), (HOUR_S, None), (2 * HOUR_S, 2_000)))
    found = cells(matched([1] * 4, metered, RESIDUAL))
    assert (found["matched_hourly_kwh"], found["surplus_kwh"]) == ("1.7", "1")
    assert (found["generation_unknown_hours"], found["residual_kwh"]) == ("2", "2.3")


def test_contracts_of_other_sites_and_times_do_not_count():
    other = replace(contract("supplier", "400"), site="ashburn")
    late = contract("certificate", volume_kwh=100, start_s=DAY_S, end_s=2 * DAY_S)
    assert matched([1] * 24, other, late).sites["berlin"].covers(HOURLY) == ()


def test_carbon_free_is_what_burns_nothing():
    mix = {"wind": "0.5", "biomass": "0.3", "gas": "0.2"}
    found = cells(matched([1], contract(volume_kwh=24, mix=mix), contract("certificate", volume_kwh=24)))
    assert (found["matched_hourly_kwh"], found["carbon_free_kwh"]) == ("1", "0.5")
    assert set(SOURCES.values()) == {"fossil", "nuclear", "renewable"}


def test_contract_says_which_criteria_it_does_not_show():
    bare = contract(volume_kwh=1)
    assert [words.rpartition("(")[2] for words in bare.unproven("AIB", 2026)] == [
        *("criterion 3)", "criterion 4)", "criterion 5)")
    ]
    proven = replace(bare, cancellation="HKNR 7", vintage_year=2026, market="AIB")
    assert list(proven.unproven("AIB", 2026)) == []
    assert list(contract("residual", "5").unproven("", 2026)) == []


def test_csv_has_a_row_for_each_hour_and_adds_up():
    found = matched([1, 2, 0.25], contract(volume_kwh=24), RESIDUAL)
    out = io.StringIO()
    assert write_scope2_csv(found, {"report_version": "R1"}, out) == 3
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert rows[1]["hour_start_utc"] == "1970-01-01T01:00:00Z"
    assert sum(float(row["facility_kwh"]) for row in rows) == 3.25
    assert sum(float(row["matched_hourly_kwh"]) for row in rows) == 2.25


# -- laws ------------------------------------------------------------------------------------------

HOURS_UJ = st.lists(st.integers(0, BIG), min_size=1, max_size=30)


@st.composite
def contracts(draw):
    found = []
    for _ in range(draw(st.integers(0, 4))):
        start_s = draw(st.integers(-2 * DAY_S, DAY_S))
        end_s = start_s + draw(st.integers(1, 3 * DAY_S))
        kind = draw(st.sampled_from(("ppa", "certificate", "supplier", "residual")))
        given_ = {"generation": draw(st.sampled_from(("even", "profile", "metered")))}
        volume_kwh = draw(st.integers(1, 10_000))
        if kind in ("supplier", "residual"):
            given_, volume_kwh = {}, None
        elif given_["generation"] == "profile":
            given_["profile"] = tuple(draw(st.lists(st.integers(0, 9), min_size=24, max_size=24).filter(any)))
        elif given_["generation"] == "metered":
            volume_kwh = None
            hours = draw(st.dictionaries(st.integers(0, 30), st.none() | st.integers(0, 10**7)))
            given_["hours"] = tuple((n * HOUR_S, wh) for n, wh in sorted(hours.items()))
        if given_.get("generation") == "profile" and end_s - start_s < DAY_S:
            end_s = start_s + DAY_S
        factor = draw(st.sampled_from(("0", "11.5", "500")))
        found.append(contract(kind, factor, volume_kwh, start_s, end_s, **given_))
    return found


@given(HOURS_UJ, contracts())
def test_contracts_never_cover_more_than_the_meter_in_any_hour(hours_uj, own):
    found = in_uj(hours_uj, *own)
    for (_, start_s, end_s), sums in found.hours.items():
        assert 0 <= sums.hourly_matched_uj <= sums.facility_uj == hours_uj[start_s // HOUR_S]
        parts = sums.hourly_matched_uj + sums.supplier_uj + sums.residual_uj + sums.hourly_missing_uj
        assert parts == sums.facility_uj
        generated = [Generated(one) for one in own if one.kind in ("ppa", "certificate")]
        generated_uj = sum(one.between_uj(start_s, end_s) for one in generated)
        assert sums.hourly_matched_uj + sums.surplus_uj == generated_uj, "none moves to another hour"
        assert sums.hourly_ug >= 0


@pytest.mark.parametrize("matching", MATCHINGS)
@given(HOURS_UJ, contracts())
def test_hours_add_up_to_the_period_and_its_contracts(matching, hours_uj, own):
    found = in_uj(hours_uj, *own, matching=matching)
    total, market = found.total(), found.sites["berlin"]
    covers = market.covers(matching)
    missing_uj = total.hourly_missing_uj if matching == HOURLY else total.period_missing_uj
    assert sum(cover.covered_uj for cover in covers) + missing_uj == sum(hours_uj)
    exact = sum(
        (Fraction(cover.contract.factor_g_per_kwh) * cover.covered_uj * 10**6 / UJ_PER_KWH for cover in covers),
        Fraction(0),
    )
    ug = total.hourly_ug if matching == HOURLY else total.period_ug
    assert 0 <= exact - ug < (len(hours_uj) if matching == HOURLY else 1)
    assert total.hourly_matched_uj <= max(total.period_matched_uj, 0) or matching == PERIOD


@given(contracts().filter(bool), st.lists(st.integers(-3 * DAY_S, 4 * DAY_S), min_size=3, max_size=6))
def test_volume_is_used_once_when_its_time_is_cut_anywhere(own, cuts):
    one = own[0]
    if one.volume_wh is None:
        return
    edges = sorted({one.start_s, *cuts, one.end_s})
    generated = Generated(one)
    parts = [generated.between_uj(a, b) for a, b in pairwise(edges)]
    assert min(parts) >= 0
    assert sum(parts) == one.volume_wh * UJ_PER_WH
