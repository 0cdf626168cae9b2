"""ESRS E1: datapoints of E1-5 and E1-6 by hand-computed hours, and laws of what adds up."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.basis import SiteBasis
from telemetry.report_values.contracts import HOUR_S, SOURCES, UJ_PER_KWH, Contract
from telemetry.report_values.esrs import table
from telemetry.report_values.esrs.datapoints import added_up
from telemetry.report_values.esrs.energy import LEAVES, EnergySplit
from telemetry.report_values.esrs.sources import CoveredContract, shortened
from telemetry.report_values.inputs import EMBODIED, INTENSITY, PUE, FactorUse, ReportInput, ReportInputs
from telemetry.report_values.line_blocks import SCHEMA, Block
from telemetry.report_values.lines import ReportLine, SloCount
from telemetry.report_values.market import MATCHINGS
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.statement import Statement
from telemetry.reports.writers.files import empty_totals, make_files
from tests.fakes import reports as fake

SITE = "berlin"
REQUEST = ReportRequest("2026-10-05", by=("site",), matching="hourly")
START_S = REQUEST.span().start_s
END_S = REQUEST.span().end_s
HOURS_KWH = (1, 1, 1, 1, 1, 1)
INPUTS = ReportInputs(
    rates=(
        ReportInput(PUE, SITE, "1.25", "meter of the house", "2026", START_S, START_S + 6 * HOUR_S),
        ReportInput(INTENSITY, SITE, "400.0 gCO2e/kWh, the site's mean", "a feed", quality="5.0 % estimated"),
        ReportInput(EMBODIED, SITE, "any GPU: 985.5 kgCO2e over 3 years", "EcoLogits", "2025"),
    ),
    factors=(FactorUse(SITE, "lifecycle", 5 * UJ_PER_KWH),),
)


def contract(kind, factor, mix=None, **given_):
    given_ = {"volume_wh": None, "start_s": START_S, "end_s": END_S, "source": f"paper of the {kind}", **given_}
    return Contract(SITE, kind, factor, mix={} if mix is None else mix, **given_)


def metered(kind, factor, hours_wh, mix=None, **given_):
    hours = tuple((START_S + n * HOUR_S, wh) for n, wh in enumerate(hours_wh))
    return contract(kind, factor, mix, generation="metered", hours=hours, **given_)


SOLAR = metered("ppa", "10", (2_000, 500, 0, 0, 0, 0), {"solar": "1"}, bundled=True)
NUCLEAR_AND_WIND = metered(
    "certificate", "0", (0, 1_000, 400, 0, 0, 0), {"nuclear": "0.75", "wind": "0.25"}, bundled=False
)
RESIDUAL = contract("residual", "500", {"coal": "0.5", "wind": "0.5"}, end_s=START_S + 4 * HOUR_S)
CONTRACTS = (SOLAR, NUCLEAR_AND_WIND, RESIDUAL)


def line(n, kwh, intensity: int | None = 400, **changes) -> ReportLine:
    """An hour at a PUE of 1.25. Without an intensity all that the GPUs used has none."""
    facility_uj = round(kwh * UJ_PER_KWH)
    energy_uj = facility_uj * 4 // 5
    usual = next(one for one in fake.lines(REQUEST, hours=1) if one.site == SITE)
    values = {
        "start_s": START_S + n * HOUR_S,
        "end_s": START_S + (n + 1) * HOUR_S,
        "energy_uj": energy_uj,
        "facility_uj": facility_uj,
        "gpu_us": HOUR_S * 10**6,
        "location_ug": 0 if intensity is None else round(kwh * intensity * 10**6),
        "location_missing_uj": energy_uj if intensity is None else 0,
        "embodied_ug": 30 * 10**6,
        "embodied_missing_us": 0,
    }
    return replace(usual, **{**values, **changes})


LINES = (*(line(n, kwh) for n, kwh in enumerate(HOURS_KWH[:5])), line(5, HOURS_KWH[5], None))


def statement(lines=LINES, contracts=CONTRACTS, matching="hourly", inputs=INPUTS, slo=()) -> Statement:
    request = replace(REQUEST, matching=matching)
    basis = fake.basis(request, lines, contracts=contracts, inputs=inputs, slo=slo)
    site = SiteBasis(1, "Berlin", "EUR", 0, True, sum(one.facility_uj for one in lines))
    basis = replace(basis, sites={SITE: site})
    totals = empty_totals(request, basis, request.span())
    totals.add(Block([astuple(one) for one in lines], schema=SCHEMA, orient="row"))
    totals.add_slo(slo, {SITE: "EUR"})
    return Statement.of(request, basis, totals, None)


def rows(**given_):
    return {row.name: row for row in table.Esrs.of(statement(**given_)).rows}


def cells(found, *names):
    return {name: (found[name].value, found[name].status, found[name].not_covered) for name in names}


# -- six hours by hand -----------------------------------------------------------------------------


def test_energy_is_split_by_what_contracts_declare_hour_by_hour():
    """1 kWh in each of six hours.

    Solar covers 1 + 0.5 kWh, the certificate 0.5 + 0.4 (three quarters nuclear), the residual mix 0.6 + 1, and nothing
    the last two hours.
    """
    found = rows()
    assert cells(found, "energy", "fossil", "nuclear", "renewable", "source_unknown") == {
        "energy": ("0.006000", "known", None),
        "fossil": (None, "unknown", "3.600"),  # there may be some: not zero
        "nuclear": ("0.000675", "partial", "3.600"),
        "renewable": ("0.001725", "known", None),
        "source_unknown": ("0.003600", "known", None),
    }
    assert cells(found, "undeclared", "residual", "uncovered") == {
        "undeclared": ("0.000000", "known", None),
        "residual": ("0.001600", "known", None),
        "uncovered": ("0.002000", "known", None),
    }
    assert [found[f"{name}_share"].value for name in ("fossil", "nuclear", "renewable", "source_unknown")] == [
        *(None, "11.2500", "28.7500", "60.0000")
    ]
    assert [found[f"{name}_share"].exact for name in ("nuclear", "renewable", "source_unknown")] == [
        *("9/80", "23/80", "3/5")
    ]
    assert (found["energy"].exact, found["nuclear"].exact) == ("21600000", "2430000")  # joules


def test_emissions_are_as_far_as_intensities_and_contracts_know_them():
    """Location: 5 kWh at 400 g, and 0.8 kWh at the GPUs without. Market: 1.5 kWh at 10 g and 1.6 kWh at 500 g."""
    found = rows()
    names = ("scope2_location", "scope2_market", "scope3_category_2", "scope3", "total_location", "total_market")
    assert cells(found, *names) == {
        "scope2_location": ("0.002000", "partial", "0.800"),
        "scope2_market": ("0.000815", "partial", "2.000"),
        "scope3_category_2": ("0.000180", "partial", None),
        "scope3": ("0.000180", "partial", None),
        "total_location": ("0.002180", "partial", "0.800"),
        "total_market": ("0.000995", "partial", "2.000"),
    }
    assert (found["total_market"].exact, found["scope2_location"].exact) == ("995", "2000")  # grams
    assert "amortised" in found["scope3_category_2"].note
    for name in ("scope1", "scope3_category_3", "scope3_other", "intensity_location", "intensity_market"):
        assert (found[name].value, found[name].exact, found[name].status) == (None, None, "unknown")


def test_instruments_have_shares_of_energy_and_bundled_ones_of_emissions():
    found = rows()
    assert {name: row.value for name, row in found.items() if name.startswith("instruments")} == {
        "instruments": "40.0000",
        "instruments_ppa": "25.0000",
        "instruments_certificate": "15.0000",
        "instruments_supplier": "0.0000",
        "instruments_bundled": "25.0000",
        "instruments_unbundled": "15.0000",
        "instruments_bundled_undeclared": "0.0000",
    }
    bundled = found["bundled_emissions"]
    assert (bundled.value, bundled.exact, bundled.status) == ("1.8405", "3/163", "partial")  # 15 g of 815 g


def test_fossil_energy_is_known_when_every_source_is():
    found = rows(contracts=(contract("supplier", "300", {"gas": "0.4", "hydro": "0.6"}),))
    assert cells(found, "fossil", "nuclear", "renewable", "source_unknown") == {
        "fossil": ("0.002400", "known", None),
        "nuclear": ("0.000000", "known", None),
        "renewable": ("0.003600", "known", None),
        "source_unknown": ("0.000000", "known", None),
    }
    assert found["scope2_market"].value == "0.001800"
    assert found["scope2_market"].status == "known"
    assert (found["instruments_bundled"].value, found["instruments_bundled"].not_covered) == (None, "6.000")
    assert (found["bundled_emissions"].value, found["bundled_emissions"].status) == (None, "unknown")


def test_nothing_is_invented_when_there_are_neither_contracts_nor_intensities():
    found = rows(lines=(line(0, 1, None, embodied_missing_us=HOUR_S * 10**6, embodied_ug=0),), contracts=())
    assert cells(found, "scope2_location", "scope2_market", "scope3", "total_location", "total_market") == {
        "scope2_location": (None, "unknown", "0.800"),
        "scope2_market": (None, "unknown", "1.000"),
        "scope3": (None, "unknown", None),
        "total_location": (None, "unknown", "0.800"),
        "total_market": (None, "unknown", "1.000"),
    }
    assert (found["scope3_category_2"].not_covered, found["scope3_category_2"].not_covered_unit) == (
        *("1.000", "GPU-hours"),
    )
    assert found["uncovered"].value == found["energy"].value == "0.001000"


def test_matching_over_the_period_lets_a_volume_cover_any_hour():
    found = rows(matching="period", contracts=(SOLAR, NUCLEAR_AND_WIND))
    assert found["renewable"].value == "0.002850"  # 2.5 kWh of sun, and a quarter of 1.4
    assert found["scope2_market"].value == "0.000025"
    assert found["scope2_market"].not_covered == "2.100"


def test_shares_are_unknown_when_nothing_was_used():
    found = rows(lines=(line(0, 0, embodied_ug=0),))
    assert (found["energy"].value, found["energy"].status) == ("0.000000", "known")
    assert (found["renewable_share"].value, found["renewable_share"].status) == (None, "unknown")
    assert found["instruments"].note == "Nothing was used."


def test_figures_are_partial_when_requests_ran_where_no_meter_is():
    slo = (SloCount("elsewhere", None, "s", None, None, 7, 7, 7, 0, 7),)
    found = rows(slo=slo)
    assert {found[name].status for name in ("energy", "renewable", "scope2_location", "instruments")} == {"partial"}
    assert "7 requests" in found["energy"].note


@pytest.mark.parametrize(
    ("uses", "location", "category_3"),
    [
        ((("lifecycle", 5),), "upstream emissions too", "already"),
        ((("direct", 5),), "generation alone", "in no figure here"),
        (
            (("direct", 2), ("lifecycle", 3)),
            "2.000 kWh by direct intensities, 3.000 kWh by life",
            "2.000 kWh by direct",
        ),
        ((("", 5),), "5.000 kWh by intensities that do not say which", "do not say which"),
        ((), "not on record", "not on record"),
    ],
)
def test_location_based_figure_says_whether_its_intensities_have_a_life_cycle(uses, location, category_3):
    factors = tuple(FactorUse(SITE, factor, kwh * UJ_PER_KWH) for factor, kwh in uses)
    found = rows(inputs=replace(INPUTS, factors=factors))
    assert location in found["scope2_location"].note
    assert category_3 in found["scope3_category_3"].note
    assert found["scope3_category_3"].value is None


# -- sources, formats ------------------------------------------------------------------------------


def test_each_figure_names_its_sources():
    esrs = table.Esrs.of(statement())
    found = {row.name: row.sources for row in esrs.rows}
    assert found["energy"] == ("M1", "P1", "C1", "C2", "C3")
    assert found["nuclear"] == ("M1", "P1", "C2")
    assert found["renewable"] == ("M1", "P1", "C1", "C2")
    assert found["source_unknown"] == ("M1", "P1", "C3")
    assert found["scope2_location"] == ("M1", "P1", "I1")
    assert found["scope3_category_2"] == ("M1", "H1")
    words = {source.key: source.words for source in esrs.sources.rows}
    assert words["M1"].startswith("17280000 J at 2 GPU counters")
    assert words["P1"] == "1.25; meter of the house; 2026; used from 2026-10-05 UTC to 2026-10-05 06:00 UTC"
    ppa = next(text for text in words.values() if text.startswith("power purchase agreement"))
    assert "paper of the ppa; 10 gCO2e/kWh; mix solar 1; bundled with the energy; covers 1.5 kWh" in ppa
    assert "criterion 3" in ppa
    known = [row for row in esrs.rows if row.value is not None]
    assert all(row.sources for row in known if Decimal(row.value))


def test_keys_are_shortened_when_they_are_neighbours():
    assert shortened(("M1", "M2", "M3", "P1", "C2", "C4", "C5")) == "M1-M3, P1, C2, C4-C5"
    assert shortened(()) == ""


def test_csv_speaks_for_itself_and_has_an_empty_cell_for_what_is_not_known():
    esrs, out = table.Esrs.of(statement()), io.StringIO()
    count = table.write_esrs_csv(esrs, {"report_version": "R1"}, out)
    found = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert count == len(found) == len(esrs.rows)
    first = found[0]
    assert (first["datapoint"], first["paragraph"], first["value"], first["unit"]) == (
        *("E1-5_01", "37", "0.006000", "MWh"),
    )
    assert (first["exact"], first["exact_unit"], first["report_version"]) == ("21600000", "J", "R1")
    assert "P1: Berlin: 1.25; meter of the house" in first["sources"]
    assert {row["value"] for row in found if row["status"] == "unknown"} == {""}
    assert {row["warnings"] for row in found} == {""}


def test_json_and_page_have_the_rows_of_the_table():
    esrs = table.Esrs.of(statement())
    stored = table.as_json(esrs)
    assert [row["value"] for row in stored["rows"]] == [row.value for row in esrs.rows]
    shown = table.shown(stored)
    assert shown is not None
    assert [title for title, _ in shown["tables"]] == list(table.TITLES.values())
    assert sum(len(own) for _, own in shown["tables"]) == len(esrs.rows)
    assert table.shown(None) is None


def test_names_are_unique_and_datapoints_are_of_their_disclosure():
    found = table.Esrs.of(statement()).rows
    assert len({row.name for row in found}) == len(found)
    assert all(not row.ids or row.ids.startswith(f"{row.disclosure}_") for row in found)


# -- laws ------------------------------------------------------------------------------------------

UJ = st.integers(0, 10**13)


@st.composite
def mixes(draw):
    """Shares in thousandths, which sum to 1; or none."""
    names = draw(st.lists(st.sampled_from(sorted(SOURCES)), unique=True, max_size=5))
    weights = [draw(st.integers(1, 1_000)) for _ in names]
    left, found = 1_000, {}
    for name, weight in list(zip(names, weights, strict=True))[1:]:
        found[name] = str(Decimal(min(left, weight)) / 1_000)
        left -= min(left, weight)
    return {**found, names[0]: str(Decimal(left) / 1_000)} if names else {}


@st.composite
def some_contracts(draw):
    found = []
    for n in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(("ppa", "certificate", "supplier", "residual")))
        given_ = {"source": f"{kind} {n}", "bundled": draw(st.none() | st.booleans())}
        if kind in ("ppa", "certificate"):
            given_["volume_wh"] = draw(st.integers(1, 10**6))
        found.append(contract(kind, draw(st.sampled_from(("0", "11.5"))), draw(mixes()), **given_))
    return tuple(found)


@pytest.mark.parametrize("matching", MATCHINGS)
@given(st.lists(UJ, min_size=1, max_size=6), some_contracts())
def test_lines_of_e1_5_add_up_to_the_facilitys_energy(matching, hours_uj, own):
    lines = [line(n, 0, facility_uj=uj, energy_uj=uj * 4 // 5, location_ug=0) for n, uj in enumerate(hours_uj)]
    found = statement(lines=lines, contracts=own, matching=matching)
    facility_uj = sum(hours_uj)
    covers = [
        CoveredContract(f"C{n}", cover.contract, cover.covered_uj)
        for n, cover in enumerate(found.scope2.sites[SITE].covers(matching))
    ]
    split = EnergySplit.of(facility_uj, tuple(covers))
    assert min(split.uj.values()) >= 0
    assert sum(split.uj.values()) == split.total_uj == facility_uj == found.total.facility_uj
    total = found.scope2.total()
    assert split.uj["uncovered"] == (total.hourly_missing_uj if matching == "hourly" else total.period_missing_uj)
    printed = {row.name: row for row in table.Esrs.of(found).rows}
    lines_printed = ("fossil", "nuclear", "renewable", "source_unknown")
    assert sum(Decimal(printed[name].value or 0) for name in lines_printed) == Decimal(printed["energy"].value)
    assert sum(Decimal(printed[name].value) for name in LEAVES[3:]) == Decimal(printed["source_unknown"].value)
    if facility_uj:
        shares = [Fraction(printed[f"{name}_share"].exact or 0) for name in lines_printed]
        assert sum(shares) == 1
        assert sum(Decimal(printed[f"{name}_share"].value or 0) for name in lines_printed) == 100


@given(st.lists(st.fractions(0, 10), min_size=1, max_size=9))
def test_printed_parts_add_up_to_the_printed_whole_and_are_off_by_one_place_at_most(parts):
    texts = added_up(parts, "MWh")
    assert sum(map(Decimal, texts)) == Decimal(added_up([sum(parts, Fraction(0))], "MWh")[0])
    assert all(abs(Fraction(text) - part) <= Fraction(1, 10**6) for text, part in zip(texts, parts, strict=True))


def test_signature_is_as_before_when_a_report_keeps_no_factors(tmp_path):
    """Reports of before the factors were kept have this signature; the same figures must have it for ever."""
    request = ReportRequest("2026-10-05", by=("site",), formats=("csv",), basis="usage")
    lines = tuple(fake.lines(request, hours=2))
    basis = fake.basis(request, lines)
    before, _ = make_files(request, basis, fake.blocks(lines), tmp_path)
    assert before.signature == "7f44e335db2b5bcc225147fca7af539136a04d2e87a2c1298c0d11ef9e9c3100"
    with_factors = replace(basis, inputs=ReportInputs(factors=(FactorUse(SITE, "direct", 1),)))
    after, _ = make_files(request, with_factors, fake.blocks(lines), tmp_path)
    assert after.signature != before.signature
