"""The FOCUS export in each version: columns by the Foundation's model, allocations against the origin charges."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal

import polars
import pytest
from focus_data_toolkit.model.validator import lint_focus_1_4_structure, load_model
from focus_data_toolkit.schema.registry import mandatory_columns, version_columns
from focus_data_toolkit.validate.allocation import validate_split_allocation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telemetry.report_values.errors import BadReport
from telemetry.report_values.report_request import FOCUS_VERSIONS, ReportRequest
from telemetry.reports.writers.focus_columns import columns
from telemetry.reports.writers.focus_rows import ONE, shares
from telemetry.reports.writers.parquet import write_parquet
from tests.fakes import reports as fake

REQUEST = ReportRequest("2026-10-31/2026-11-02")
LINES = tuple(fake.lines(REQUEST, hours=26))
DATASET = "Cost and Usage"
VALIDATORS_OWN = {
    "Provider",
    "Publisher",
    "InvoiceIssuer",
    "ResourceID",
    "ChargeType",
}  # it asks for 0.5's names in 1.0
QUANTITIES = {"ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "PricingUnit"}

in_each_version = pytest.mark.parametrize("version", FOCUS_VERSIONS)


def export(found, version="1.4", basis=None):
    return fake.focus_csv(found, basis or fake.basis(REQUEST, found), version).decode()


def rows(found, version="1.4", basis=None):
    return list(csv.DictReader(io.StringIO(export(found, version, basis))))


@pytest.fixture(scope="module")
def tables():
    return {version: rows(LINES, version) for version in FOCUS_VERSIONS}


# -- columns ---------------------------------------------------------------------------------------


def test_file_holds_against_the_model_when_it_is_linted(tables):
    report = lint_focus_1_4_structure(DATASET, tables["1.4"])
    assert report.ok, report.messages()[:5]


@in_each_version
def test_columns_are_the_versions_own_and_custom_ones_come_last(version):
    named = {column.name: column for column in columns(version)}
    assert len(named) == len(columns(version))
    assert mandatory_columns(DATASET, version) <= set(named)
    own = [column.custom for column in named.values()]
    assert own == sorted(own)
    strange = {name for name, column in named.items() if not column.custom} - version_columns(DATASET, version)
    assert strange == (VALIDATORS_OWN if version == "1.0" else set())
    model = load_model()["datasets"][DATASET]["columns"]
    assert all(column.kind == model[name]["data_type"] for name, column in named.items() if name in model)


@in_each_version
def test_every_column_of_the_model_that_was_new_is_left_out_of_older_versions(version, tables):
    newer = version_columns(DATASET, "1.4") - version_columns(DATASET, version)
    assert newer.isdisjoint(tables[version][0])


def test_versions_say_the_same_when_their_rows_are_put_side_by_side(tables):
    for version in FOCUS_VERSIONS[:-1]:
        for old, new in zip(tables[version], tables["1.4"], strict=True):
            shared = (old.keys() & new.keys()) - QUANTITIES
            assert {name: old[name] for name in shared} == {name: new[name] for name in shared}
            moved = new.keys() - old.keys() - {"HostProviderName", "ServiceProviderName"}
            assert {f"x_{name}" for name in moved} <= old.keys()
            assert all(old[f"x_{name}"] == new[name] for name in moved)
            assert old["ProviderName"] == old["PublisherName"] == new["ServiceProviderName"]


@pytest.mark.parametrize("version", ["1.0", "1.2"])
def test_quantities_are_gpu_hours_and_never_null_in_versions_that_want_that(version, tables):
    for row in tables[version]:
        assert row["ConsumedQuantity"] == row["PricingQuantity"] == row["x_GpuHours"] != ""
        assert row["ConsumedUnit"] == row["PricingUnit"] == "GPU-Hours"


def test_bytes_of_1_4_are_those_of_before_there_was_a_choice():
    lines = [replace(line, tenant=line.tenant and f"={line.tenant}") for line in LINES]
    found = fake.focus_csv(lines, fake.basis(REQUEST, LINES, demand=(fake.demand_charge(),)), "1.4")
    assert hashlib.sha256(found).hexdigest() == "07f2b0e5adbeb6008a9fb5c9888603602defd6b622a0cb47152e46108827dfaf"


# -- sums ------------------------------------------------------------------------------------------


@in_each_version
def test_allocations_hold_when_the_toolkit_adds_them_up(version, tables):
    named = [{name.replace("x_Allocated", "Allocated"): text for name, text in row.items()} for row in tables[version]]
    assert validate_split_allocation(named) == []


@in_each_version
def test_ratios_are_one_and_sums_the_origins_in_every_origin_charge(version, tables):
    details = "AllocatedMethodDetails" if version == "1.4" else "x_AllocatedMethodDetails"
    charges = defaultdict(list)
    for row in tables[version]:
        charges[row["x_SplitOriginId"]].append(row)
    assert len(charges) == 26 * 3 * 5
    for parts in charges.values():
        ratios = [json.loads(row[details], parse_float=Decimal)["Elements"][0]["AllocatedRatio"] for row in parts]
        assert sum(ratios) == 1
        assert sum(Decimal(row["BilledCost"]) for row in parts) == Decimal(parts[0]["x_SplitOriginCost"])
        # What belongs to the origin charge is the same in all of its parts.
        for name in ("ResourceId", "ServiceName", "SubAccountId", "RegionId", "SkuId", "ChargePeriodStart"):
            assert len({row[name] for row in parts}) == 1, name


@in_each_version
def test_sums_are_the_lines_when_rows_are_added_up(version, tables):
    table = tables[version]
    assert sum(Decimal(row["x_EnergyJ"]) for row in table) == Decimal(sum(line.energy_uj for line in LINES)) / 10**6
    for currency in ("EUR", "USD"):
        cost_nano = sum(line.cost_nano for line in LINES if line.currency == currency)
        for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
            found = sum(Decimal(row[name]) for row in table if row["BillingCurrency"] == currency)
            assert found == Decimal(cost_nano) / 10**9


# -- rows ------------------------------------------------------------------------------------------


@in_each_version
def test_month_is_the_charges_when_a_report_has_two(version, tables):
    found = {
        (row["ChargePeriodStart"][:7], row["BillingPeriodStart"], row["BillingPeriodEnd"]) for row in tables[version]
    }
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


@in_each_version
def test_demand_charge_is_a_row_of_its_own_when_a_month_has_one(version):
    charge = fake.demand_charge()
    basis = fake.basis(REQUEST, LINES, demand=(charge, replace(charge, charge_nano=None)))
    found = rows(LINES[:20], version, basis)
    assert len(found) == 21
    row = found[-1]
    assert (row["BilledCost"], row["BillingCurrency"], row["PricingQuantity"]) == ("512.500000000", "EUR", "41.250")
    assert (row["ConsumedUnit"], row["PricingUnit"]) == ("kW", "kW")
    assert (row["ChargePeriodStart"], row["BillingPeriodStart"]) == ("2026-09-30T22:00:00Z", "2026-10-01T00:00:00Z")
    assert {text for name, text in row.items() if "Allocated" in name} == {""}
    assert (row["x_EnergyJ"], row["x_GpuHours"]) == ("", "")
    if version == "1.4":
        report = lint_focus_1_4_structure(DATASET, found)
        assert report.ok, report.messages()[:5]


@pytest.mark.parametrize(
    ("field", "words"), [("electricity_missing_uj", "electricity tariff"), ("rental_missing_us", "rate per GPU-hour")]
)
def test_export_is_refused_when_a_cost_is_unknown(field, words):
    with pytest.raises(BadReport, match=words) as error:
        rows([replace(LINES[0], **{field: 1})])
    assert error.value.field == "formats"
    assert LINES[0].site in str(error.value)


@in_each_version
def test_parquet_says_the_same_when_it_is_read_back(version, tmp_path, tables):
    source, target = tmp_path / "focus.csv", tmp_path / "focus.parquet"
    source.write_text(export(LINES, version), encoding="utf-8")
    write_parquet(source, target, version)
    found = polars.read_parquet(target)
    table = tables[version]
    assert found.columns == list(table[0])
    assert found.height == len(table)
    for name in ("BilledCost", "x_EnergyJ", "x_Scope2MarketKgCo2e", "PricingQuantity"):
        assert found[name].to_list() == [Decimal(r[name]) if r[name] else None for r in table]
    assert found["ChargeClass"].null_count() == found.height
    assert str(found["ChargePeriodStart"].dtype) == "Datetime(time_unit='us', time_zone='UTC')"


# -- ratios ----------------------------------------------------------------------------------------


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
