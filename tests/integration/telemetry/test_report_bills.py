"""The bill of a settled ledger: its inputs, its demand charge, its signature; how people ask for it and fetch it."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from zoneinfo import ZoneInfo

import openpyxl
import pytest
from click.testing import CliRunner
from django.test import Client

from greenserve.cli import cli
from pools.models import Instance, Job, Node, Service, Site, Tenant
from telemetry.ledger import settlement
from telemetry.models import Report, Tariff
from telemetry.reports import report_jobs, report_requests
from tests.fakes import metering
from tests.fakes.house import moment
from tests.fakes.metering import LATER, START
from tests.fakes.people import person
from tests.fakes.report_texts import pdf_text

pytestmark = pytest.mark.django_db
MONEY = ("electricity_cost", "gpu_hour_cost", "demand_charge", "due")
REFUSED = {"pool": None, "instance_uid": None, "status": "rejected", "http_status": 429, "output_tokens": None}
DAY = f"{moment(START):%Y-%m-%d}"


@pytest.fixture(autouse=True)
def _own_folder(settings, tmp_path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"


@pytest.fixture(scope="module")
def demand_charged(metered_rows):
    site = Site.objects.get(name="location-1")
    Tariff.objects.create(
        site=site,
        currency=site.currency,
        price_per_kwh=0.30,
        demand_per_kw=12.0,
        valid_from=moment(START),
        source="contract 77",
        version="2026-01",
    )
    assert settlement.settle(moment(LATER)) == 3


@pytest.fixture
def settled(demand_charged):
    return Site.objects.get(name="location-1")


def made(**given) -> Report:
    report = report_requests.ask({"period": DAY, "formats": "bill-csv", **given})
    assert report_jobs.make(report.pk), Job.objects.get(pk=report.job_id).error
    return Report.objects.select_related("job").get(pk=report.pk)


def content(report: Report, kind: str) -> bytes:
    return report_requests.path_of(report.files.get(format=kind)).read_bytes()


def rows(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content(report, "bill-csv").decode())))


def table(report: Report, kind: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content(report, kind).decode())))


def summed(report: Report, name: str) -> Decimal:
    return sum((Decimal(row[name]) for row in rows(report)), Decimal(0))


@pytest.mark.parametrize("basis", ["usage", "allocation", "marginal"])
def test_bill_adds_up_to_the_ledger_when_it_has_a_demand_charge(settled, basis):
    local = moment(START).astimezone(ZoneInfo(settled.time_zone))
    report = made(basis=basis, period=f"{local:%Y-%m}", zone="site", sites=settled.name)
    found = json.loads(content(report, "reconciliation"))
    assert (found["adds_up"], found["bill"]["left_over"]) == (True, {})
    assert summed(report, "energy_j") == Decimal(found["total"]["meters_j"])
    (charge,) = report.basis["demand"]
    assert summed(report, "demand_charge") * 10**9 == charge["charge_nano"] > 0
    assert charge["quarter"]
    bearers = {row["tenant"] for row in rows(report) if row["part"].startswith("demand")}
    assert bearers == ({"(operator)"} if basis == "marginal" else set(dict(_tenants(report))))
    (total,) = report.summary["bill"]["totals"]
    assert Decimal(total["due"]) == summed(report, "due")


def _tenants(report: Report) -> list[tuple[str, int]]:
    """Those that were served in the peak quarter, as the metered quarter of an hour is all that there is."""
    return [(tenant, uj) for charge in report.basis["demand"] for tenant, uj in charge["quarter"]]


def test_reserved_shares_are_those_of_the_service_when_the_basis_is_allocation(settled):
    service = Service.objects.get()
    service.knobs = {**service.knobs, "tenant_weights": {"reserve-only": 3.0}}
    service.save()
    report = made(basis="allocation")
    assert report.basis["inputs"]["allocations"] == {service.name: {"reserve-only": "3"}}
    own = [row for row in rows(report) if row["tenant"] == "reserve-only"]
    assert own
    assert all(not row["part"].startswith("direct") for row in own)


def test_inputs_are_those_that_valued_the_period(settled):
    report = made()
    found = {(one["kind"], one["site"]): one for one in report.basis["inputs"]["rates"]}
    tariff = found["tariff", settled.name]
    assert tariff["value"] == f"0.3 {settled.currency}/kWh; 12 {settled.currency}/kW of the month's peak"
    assert (tariff["source"], tariff["version"]) == ("contract 77", "2026-01")
    assert tariff["used_to_s"] - tariff["used_from_s"] == 900
    assert found["PUE", settled.name]["value"] == "1.2"
    assert "estimated values" in found["carbon intensity", settled.name]["quality"]
    Tariff.objects.create(
        site=settled,
        currency=settled.currency,
        price_per_kwh=0.5,
        valid_from=moment(START),
        source="entered too late",
        version="1",
    )
    again = made(by="tenant").basis["inputs"]["rates"]
    assert "entered too late" not in {one["source"] for one in again}  # no settlement used it yet


def test_bill_of_a_tenant_is_one_to_the_digit_in_every_format_after_refusals_silence_and_a_revised_tariff(settled):
    """The quarter of an hour has a silent meter in it (unattributed energy); then requests are refused, then the price
    is revised from the second window on."""
    instance = Instance.objects.get()
    metering.request(instance, START + 400, "refused-1", Tenant.objects.create(name="refused"), **REFUSED)
    Tariff.objects.create(
        site=settled,
        currency=settled.currency,
        price_per_kwh=0.40,
        demand_per_kw=12.0,
        valid_from=moment(START + 300),
        source="contract 78",
        version="2026-02",
    )
    assert settlement.restate(moment(LATER), moment(START)) == 2  # from the second window on
    local = moment(START).astimezone(ZoneInfo(settled.time_zone))
    asked = {"period": f"{local:%Y-%m}", "zone": "site", "sites": settled.name}
    report = made(formats="bill-csv,csv,xlsx,pdf,invoices,focus-csv", by="tenant", **asked)
    found = json.loads(content(report, "reconciliation"))
    assert (found["adds_up"], found["bill"]["left_over"]) == (True, {})
    lines = rows(report)
    assert any(row["part"].startswith("unattributed") for row in lines)
    assert {row["tenant"] for row in lines} == {row["tenant"] for row in report.summary["bill"]["tenants"]}
    assert "refused" not in {row["tenant"] for row in lines}
    workbook = openpyxl.load_workbook(io.BytesIO(content(report, "xlsx")), data_only=True)
    subtotals = {row[0]: row for row in workbook["Bill"].values if row[1] == settled.currency}
    client = Client()
    client.force_login(person("finance"))
    by_rest = {
        row["tenant"]: row for row in client.get(f"/api/v1/reports/{report.pk}/").json()["summary"]["bill"]["tenants"]
    }
    for tenant in sorted(by_rest):
        exact = {name: sum(Decimal(r[name]) for r in lines if r["tenant"] == tenant) for name in MONEY}
        assert {name: Decimal(by_rest[tenant][name]) for name in MONEY} == exact
        assert subtotals[tenant][-1] == float(exact["due"])
        printed = f"{exact['due']:.2f} {settled.currency}"
        assert f"Due: {printed}" in pdf_text(content(report, f"invoice-{tenant}"))
        assert printed in pdf_text(content(report, "pdf"))
        assert printed in client.get(f"/reports/{report.pk}/").content.decode()
    _direct_is_the_same_everywhere(report, client)
    assert report_jobs.reproduce(report) == []


def _direct_is_the_same_everywhere(report: Report, client: Client) -> None:
    """A tenant's own use: in FOCUS, in the CSV, and by REST for its page's months."""
    charges = table(report, "focus-csv")
    span = {"from": "2025-12-01T00:00Z", "to": "2026-02-01T00:00Z"}
    facts = {"energy_j": "x_EnergyJ", "cost": "BilledCost", "scope2_location_kgco2e": "x_Scope2LocationKgCo2e"}
    tenants = {row["tenant"]: row for row in table(report, "csv") if row["requests"] != "0" and row["energy_j"] != "0"}
    assert len(tenants) == 2
    for tenant, row in tenants.items():
        (total,) = client.get(f"/api/v1/tenants/{tenant}/use/", span).json()["totals"]
        for name, focus in facts.items():
            summed_up = sum(Decimal(charge[focus]) for charge in charges if charge["x_TenantId"] == tenant)
            assert summed_up == Decimal(row[name]) == Decimal(total[name]) > 0
    everything = sum(Decimal(charge["x_EnergyJ"] or 0) for charge in charges)
    assert everything == Decimal(json.loads(content(report, "reconciliation"))["total"]["meters_j"])
    assert sum(Decimal(charge["BilledCost"]) for charge in charges) == summed(report, "due")


def test_report_says_that_data_is_synthetic_when_simulated_nodes_metered_it(settled):
    report = made()
    (span,) = report.basis["inputs"]["synthetic"]
    assert (span["site"], span["energy_uj"] > 0) == (settled.name, True)
    assert "contains synthetic data" in report.summary["warnings"]
    Node.objects.update(simulated=False)
    assert "contains synthetic data" not in made(by="tenant").summary["warnings"]


def test_signature_and_files_are_the_same_when_they_are_made_again(settled):
    report = made(formats="bill-csv,xlsx,pdf,invoices")
    assert len(report.summary["signature"]) == 64
    assert json.loads(content(report, "reconciliation"))["bill"]["signature_sha256"] == report.summary["signature"]
    assert report_jobs.reproduce(report) == []
    report.summary["signature"] = "0" * 64
    (differs,) = report_jobs.reproduce(report)
    assert differs.name == "signature"


def test_verify_says_why_when_older_writers_made_the_files(settled):
    report = made(formats="bill-csv,pdf")
    report.basis["writers"] = 1
    report.files.filter(format="pdf").update(sha256="0" * 64)
    report.save()
    found = CliRunner().invoke(cli, ["report", "verify", str(report.pk)])
    assert found.exit_code == 1
    assert "made by writers 1" in found.output
    assert "its figures are signed, and are the same" in found.output


def test_report_of_before_there_were_bills_is_made_again_without_one(settled):
    report = made(basis="none", formats="csv,pdf")
    del report.asked["basis"], report.basis["inputs"], report.basis["writers"]
    for charge in report.basis["demand"]:
        del charge["quarter"]
    differ = report_jobs.reproduce(report)
    # The CSV is the same to the byte. The document has ESRS now, which goes by inputs that were not kept then.
    assert [difference.name.rpartition(".")[2] for difference in differ] == ["pdf", "json"]
    assert all(difference.why.startswith("made by writers 1") for difference in differ)


def test_invoice_is_asked_for_and_fetched_by_rest(settled):
    client = Client()
    client.force_login(person("finance"))
    body = {"period": DAY, "formats": ["invoices"], "basis": "usage"}
    asked = client.post("/api/v1/reports/", body, content_type="application/json")
    assert asked.status_code == 202, asked.content
    report_jobs.make(asked.json()["id"])
    found = client.get(f"/api/v1/reports/{asked.json()['id']}/").json()
    kinds = [file["format"] for file in found["files"] if file["format"].startswith("invoice-")]
    assert [kind.removeprefix("invoice-") for kind in kinds] == [
        row["tenant"] for row in found["summary"]["bill"]["tenants"] if row["tenant"]
    ]
    assert {"PUE", "tariff", "carbon intensity"} <= {one["kind"] for one in found["inputs"]}
    answer = client.get(f"/api/v1/reports/{found['id']}/files/{kinds[0]}/")
    assert b"".join(answer.streaming_content).startswith(b"%PDF")
    wrong = client.post("/api/v1/reports/", {**body, "basis": "fair"}, content_type="application/json")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "basis")


def test_page_shows_the_bill_with_its_total_and_offers_invoices(settled):
    client = Client()
    client.force_login(person("finance"))
    form = {"period": DAY, "zone": "UTC", "formats": ["invoices"], "by": ["tenant"], "basis": "allocation"}
    assert client.post("/reports/", form).status_code == 302
    report = Report.objects.get()
    assert report.asked["basis"] == "allocation"
    report_jobs.make(report.pk)
    page = client.get(f"/reports/{report.pk}/").content.decode()
    assert "The bill, by allocation" in page
    assert "Contains synthetic data" in page
    assert "contract 77" in page
    assert f"/reports/{report.pk}/files/invoice-" in page
    assert Report.objects.get().summary["signature"] in page


def test_command_makes_a_bill_by_the_basis_that_is_asked_for(settled, tmp_path):
    arguments = ["make", DAY, "--basis", "marginal", "--format", "bill-csv,invoices", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, ["report", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["summary"]["bill"]["basis"] == "marginal"
    assert list((tmp_path / "out").glob("*.invoice-*.pdf"))
    wrong = CliRunner().invoke(cli, ["report", "make", DAY, "--basis", "fair"])
    assert (wrong.exit_code, "basis: 'fair' is no basis" in wrong.output) == (2, True)
