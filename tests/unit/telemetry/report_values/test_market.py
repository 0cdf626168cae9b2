"""Market-based Scope 2: contracts over what a site consumed."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.market import UJ_PER_KWH, Contract, site_market

DAY_S = 86_400


def contract(kind, factor, volume_kwh=None, start_s=0, end_s=DAY_S, source="contract"):
    volume_wh = None if volume_kwh is None else volume_kwh * 1_000
    return Contract("berlin", kind, factor, volume_wh, start_s, end_s, source)


def market(kwh, *contracts, start_s=0, end_s=DAY_S):
    return site_market("berlin", kwh * UJ_PER_KWH, contracts, start_s, end_s)


def test_emission_is_unknown_when_there_is_no_contract():
    found = market(100)
    assert found.ug_per_uj is None
    assert found.emitted_ug(5) is None
    assert found.uncovered_uj == 100 * UJ_PER_KWH


def test_rest_is_the_suppliers_when_a_volume_covers_a_part():
    found = market(100, contract("supplier", "400"), contract("certificate", "0", 25))
    assert [cover.contract.kind for cover in found.covers] == ["certificate", "supplier"]
    assert found.emitted_ug(100 * UJ_PER_KWH) == 75 * 400 * 1_000_000
    assert found.uncovered_uj == 0


def test_emission_is_unknown_when_a_volume_leaves_a_rest():
    found = market(100, contract("ppa", "11", 99))
    assert found.ug_per_uj is None
    assert found.uncovered_uj == UJ_PER_KWH


def test_volume_counts_by_the_time_when_it_holds_longer_than_the_period():
    year = contract("ppa", "0", 3_650, end_s=365 * DAY_S)
    assert market(100, year).covers[0].covered_uj == 10 * UJ_PER_KWH


def test_supplier_does_not_count_when_its_factor_ends_within_the_period():
    assert market(10, contract("supplier", "400", end_s=DAY_S // 2)).ug_per_uj is None


def test_contracts_of_other_sites_and_times_do_not_count():
    other = Contract("ashburn", "supplier", "400", None, 0, DAY_S, "x")
    late = contract("certificate", "0", 100, DAY_S, 2 * DAY_S)
    assert market(10, other, late).covers == ()


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=20), st.integers(0, 10**6))
def test_lines_emit_what_the_site_does_when_they_are_added_up(parts_uj, factor):
    """To half a microgram a line."""
    total_uj = sum(parts_uj)
    found = site_market("berlin", total_uj, [contract("supplier", str(factor))], 0, DAY_S)
    if not total_uj:
        assert found.ug_per_uj is None
        return
    exact = Fraction(factor * 1_000_000 * total_uj, UJ_PER_KWH)
    assert abs(sum(found.emitted_ug(part) or 0 for part in parts_uj) - exact) <= Fraction(len(parts_uj), 2)
