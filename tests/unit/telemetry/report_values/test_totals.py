"""Groups, days and totals are sums of the same lines; what is not known is never nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.lines import DIMENSIONS, SloCount, decimal_text, joules, kwh
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.table import COLUMNS, ratio_text
from telemetry.report_values.totals import Group, Totals
from telemetry.reports.writers.files import empty_totals
from tests.fakes import reports as fake
from tests.fakes.reports import SERVICE

REQUEST = ReportRequest("2026-10-05/2026-10-07")
LINES = tuple(fake.lines(REQUEST, hours=30))
CELL = {column.name: column.cell for column in COLUMNS}
CURRENCIES = {site: currency for site, _, currency, _ in fake.SITES}


def totals_of(found, by, **changes):
    request = replace(REQUEST, by=by)
    basis = fake.basis(request, found, **changes)
    made = empty_totals(request, basis, request.span())
    for block in fake.blocks(found):
        made.add(block)
    made.add_slo(basis.slo, {name: site.currency for name, site in basis.sites.items()})
    return made


@pytest.mark.parametrize("by", [(), ("site",), ("tenant", "service"), DIMENSIONS])
def test_totals_are_the_sum_of_all_lines_however_they_are_grouped(by):
    made = totals_of(LINES, by)
    total = made.total()
    for name in ("energy_uj", "facility_uj", "gpu_us", "location_ug", "embodied_ug", "output_tokens"):
        assert getattr(total, name) == sum(getattr(line, name) for line in LINES), name
    days = Totals()
    for day in made.days_and_sites():
        days += day.totals
    assert days.energy_uj == total.energy_uj
    assert days.market_ug == total.market_ug


def test_money_stands_by_currency_when_sites_differ_in_it():
    found = totals_of(LINES, ()).by_currency()
    assert list(found) == ["EUR", "USD"]
    for currency, totals in found.items():
        own = [line for line in LINES if line.currency == currency]
        assert totals.cost_nano == sum(line.electricity_nano + line.rental_nano for line in own)


def test_rows_are_parted_by_currency_when_the_grouping_does_not():
    assert [(group.key, group.currency) for group in totals_of(LINES, ("service",)).rows()] == [
        (("llama3-70b",), "EUR"),
        (("llama3-70b",), "USD"),
        ((None,), "EUR"),
        ((None,), "USD"),
    ]


@pytest.mark.parametrize(
    ("missing", "columns"),
    [
        ("location_missing_uj", ("scope2_location_kgco2e", "g_per_1k_output_tokens", "sci_g_per_output_token")),
        ("embodied_missing_us", ("embodied_kgco2e", "sci_g_per_output_token")),
        ("electricity_missing_uj", ("cost",)),
        ("rental_missing_us", ("cost",)),
    ],
)
def test_figure_is_unknown_when_a_part_of_one_line_is(missing, columns):
    found = [replace(LINES[0], **{missing: 1}), *LINES[1:]]
    (group,) = (g for g in totals_of(found, ("site",)).rows() if g.key == (LINES[0].site,))
    for name in columns:
        assert CELL[name](group) is None, name
    assert CELL["energy_j"](group) is not None


def test_market_is_unknown_when_a_site_has_no_contract():
    contracts = [one for one in fake.contracts(REQUEST) if one.site != "berlin"]
    found = totals_of(LINES, ("site",), contracts=contracts)
    cells = {group.key[0]: CELL["scope2_market_kgco2e"](group) for group in found.rows()}
    assert cells["berlin"] is None
    assert cells["location-1"] is not None
    assert found.total().market is None


REFUSED = SloCount(None, "refused", SERVICE, None, None, requests=7, judged=0, met=0, without_tokens=0, worked=0)


@pytest.mark.parametrize("by", [("tenant",), ("site", "tenant"), ()])
def test_amounts_are_zero_and_totals_whole_when_requests_were_refused(by):
    made = totals_of(LINES, by)
    before = {column.name: column.cell(Group((), None, made.total(), True)) for column in COLUMNS}
    made.add_slo([REFUSED], CURRENCIES)
    for column in COLUMNS:
        now = column.cell(Group((), None, made.total(), True))
        assert now == (str(int(before["requests"]) + 7) if column.name == "requests" else before[column.name])
    for group in made.rows():
        if "refused" in group.key:
            nothing = {column.name: column.cell(group) for column in COLUMNS if column.sums}
            assert nothing == {**dict.fromkeys(nothing, "0"), "requests": "7"}
            assert {column.cell(group) for column in COLUMNS if not column.sums} == {None}


def test_refused_requests_have_the_reports_currency_when_there_is_one():
    made = totals_of([line for line in LINES if line.site == "berlin"], ("tenant",))
    made.add_slo([REFUSED], {"berlin": "EUR"})
    assert {group.currency for group in made.rows()} == {"EUR"}
    made.add_slo([replace(REFUSED, tenant="other")], {"berlin": "EUR", "location-1": "USD"})
    assert {group.currency for group in made.rows()} == {"EUR", None}


def test_figures_and_totals_are_unknown_when_a_site_without_meters_served_requests():
    made = totals_of(LINES, ("site",))
    made.add_slo([replace(REFUSED, site="dark", worked=3)], CURRENCIES)
    (group,) = (g for g in made.rows() if g.key == ("dark",))
    unknown = {column.name for column in COLUMNS if column.cell(group) is None}
    assert {"energy_kwh", "idle_kwh", "cost", "electricity_cost", "scope2_location_kgco2e"} <= unknown
    assert CELL["requests"](group) == "7"
    assert made.total().metered_uj is None
    assert made.by_currency()["EUR"].metered_uj is not None


def test_ratio_is_unknown_when_tokens_were_not_counted():
    (group,) = (g for g in totals_of(LINES, ("site",)).rows() if g.key == ("berlin",))
    assert CELL["j_per_output_token"](group) is not None
    group.totals.without_tokens = 1
    assert CELL["j_per_output_token"](group) is None
    assert CELL["sci_g_per_output_token"](group) is None


def test_idle_share_is_left_out_when_rows_are_tenants():
    assert all(group.idle_share is None for group in totals_of(LINES, ("tenant",)).rows())
    assert all(group.idle_share is not None for group in totals_of(LINES, ("site",)).rows())


def test_sci_has_idle_energy_and_hardware_in_it():
    (group,) = (g for g in totals_of(LINES, ("site",)).rows() if g.key == ("berlin",))
    own = [line for line in LINES if line.site == "berlin"]
    tokens = sum(line.output_tokens for line in own)
    grams = Fraction(sum(line.location_ug + line.embodied_ug for line in own), 1_000_000)
    assert group.totals.sci_g_per_token == grams / tokens


def test_every_sum_is_added_when_totals_are():
    ones = Totals(**{item.name: 1 for item in fields(Totals)})
    ones += ones
    assert {getattr(ones, item.name) for item in fields(Totals)} == {2}


@given(st.integers(-(10**20), 10**20))
def test_joules_come_back_when_they_are_written(energy_uj):
    assert Fraction(joules(energy_uj)) == Fraction(energy_uj, 10**6)
    assert abs(Fraction(kwh(energy_uj)) - Fraction(energy_uj, 3_600_000_000_000)) <= Fraction(1, 2 * 10**12)
    assert not decimal_text(energy_uj, 6).endswith((".", "e"))


@given(st.fractions(min_value=-(10**12), max_value=10**12))
def test_ratio_has_twelve_digits_and_no_exponent(value):
    text = ratio_text(value)
    assert "e" not in text.lower()
    assert abs(Fraction(text) - value) <= abs(value) * Fraction(1, 10**11)
