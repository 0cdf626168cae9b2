"""The FOCUS export against the 1.4 model of the FinOps Foundation, and its allocations against the origin charges."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal

import polars
import pytest
from focus_data_toolkit.model.validator import lint_focus_1_4_structure, load_model
from focus_data_toolkit.validate.allocation import validate_split_allocation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telemetry.report_values.basis import DemandCharge
from telemetry.report_values.errors import BadReport
from telemetry.report_values.line_blocks import MARKET, MARKET_MISSING
from telemetry.report_values.report_request import ReportRequest
from telemetry.reports.writers.focus import COLUMNS, ONE, FocusWriter, shares
from telemetry.reports.writers.parquet import write_parquet
from tests.fakes import reports as fake

REQUEST = ReportRequest("2026-10-31/2026-11-02")
LINES = tuple(fake.lines(REQUEST, hours=26))


def export(found, basis=None):
    out = io.BytesIO()
    writer = FocusWriter(basis or fake.basis(REQUEST, found))
    unknown = polars.col("site") == "berlin"
    market = (polars.lit(7).alias(MARKET), unknown.cast(polars.Int64).alias(MARKET_MISSING))
    writer.write((block.with_columns(market) for block in fake.blocks(found)), out)
    return out.getvalue().decode()


def rows(found, basis=None):
    return list(csv.DictReader(io.StringIO(export(found, basis))))


@pytest.fixture(scope="module")
def table():
    return rows(LINES)


def test_file_holds_against_the_model_when_it_is_linted(table):
    report = lint_focus_1_4_structure("Cost and Usage", table)
    assert report.ok, report.messages()[:5]


def test_mandatory_columns_are_there_and_custom_ones_come_last():
    model = load_model()["datasets"]["Cost and Usage"]["columns"]
    mandatory = {name for name, spec in model.items() if spec["feature_level"] == "Mandatory"}
    assert mandatory <= set(COLUMNS)
    own = [name.startswith("x_") for name in COLUMNS]
    assert own == sorted(own)
    assert all(name in model for name, custom in zip(COLUMNS, own, strict=True) if not custom)
    assert all(COLUMNS[name] == model[name]["data_type"] for name in COLUMNS if name in model)


def test_allocations_hold_when_the_toolkit_adds_them_up(table):
    assert validate_split_allocation(table) == []


def test_ratios_are_one_and_sums_the_origins_in_every_origin_charge(table):
    charges = defaultdict(list)
    for row in table:
        charges[row["x_SplitOriginId"]].append(row)
    assert len(charges) == 26 * 3 * 5
    for parts in charges.values():
        ratios = [
            json.loads(row["AllocatedMethodDetails"], parse_float=Decimal)["Elements"][0]["AllocatedRatio"]
            for row in parts
        ]
        assert sum(ratios) == 1
        assert sum(Decimal(row["BilledCost"]) for row in parts) == Decimal(parts[0]["x_SplitOriginCost"])
        # What belongs to the origin charge is the same in all of its parts.
        for name in ("ResourceId", "ServiceName", "SubAccountId", "RegionId", "SkuId", "ChargePeriodStart"):
            assert len({row[name] for row in parts}) == 1, name


def test_sums_are_the_lines_when_rows_are_added_up(table):
    assert sum(Decimal(row["x_EnergyJ"]) for row in table) == Decimal(sum(line.energy_uj for line in LINES)) / 10**6
    for currency in ("EUR", "USD"):
        cost = sum(Decimal(row["BilledCost"]) for row in table if row["BillingCurrency"] == currency)
        assert cost == Decimal(sum(line.cost_nano for line in LINES if line.currency == currency)) / 10**9


def test_month_is_the_charges_when_a_report_has_two(table):
    found = {(row["ChargePeriodStart"][:7], row["BillingPeriodStart"], row["BillingPeriodEnd"]) for row in table}
    assert found == {
        ("2026-10", "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("2026-11", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    }


def test_unknown_is_null_and_never_nothing_when_it_is_written():
    line = next(line for line in LINES if line.kind == "serving")
    unknown = replace(line, location_missing_uj=5, embodied_missing_us=5)
    (row,) = rows([unknown])
    assert (row["x_Scope2LocationKgCo2e"], row["x_EmbodiedKgCo2e"]) == ("", "")
    (row,) = rows([next(line for line in LINES if line.kind == "unattributed")])
    assert [row[name] for name in ("ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "x_OutputTokens")] == [""] * 4
    (row,) = rows([next(line for line in LINES if line.kind == "idle")])
    assert row["ConsumedQuantity"] == "0"  # it is known that nothing was served
    assert row["ChargeClass"] == ""


def test_demand_charge_is_a_row_of_its_own_when_a_month_has_one():
    october = ReportRequest("2026-10", zone="Europe/Berlin").span()
    charge = DemandCharge("berlin", "2026-10", october.start_s, october.end_s, 41_250.0, 512_500_000_000, "EUR")
    basis = replace(fake.basis(REQUEST, LINES), demand=(charge, replace(charge, charge_nano=None)))
    found = rows(LINES[:20], basis)
    assert len(found) == 21
    row = found[-1]
    assert (row["BilledCost"], row["BillingCurrency"], row["PricingQuantity"]) == ("512.500000000", "EUR", "41.250")
    assert (row["ChargePeriodStart"], row["BillingPeriodStart"]) == ("2026-09-30T22:00:00Z", "2026-10-01T00:00:00Z")
    assert (row["x_EnergyJ"], row["AllocatedMethodId"], row["AllocatedMethodDetails"]) == ("", "", "")
    report = lint_focus_1_4_structure("Cost and Usage", found)
    assert report.ok, report.messages()[:5]


@pytest.mark.parametrize(
    ("field", "words"), [("electricity_missing_uj", "electricity tariff"), ("rental_missing_us", "rate per GPU-hour")]
)
def test_export_is_refused_when_a_cost_is_unknown(field, words):
    with pytest.raises(BadReport, match=words) as error:
        rows([replace(LINES[0], **{field: 1})])
    assert error.value.field == "formats"
    assert LINES[0].site in str(error.value)


def test_parquet_says_the_same_when_it_is_read_back(tmp_path, table):
    source, target = tmp_path / "focus.csv", tmp_path / "focus.parquet"
    source.write_text(export(LINES), encoding="utf-8")
    write_parquet(source, target)
    found = polars.read_parquet(target)
    assert found.columns == list(COLUMNS)
    assert found.height == len(table)
    for name in ("BilledCost", "x_EnergyJ", "x_Scope2MarketKgCo2e"):
        assert found[name].to_list() == [Decimal(r[name]) if r[name] else None for r in table]
    assert found["ChargeClass"].null_count() == found.height
    assert str(found["ChargePeriodStart"].dtype) == "Datetime(time_unit='us', time_zone='UTC')"


@given(st.lists(st.tuples(st.integers(-(10**15), 10**15), st.integers(0, 10**15)), min_size=1, max_size=30))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ratios_sum_to_one_and_lie_between_nothing_and_one(parts):
    found = shares([cost for cost, _ in parts], [energy for _, energy in parts])
    assert sum(found) == ONE
    assert all(0 <= ratio <= ONE for ratio in found)


@given(st.lists(st.integers(1, 10**15), min_size=1, max_size=30))
def test_ratio_is_the_share_of_cost_when_costs_have_one_sign(costs):
    total = sum(costs)
    for sign in (1, -1):
        for cost, ratio in zip(costs, shares([sign * c for c in costs], [0] * len(costs)), strict=True):
            assert abs(ratio - cost * ONE / total) <= 1
