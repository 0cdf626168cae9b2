"""The example of docs/reports.md, billed in three bases, against the tables that stand there."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from telemetry.report_values.basis import DemandCharge
from telemetry.report_values.bill import BASES, OPERATOR
from telemetry.report_values.bill_sharing import BillSharing
from tests.documents import ROOT
from tests.fakes import bills

POOL, SERVICE, SITE = "chat/ashburn/LL", "chat", "ashburn"
NANO_PER_UJ = Fraction("0.30") * Fraction("1.2") / 3_600  # 0.30 USD/kWh at a PUE of 1.2
UG_PER_UJ = Fraction(300) * Fraction("1.2") / 3_600 / 1_000
NANO_PER_US = Fraction("1.80") / 3_600 * 1_000


def tables():
    text = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8").split("### An example of a bill")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]
    return [row for row in rows if row[0] in ("1", "2")], [row for row in rows if row[0] in BASES]


def line(hour, whose, kj, gpu_s):
    tenant = whose.removesuffix(", direct") if whose.endswith("direct") else None
    kind = "serving" if tenant else whose.split(",")[0]
    energy_uj, gpu_us = int(kj) * 10**9, int(gpu_s) * 10**6
    return bills.line(
        start_s=(int(hour) - 1) * 3_600,
        site=SITE,
        kind=kind,
        tenant=tenant,
        pool=None if "no pool" in whose else POOL,
        service=SERVICE if tenant else None,
        energy_uj=energy_uj,
        gpu_us=gpu_us,
        location_ug=round(energy_uj * UG_PER_UJ),
        electricity_nano=round(energy_uj * NANO_PER_UJ),
        rental_nano=round(gpu_us * NANO_PER_US),
    )


@pytest.mark.parametrize("basis", BASES)
def test_bill_of_the_example_is_the_tables(basis):
    ledger, expected = tables()
    weights = {"acme": Fraction(1), "birch": Fraction(1), "cobalt": Fraction(2)}
    sharing = BillSharing(basis, {POOL: SERVICE}, {SERVICE: weights})
    sharing.add(bills.block([line(*row) for row in ledger]))
    charge = DemandCharge(SITE, "2026-10", 0, 7_200, 1_000.0, 12 * 10**9, "USD", (("acme", 60), ("birch", 40)))
    bill = sharing.bill([charge])
    found = []
    for tenant in bill.tenants:
        own = bill.of(tenant)
        total, due = own.total(), own.due("USD")
        money = (due.electricity_nano, due.gpu_hours_nano, due.demand_nano, due.total_nano)
        found.append(
            [
                basis,
                tenant or OPERATOR,
                str(Fraction(total.energy_uj, 10**9)),
                str(Fraction(total.location_ug, 10**6)),
                *(f"{float(Fraction(nano, 10**9)):.2f}" for nano in money),
            ]
        )
    assert found == [row for row in expected if row[0] == basis]
