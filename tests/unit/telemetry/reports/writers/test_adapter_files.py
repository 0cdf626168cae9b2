"""LoRA adapters in a report: parts of their service, to the last unit, in rows, bills, invoices and FOCUS."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.report_values.basis import Basis
from telemetry.report_values.bill import NO_ADAPTER
from telemetry.report_values.bill_sharing import sharing_of
from telemetry.report_values.invoice import invoices
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.signature import signature
from telemetry.report_values.totals import Totals
from telemetry.reports.writers.files import empty_totals, make_files
from tests.fakes import reports as fake

REQUEST = ReportRequest("2026-10-05", by=("service",), formats=("bill-csv",), basis="usage")
LINES = tuple(fake.lines(REQUEST, hours=3))
ADAPTERS = ("legal", "medical", None)


def named(adapters):
    """Parts the first serving lines by these adapters: what an hour has of a tenant in a pool, in as many lines."""
    found, given_out = [], list(adapters)
    for line in LINES:
        if line.kind != "serving" or not given_out:
            found.append(line)
            continue
        adapter = given_out.pop()
        part = {
            name: value // 3
            for name in line.__slots__
            if isinstance(value := getattr(line, name), int) and name not in ("start_s", "end_s")
        }
        rest = {name: getattr(line, name) - value for name, value in part.items()}
        found += [replace(line, **part, adapter=adapter), replace(line, **rest)]
    return found


def totals_of(lines, by):
    request = replace(REQUEST, by=by)
    basis = fake.basis(request, lines)
    found = empty_totals(request, basis, request.span())
    blocks = [found.add(block) for block in fake.blocks(lines)]
    return found, basis, blocks


@given(st.lists(st.sampled_from(ADAPTERS), max_size=20))
def test_adapters_and_no_adapter_add_up_to_the_service_in_every_sum(adapters):
    whole, *_ = totals_of(LINES, ("service", "tenant"))
    found, *_ = totals_of(named(adapters), ("service", "tenant", "adapter"))
    summed = {}
    for group in found.rows():
        own = summed.setdefault((group.key[:2], group.currency), Totals())
        own += group.totals
    for group in whole.rows():
        own = summed.pop((group.key, group.currency))
        assert replace(own, lines=0) == replace(group.totals, lines=0)
    assert not summed
    assert all(group.idle_share is None for group in found.rows())


@pytest.mark.parametrize("basis", ["usage", "allocation"])  # by marginal cost a line may come to nothing
def test_bill_and_invoices_have_a_line_for_each_adapter_of_a_direct_part(tmp_path, basis):
    lines = named(["legal", None, "medical"])
    request = replace(REQUEST, basis=basis)
    statement, files = make_files(request, fake.basis(request, lines), fake.blocks(lines), tmp_path)
    assert statement.bill is not None
    assert statement.bill.left_over(statement.total, 0) == {}
    (path,) = (tmp_path / file.name for file in files if file.format == "bill-csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert {row["adapter"] for row in rows} == {"legal", "medical", NO_ADAPTER}
    assert {row["part"] for row in rows if row["adapter"] != NO_ADAPTER} == {"direct: serving"}
    asked_for = {(line.tenant, line.adapter) for line in lines if line.adapter}
    for tenant, adapter in asked_for:
        words = [line.words for found in invoices(statement.bill, tenant, {}) for line in found.lines]
        assert any(f"{fake.SERVICE}, adapter {adapter}: direct" in each for each in words), (tenant, adapter)


@pytest.mark.parametrize("version", ["1.0", "1.2", "1.4"])
def test_focus_has_a_row_for_each_adapter_with_it_in_the_tags(version):
    lines = named(["legal"])
    text = fake.focus_csv(lines, fake.basis(REQUEST, lines), version).decode()
    prefix = "" if version == "1.4" else "x_"
    rows = {row[f"{prefix}AllocatedResourceId"]: row for row in csv.DictReader(io.StringIO(text))}
    (own,) = (row for name, row in rows.items() if name.endswith("/legal"))
    (line,) = (line for line in lines if line.adapter)
    assert json.loads(own[f"{prefix}AllocatedTags"])["adapter"] == "legal"
    assert Decimal(own["x_EnergyJ"]) == Decimal(line.energy_uj) / 10**6
    assert sum('""adapter""' in each for each in text.splitlines()) == 1


def test_signature_is_that_of_before_when_nobody_asked_for_an_adapter():
    totals, basis, blocks = totals_of(LINES, REQUEST.by)
    totals.add_slo(basis.slo, {name: site.currency for name, site in basis.sites.items()})
    sharing = sharing_of("usage", basis)
    for block in blocks:
        sharing.add(block)
    stored = basis.as_json()
    for count in stored["slo"]:
        del count["adapter"]  # as reports of before have it
    found = signature(REQUEST, Basis.from_json(stored), totals, sharing.bill(()))
    assert found == "5a163012bd9dadd9feb4e1c0607e0e4259becaece47bf58b6b6d71585b941572"
