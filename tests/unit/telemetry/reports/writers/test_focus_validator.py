"""FOCUS 1.0 before the FinOps Foundation's own validator, as it is published: 133 checks, of which none may fail.

It runs in .venv-focus (`scripts/install focus`), since it needs an older NumPy, and away from the network.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from telemetry.report_values.report_request import ReportRequest
from telemetry.reports.writers.files import make_files
from tests.fakes import reports as fake
from tests.fakes.simnode import ROOT

ENVIRONMENT = ROOT / ".venv-focus"
PROGRAM = ENVIRONMENT / "bin" / "focus-validator"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")  # nobody answers there
TENANT = '=HYPERLINK("http://x","y")'
REQUEST = ReportRequest("2026-10-05", formats=("focus-csv", "focus-parquet"), focus_version="1.0")
CHECKS = 133
# What a file of 1.4 lacked, by the validator's names.
ABSENT = (
    *(
        "Provider",
        "Publisher",
        "InvoiceIssuer",
        "ResourceID",
        "PricingCategory",
        "ListUnitPrice",
        "ContractedUnitPrice",
    ),
    *("CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountStatus"),
    "CommitmentDiscountType",
)


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    """A report's file: serving, idle, transition and unattributed time, a demand charge, and a name like a formula."""
    folder = tmp_path_factory.mktemp("report")
    found = [
        replace(line, tenant=TENANT if line.tenant == "acme" else line.tenant) for line in fake.lines(REQUEST, hours=2)
    ]
    assert {line.kind for line in found} == {"serving", "idle", "transition", "unattributed"}
    basis = fake.basis(REQUEST, found, demand=(fake.demand_charge(),))
    _, files = make_files(REQUEST, basis, fake.blocks(found), folder)
    names = {file.format: file.name for file in files}
    assert names["focus-csv"] == "2026-10-05_R12.1-L345.focus-1.0.csv"
    assert names["focus-parquet"] == "2026-10-05_R12.1-L345.focus-1.0.parquet"
    assert json.loads((folder / names["reconciliation"]).read_text())["adds_up"] is True
    return folder / names["focus-csv"]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def checked(path: Path, folder: Path) -> dict[str, bool]:
    """Runs the validator. Returns of each check whether it holds."""
    assert PROGRAM.exists(), "the validator of FOCUS 1.0 is missing: `scripts/install focus` makes .venv-focus with it"
    target = folder / "checks.xml"
    packages = next(ENVIRONMENT.glob("lib/python*/site-packages"))
    asked = ("--validate-version", "1.0", "--output-type", "unittest", "--output-destination", str(target))
    subprocess.run(
        [PROGRAM, "--data-file", str(path), *asked],
        cwd=packages,  # it looks for its list of currencies from there
        env={**os.environ, **NO_NETWORK},
        check=True,
        timeout=120,
        capture_output=True,
    )
    cases = ElementTree.parse(target).getroot().iter("testcase")
    return {case.attrib["name"].split(" :: ")[0]: len(case) == 0 for case in cases}


def written(rows: Sequence[dict[str, str]], folder: Path) -> Path:
    path = folder / "changed.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_no_check_fails_when_the_validator_reads_a_report(export, tmp_path):
    rows = table(export)
    assert rows[-1]["SkuId"] == "demand-charge"
    assert f"'{TENANT}" in {row["x_TenantId"] for row in rows}
    checks = checked(export, tmp_path)
    assert [name for name, holds in checks.items() if not holds] == []
    assert len(checks) == CHECKS


@pytest.mark.slow("the validator once more: what it refuses changes only with its version")
def test_checks_fail_when_columns_are_missing(export, tmp_path):
    rows = [{name: text for name, text in row.items() if name not in {*ABSENT, "ChargeType"}} for row in table(export)]
    checks = checked(written(rows, tmp_path), tmp_path)
    failed = {name for name, holds in checks.items() if not holds}
    assert failed == {*(f"{name}_Required" for name in ABSENT), "SkuPriceId_Nullable"}


@pytest.mark.slow("the validator once more: what it refuses changes only with its version")
def test_checks_fail_when_cells_are_wrong(export, tmp_path):
    wrong = {"BilledCost": "", "BillingCurrency": "XXQ", "ChargePeriodStart": "yesterday", "PricingCategory": "Spot"}
    rows = table(export)
    rows[3] |= {**wrong, "Tags": "none", "SkuPriceId": ""}
    checks = checked(written(rows, tmp_path), tmp_path)
    assert {name for name, holds in checks.items() if not holds} == {
        *("BilledCost_NotNull", "BillingCurrency_IsCurrencyCode", "ChargePeriodStart_IsDateTime"),
        *("PricingCategory_Enum_1.0", "Tags_IsJSONObject", "SkuPriceId_Nullable"),
    }
