"""Reports from the settled ledger: made, restated, made again byte for byte, fetched, signed, scheduled and mailed."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
from datetime import timedelta
from decimal import Decimal

import openpyxl
import pytest
from click.testing import CliRunner
from django.core import mail
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from kombu.exceptions import OperationalError

from core.engine.engine_model import engine_model
from frontend.templatetags import units
from greenserve.cli import cli
from pools.access.audit import Actor
from pools.models import AuditEntry, Instance, Job, JobState, Site, Tenant
from scheduler.operations.configure import registry, transfer
from telemetry.ledger import settlement
from telemetry.models import EnergyEntry, Instrument, InstrumentHour, MeterMark, Report, ReportSchedule
from telemetry.report_values.basis import WRITERS
from telemetry.report_values.errors import BadReport
from telemetry.report_values.table import COLUMNS, NAMES
from telemetry.report_values.unit_scale import ENERGY
from telemetry.reports import report_jobs, report_pivots, report_requests, schedules, settled_lines
from telemetry.reports.tasks import make_report
from tests.fakes import metering
from tests.fakes.house import moment
from tests.fakes.metering import END, LATER, START
from tests.fakes.people import person
from tests.fakes.report_texts import pdf_text

pytestmark = pytest.mark.django_db
SUMMED = {
    "energy_j": "energy J",
    "energy_kwh": "energy kWh",
    "gpu_hours": "GPU hours",
    "scope2_location_kgco2e": "scope2 location kgCO2e",
    "scope2_market_kgco2e": "scope2 market kgCO2e",
    "cost": "cost",
}
SYSTEM = Actor()
DAY = f"{moment(START):%Y-%m-%d}"
MONTH = f"{moment(START):%Y-%m}"


@pytest.fixture(autouse=True)
def _own_folder(settings, tmp_path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"


@pytest.fixture
def settled(settled_rows) -> Site:
    return Site.objects.get(name="location-1")


@pytest.fixture
def instance(settled) -> Instance:
    return Instance.objects.get()


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(person("finance"))
    return client


def made(**given) -> Report:
    report = report_requests.ask({"period": DAY, **given})
    assert report_jobs.make(report.pk), Job.objects.get(pk=report.job_id).error
    return Report.objects.select_related("job", "revises").get(pk=report.pk)


def contents(report: Report) -> dict[str, bytes]:
    return {file.format: report_requests.path_of(file).read_bytes() for file in report.files.all()}


def table(report: Report, kind: str = "csv") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(contents(report)[kind].decode())))


def supplier(site, factor: str = "300", **values) -> Instrument:
    whole = {"valid_from": moment(START) - timedelta(days=40), "valid_to": moment(START) + timedelta(days=400)}
    return Instrument.objects.create(
        **{"site": site, "kind": "supplier", "factor_g_per_kwh": factor, "source": "disclosure", **whole, **values}
    )


# -- made ------------------------------------------------------------------------------------------


def test_every_export_adds_up_to_the_meters_when_made(settled):
    report = made(by="site,tenant,service,pool,model", formats="focus-csv,focus-parquet,csv,xlsx,pdf")
    found = json.loads(contents(report)["reconciliation"])
    assert found["adds_up"] is True
    entered_uj = sum(EnergyEntry.objects.filter(start_at__lt=moment(END)).values_list("energy_uj", flat=True))
    assert Decimal(found["total"]["meters_j"]) * 10**6 == entered_uj > 0
    for watermark in MeterMark.objects.select_related("gpu"):
        (meter,) = (meter for meter in found["meters"] if meter["gpu"] == watermark.gpu.uuid)
        assert meter["difference_j"] == "0"
        assert Decimal(meter["counter_moved_j"]) * 10**6 == watermark.energy_uj - watermark.opened_energy_uj
    for kind, content in contents(report).items():
        assert hashlib.sha256(content).hexdigest() == report.files.get(format=kind).sha256
    for kind in ("csv", "focus-csv"):
        column = "energy_j" if kind == "csv" else "x_EnergyJ"
        assert sum(Decimal(row[column]) for row in table(report, kind)) * 10**6 == entered_uj


def test_figures_are_those_of_the_ledger_when_made(settled):
    (row,) = table(made(by="site"))
    energy_kwh = float(row["energy_kwh"])
    assert float(row["facility_kwh"]) == pytest.approx(energy_kwh * 1.2)  # the PUE of `metering.rates`
    assert int(row["output_tokens"]) == 6_000
    assert float(row["j_per_output_token"]) == pytest.approx(float(row["energy_j"]) / 6_000)
    assert float(row["gpu_hours"]) == pytest.approx(4 * 0.25)
    assert 200 <= float(row["scope2_location_kgco2e"]) * 1e3 / float(row["facility_kwh"]) <= 400
    assert float(row["cost"]) == pytest.approx(float(row["electricity_cost"]) + float(row["gpu_hour_cost"]))
    assert 0 < float(row["idle_share"]) < 1
    assert row["scope2_market_kgco2e"] == ""  # there is no contract: unknown, not nothing
    assert float(row["without_contract_kwh"]) == pytest.approx(float(row["facility_kwh"]))


def test_totals_are_whole_and_the_same_in_every_format_when_all_requests_of_a_tenant_were_refused(
    settled, instance, operator
):
    supplier(settled)
    refused = Tenant.objects.create(name="refused")
    for number in range(3):
        values = {"pool": None, "instance_uid": None, "status": "rejected", "http_status": 429, "output_tokens": None}
        metering.request(instance, START + number, f"refused-{number}", refused, **values)
    report = made(by="tenant", formats="csv,xlsx,pdf,focus-csv")
    rows = table(report)
    (row,) = (row for row in rows if row["tenant"] == "refused")
    assert (row["energy_j"], row["gpu_hours"], row["cost"], row["requests"], row["currency"]) == (
        *("0", "0", "0", "3"),
        settled.tariffs.first().currency,
    )
    assert (row["j_per_output_token"], row["slo_attainment"]) == ("", "")
    sums = {name: sum(Decimal(row[name]) for row in rows) for name in rows[0] if name in SUMMED}
    focus = table(report, "focus-csv")
    assert sums["energy_j"] == sum(Decimal(row["x_EnergyJ"]) for row in focus)
    assert sums["cost"] == sum(Decimal(row["BilledCost"]) for row in focus)
    sheet = openpyxl.load_workbook(io.BytesIO(contents(report)["xlsx"]), data_only=True)["Summary"]
    totals = {line[0].value: line[2].value for line in sheet.iter_rows()}
    for name, words in SUMMED.items():
        rounded = len(rows) * 1e-11 if name in ("energy_kwh", "gpu_hours") else 0.0
        assert totals[words] == pytest.approx(float(sums[name]), rel=1e-15, abs=rounded), name
    document = pdf_text(contents(report)["pdf"])
    assert f"{sums['cost']:.2f}" in document
    assert f"{sums['energy_kwh'] * 1000:.1f}" in document  # Wh
    body = operator.get(f"/api/v1/reports/{report.pk}/").json()["summary"]
    assert body["energy_j"] == float(sums["energy_j"])
    assert body["market_gco2e"] == pytest.approx(float(sums["scope2_market_kgco2e"]) * 1e3)
    assert body["cost"] == {row["currency"]: pytest.approx(float(sums["cost"]))}
    page = operator.get(f"/reports/{report.pk}/").content.decode()
    assert units.kwh(float(sums["energy_j"])) in page


def test_market_is_known_when_contracts_cover_the_site(settled):
    supplier(settled)
    (row,) = table(made(by="site"))
    assert float(row["scope2_market_kgco2e"]) == pytest.approx(float(row["facility_kwh"]) * 0.3)
    old = Instrument.objects.get()
    supplier(settled, "100", replaces=old)
    (row,) = table(made(by="site"))
    assert float(row["scope2_market_kgco2e"]) == pytest.approx(float(row["facility_kwh"]) * 0.1)


def test_metered_contract_covers_its_hour_alone_in_every_format(settled, operator):
    """Its hours come as a file; the residual mix has the rest, and a second file corrects an hour."""
    start = moment(START).replace(minute=0)
    contract = supplier(settled, "0", kind="ppa", generation="metered", mix={"solar": 1}, source="park")
    supplier(settled, "500", kind="residual")
    head, key = "instrument,start_at,energy_kwh,source", transfer.key_of(contract)
    for rows in (
        (f"{start:%Y-%m-%dT%H:%MZ},9",),
        (f"{start:%Y-%m-%dT%H:%MZ},0.001",),
        (f"{start:%Y-%m-%dT%H:%MZ},0.002",),
    ):
        text = "\n".join([head, *(f"{key},{row},statement" for row in rows)])
        (outcome,) = transfer.bring_in(SYSTEM, registry.OWNED["instrument-hours"], text, "csv", dry_run=False)
        assert outcome.what in ("created", "changed"), outcome
    report = made(by="site,tenant", formats="csv,scope2-csv,xlsx,pdf")
    (hour,) = (row for row in table(report, "scope2-csv") if row["hour_start_utc"] == f"{start:%Y-%m-%dT%H:%M:%SZ}")
    assert (hour["matched_hourly_kwh"], hour["carbon_free_kwh"], hour["surplus_kwh"]) == ("0.002", "0.002", "0")
    rows = table(report)
    (found,) = report.summary["scope2"]["sites"]
    market_kg = sum(Decimal(row["scope2_market_kgco2e"]) for row in rows)
    assert Decimal(found["market_hourly_kgco2e"]) == market_kg
    assert Decimal(found["facility_kwh"]) - Decimal("0.002") == pytest.approx(market_kg * 2, rel=Decimal("1e-6"))
    assert sum(Decimal(row["scope2_location_kgco2e"]) for row in rows) == Decimal(found["location_kgco2e"])
    sheet = openpyxl.load_workbook(io.BytesIO(contents(report)["xlsx"]), data_only=True)["Scope 2"]
    head, cells = ([cell.value for cell in row] for row in sheet.iter_rows(max_row=2))
    assert cells[head.index("market hourly kgCO2e")] == float(market_kg)
    assert json.loads(contents(report)["reconciliation"])["adds_up"] is True
    assert "criterion 3" in " ".join(pdf_text(contents(report)["pdf"]).split())
    assert "Scope 2, both ways" in operator.get(f"/reports/{report.pk}/").content.decode()
    assert operator.get(f"/api/v1/reports/{report.pk}/").json()["summary"]["scope2"]["matching"] == "hourly"


def test_datapoints_of_esrs_are_the_same_in_every_format(settled, operator):
    """A sunny hour and a residual mix: page, REST, CSV, workbook and document have each value to the digit."""
    start = moment(START).replace(minute=0)
    sun = supplier(settled, "10", kind="ppa", generation="metered", mix={"solar": 1}, source="park", bundled=True)
    InstrumentHour.objects.create(instrument=sun, start_at=start, energy_kwh="0.1", source="statement")
    supplier(settled, "500", kind="residual", source="residual mix of the year")
    report = made(by="site", formats="csv,esrs-csv,xlsx,pdf")
    rows = table(report, "esrs-csv")
    values = {row["name"]: row["value"] for row in rows}
    (line,) = table(report)
    energy_j = Decimal(next(row["exact"] for row in rows if row["name"] == "energy"))
    assert abs(energy_j / 3_600_000 - Decimal(line["facility_kwh"])) <= Decimal("1e-12")
    assert (values["renewable"], values["scope1"], values["scope3_category_3"]) == ("0.000100", "", "")
    exact = {row["name"]: row["exact"] for row in rows}
    assert Decimal(exact["scope2_location"]) == Decimal(line["scope2_location_kgco2e"]) * 1_000
    assert Decimal(exact["scope2_market"]) == Decimal(line["scope2_market_kgco2e"]) * 1_000
    assert Decimal(exact["scope3_category_2"]) == Decimal(line["embodied_kgco2e"]) * 1_000
    parts = ("fossil", "nuclear", "renewable", "source_unknown")
    assert sum(Decimal(exact[name] or 0) for name in parts) == energy_j
    body = operator.get(f"/api/v1/reports/{report.pk}/").json()["summary"]["esrs"]
    assert {row["name"]: row["value"] or "" for row in body["rows"]} == values
    (listed,) = operator.get("/api/v1/reports/").json()["results"]
    assert "esrs" not in listed["summary"]
    assert listed["summary"]["scope2"] == report.summary["scope2"]
    sheet = openpyxl.load_workbook(io.BytesIO(contents(report)["xlsx"]), data_only=True)["ESRS E1"]
    shown = list(sheet.iter_rows(min_row=2, max_row=1 + len(rows), values_only=True))
    assert [cells[4] for cells in shown] == [float(row["value"]) if row["value"] else None for row in rows]
    assert [cells[3] for cells in shown] == [row["label"] for row in rows]
    document = pdf_text(contents(report)["pdf"]).split("ESRS E1", 1)[1].split("\n")
    page = operator.get(f"/reports/{report.pk}/").content.decode()
    for value in filter(None, values.values()):
        assert value in document
        assert f'<td class="number">{value}</td>' in page
    assert "By lifecycle intensities" in page
    assert "mix solar 1; bundled with the energy; covers 0.1 kWh" in " ".join(" ".join(document).split())
    assert report_jobs.reproduce(report) == []


def test_report_of_older_writers_is_said_to_be_one_and_its_page_has_no_datapoints(settled, operator):
    report = made(by="site", formats="csv,xlsx")
    report.files.filter(format="xlsx").update(sha256="0" * 64)
    basis = {**report.basis, "writers": 3}
    del basis["inputs"]["factors"]
    Report.objects.filter(pk=report.pk).update(
        basis=basis, summary={name: value for name, value in report.summary.items() if name != "esrs"}
    )
    (difference, *_) = report_jobs.reproduce(Report.objects.get(pk=report.pk))
    assert f"made by writers 3, and these are writers {WRITERS}" in difference.why
    page = operator.get(f"/reports/{report.pk}/")
    assert page.status_code == 200
    assert "ESRS" not in page.content.decode()


def test_report_is_provisional_when_its_period_is_not_settled(settled):
    report = made(by="site")
    assert report.summary["provisional"] is True
    (row,) = table(report)
    assert Decimal(row["energy_j"]) > 0


def test_saving_is_modelled_and_said_to_be_when_the_requests_are_replayed(settled):
    report = made(by="site", baseline=True, formats="csv,pdf")
    baseline = report.basis["baseline"]
    assert (baseline["policy"], baseline["requests"], baseline["left_out"]) == ("single_pool", 60, 0)
    # A fleet that is always on draws at least its loaded idle power for the quarter of an hour that was metered.
    model = engine_model("Llama3-70B", "A100-80GB", 4)
    assert baseline["energy_uj"] / 1e6 > model.idle_watts(model.gpu_params.f_max) * 900
    assert baseline["location_ug"] > 0
    assert baseline["span_s"] == 900
    assert report_jobs.reproduce(report) == []  # what was modelled is kept with the report, not modelled again


# -- made again ------------------------------------------------------------------------------------


def test_bytes_are_the_same_when_the_world_has_gone_on(settled):
    supplier(settled)
    report = made(by="site,tenant,pool", formats="focus-csv,focus-parquet,csv,xlsx,pdf")
    before = contents(report)
    settled.label, settled.pue = "Elsewhere", 1.9
    settled.save()
    Tenant.objects.update(label="Renamed")
    Tenant.objects.filter(name="tenant-0").update(name="renamed")
    supplier(settled, "5", kind="certificate", volume_kwh=1_000)
    metering.intensity(settled, START, 300.0, 900.0, issued_s=START + 5_000)
    assert settlement.restate(moment(LATER), moment(START)) > 0
    assert report_jobs.reproduce(report) == []
    assert contents(report) == before
    other = made(by="site,tenant,pool", formats="focus-csv,focus-parquet,csv,xlsx,pdf")
    assert {kind for kind in before if contents(other)[kind] == before[kind]} == set()


def test_difference_is_reported_when_a_file_does_not_come_out_the_same(settled):
    report = made()
    report.files.filter(format="csv").update(sha256="0" * 64)
    (difference,) = report_jobs.reproduce(report)
    assert (difference.name, difference.then) == (report.files.get(format="csv").name, "0" * 64)
    assert difference.now == hashlib.sha256(contents(report)["csv"]).hexdigest()


def test_restated_feed_changes_exactly_its_intervals_when_the_report_is_made_anew(settled):
    asked = {"by": "site,tenant", "formats": "focus-csv,csv"}
    first = made(**asked)
    metering.intensity(settled, START + 300, 300.0, 250.0, issued_s=START + 5_000)
    assert settlement.restate(moment(LATER), moment(START)) == 1
    second = made(**asked)
    assert (second.revision, second.revises) == (2, first)
    assert second.summary["version"].startswith(f"R{first.pk}.2-L")
    start, end = (f"{moment(START + s):%Y-%m-%dT%H:%M:%SZ}" for s in (300, 600))
    assert second.changes == [{"site": settled.name, "start": start, "end": end, "cause": "carbon"}]
    carbon = {"scope2_location_kgco2e", "scope2_location_known_kgco2e", "g_per_1k_output_tokens"}
    for was, now in zip(table(first), table(second), strict=True):
        differ = {name for name in was if was[name] != now[name]} - {"report_version", "sci_g_per_output_token"}
        assert differ <= carbon
    assert report_jobs.reproduce(first) == []


# -- asked for wrongly -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"period": "2999-01"}, "period", "has not begun"),
        ({"period": "2001-01"}, "period", "the ledger reaches from"),
        ({"period": DAY, "sites": "atlantis"}, "sites", "atlantis"),
    ],
)
def test_report_is_refused_when_there_can_be_nothing_in_it(settled, given, field, words):
    with pytest.raises(BadReport, match=words) as error:
        report_requests.ask(given)
    assert error.value.field == field
    assert not Report.objects.exists()


# -- REST ------------------------------------------------------------------------------------------


def post(client: Client, path: str = "", **body):
    return client.post(f"/api/v1/reports/{path}", json.dumps(body), content_type="application/json")


def test_report_is_made_by_a_worker_and_fetched_when_asked_for_by_rest(settled, operator):
    answer = post(operator, period=DAY, by=["site"], formats=["csv", "pdf"])
    assert answer.status_code == 202, answer.content
    body = answer.json()
    assert (body["state"], body["files"], body["summary"]) == ("queued", [], None)
    assert make_report(body["id"]) is True
    found = operator.get(answer.headers["Location"]).json()
    assert (found["state"], found["progress"], found["error"]) == ("done", 1.0, "")
    assert {file["format"] for file in found["files"]} == {"csv", "pdf", "reconciliation"}
    for file in found["files"]:
        got = operator.get(f"/api/v1/reports/{body['id']}/files/{file['format']}/")
        assert hashlib.sha256(b"".join(got.streaming_content)).hexdigest() == file["sha256"]
        assert file["name"] in got.headers["Content-Disposition"]
    assert operator.get(f"/api/v1/reports/{body['id']}/files/xlsx/").status_code == 404
    (row,) = operator.get("/api/v1/reports/", {"state": "done"}).json()["results"]
    assert row["id"] == body["id"]


def test_list_makes_few_queries_however_many_reports_there_are(settled, operator):
    for _ in range(4):
        report_requests.ask({"period": DAY})
    with CaptureQueriesContext(connection) as queries:
        assert len(operator.get("/api/v1/reports/").json()["results"]) == 4
    assert len(queries) <= 2 + 4  # session, user, role and its sites


def test_rest_names_the_field_when_it_is_wrong(settled, operator, client):
    answer = post(operator, period=DAY, by=["colour"])
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"] == "by"
    assert "colour" in error["detail"]
    assert post(operator, period=DAY, frmats=["pdf"]).json()["errors"][0]["field"] == "frmats"
    assert operator.post("/api/v1/reports/", "[]", content_type="application/json").status_code == 400
    assert operator.post("/api/v1/reports/", "{", content_type="application/json").status_code == 400
    assert operator.get("/api/v1/reports/", {"state": "flying"}).status_code == 400
    assert client.get("/api/v1/reports/").status_code == 401
    assert post(client, period=DAY).status_code == 401


def test_report_is_signed_once_when_it_is_finished(settled, operator):
    queued = report_requests.ask({"period": DAY})
    assert post(operator, f"{queued.pk}/sign/").status_code == 409
    report_jobs.make(queued.pk)
    assert post(operator, f"{queued.pk}/sign/").json()["signed_by"] == "finance"
    assert post(operator, f"{queued.pk}/sign/").status_code == 409
    (entry,) = AuditEntry.objects.filter(kind="report")
    assert (entry.who, entry.channel, entry.action, entry.after["signed_by"]) == ("finance", "api", "signed", "finance")
    assert entry.after["files"] == dict(queued.files.values_list("name", "sha256"))
    assert report_jobs.reproduce(Report.objects.get(pk=queued.pk)) == []


def test_report_is_not_made_when_it_was_cancelled(settled, operator):
    queued = report_requests.ask({"period": DAY})
    assert post(operator, f"{queued.pk}/cancel/").json()["state"] == "cancelled"
    assert report_jobs.make(queued.pk) is False
    assert post(operator, f"{queued.pk}/cancel/").status_code == 409


def test_report_stops_when_it_is_cancelled_on_its_way(settled, monkeypatch):
    monkeypatch.setattr(report_jobs, "REPORT_EVERY_S", 0.0)
    report = report_requests.ask({"period": DAY})
    Job.objects.filter(pk=report.job_id).update(cancel_requested=True)
    assert report_jobs.make(report.pk) is False
    assert Job.objects.get(pk=report.job_id).state == "cancelled"
    assert not report.files.exists()


def full_disk(wrapped: bool = False):
    """Writes all files but the last, and of that a half."""
    make_files = report_jobs.make_files

    def failing(request, basis, blocks, folder):
        _, files = make_files(request, basis, blocks, folder)
        last = folder / files[-1].name
        last.write_bytes(last.read_bytes()[: files[-1].size_bytes // 2])
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(last))
        except OSError as error:
            if wrapped:
                raise RuntimeError("the workbook cannot be closed") from error
            raise

    return failing


@pytest.mark.parametrize("wrapped", [False, True])
def test_report_fails_with_the_folder_and_the_remedy_and_leaves_nothing_when_the_disk_is_full(
    settled, settings, monkeypatch, wrapped
):
    whole = made(formats=["csv"])
    before = contents(whole)
    with monkeypatch.context() as disk:
        disk.setattr(report_jobs, "make_files", full_disk(wrapped))
        report = report_requests.ask({"period": DAY, "formats": ["csv", "xlsx"]})
        assert not report_jobs.make(report.pk)
    report.job.refresh_from_db()
    assert report.job.state == JobState.FAILED
    folder = settings.GREENSERVE_REPORTS_DIR
    assert report.job.error == (
        f"its files cannot be written: {folder}: No space left on device; make room there, or mend the disk, "
        "and ask again"
    )
    assert os.listdir(folder) == [str(whole.pk)], "nothing half is left"
    assert not report.files.exists()
    assert contents(whole) == before


def test_report_has_all_its_files_or_none_when_the_process_was_killed_before(settled):
    report = report_requests.ask({"period": DAY, "formats": ["csv"]})
    left = report_requests.folder_of(report)
    left.mkdir(parents=True)
    (left / "of-a-killed-attempt.csv").write_bytes(b"ha")
    assert report_jobs.make(report.pk)
    assert "of-a-killed-attempt.csv" not in os.listdir(left)
    assert set(report.files.values_list("name", flat=True)) <= set(os.listdir(left))


def test_job_fails_and_says_so_when_redis_does_not_answer(
    settled, operator, monkeypatch, django_capture_on_commit_callbacks
):
    def refuse(*_, **__):
        raise OperationalError("Connection refused")

    monkeypatch.setattr(make_report, "apply_async", refuse)
    with django_capture_on_commit_callbacks(execute=True):
        body = post(operator, period=DAY).json()
    job = Job.objects.get(uid=body["job"])
    assert (job.state, "Redis does not answer" in job.error) == ("failed", True)


# -- the page --------------------------------------------------------------------------------------


def test_page_lists_what_is_made_and_offers_its_files(settled, operator):
    report = made(formats="csv,pdf")
    page = operator.get("/reports/").content.decode()
    assert report.summary["version"] in page
    assert f"/reports/{report.pk}/files/pdf/" in page
    got = operator.get(f"/reports/{report.pk}/files/csv/")
    assert b"".join(got.streaming_content) == contents(report)["csv"]
    assert operator.post(f"/reports/{report.pk}/sign/").status_code == 302
    assert AuditEntry.objects.get(kind="report", action="signed").channel == "page"
    assert "finance, " in operator.get("/reports/?part=1").content.decode()
    page = operator.get(f"/reports/{report.pk}/").content.decode()
    assert "adds up to the meters: 4 GPU counters" in page
    assert all(file.sha256 in page for file in report.files.all())


def test_form_keeps_what_was_typed_when_a_field_is_wrong(settled, operator):
    answer = operator.post("/reports/", {"period": "Octember", "by": ["tenant"], "formats": ["pdf"]})
    assert answer.status_code == 400
    page = answer.content.decode()
    assert 'value="Octember"' in page
    assert "is not understood" in page
    assert 'name="by" value="tenant" checked' in page
    assert 'name="by" value="site" checked' not in page


def test_page_asks_for_a_report_when_the_form_is_sent(settled, operator):
    answer = operator.post("/reports/", {"period": DAY, "by": ["site"], "formats": ["pdf"], "zone": "UTC", "site": ""})
    assert (answer.status_code, answer.url) == (302, "/reports/")
    assert Report.objects.get().asked["formats"] == ["pdf"]
    assert "queued" in operator.get("/reports/").content.decode()


@pytest.mark.parametrize("path", ["/reports/", "/reports/1/files/pdf/"])
def test_page_leads_to_the_sign_in_when_nobody_is_signed_in(client, path):
    assert client.get(path).status_code == 302


# -- the command line ------------------------------------------------------------------------------


def run(*arguments: str):
    return CliRunner().invoke(cli, ["report", *arguments])


def test_command_makes_lists_fetches_and_verifies(settled, tmp_path):
    done = run("make", DAY, "--by", "site", "--format", "csv,pdf", "--out", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.output
    row = json.loads(done.output)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {file["name"] for file in row["files"]}
    assert json.loads(run("list", "--json").output)[0]["version"] == row["version"]
    assert run("fetch", str(row["id"]), "--out", str(tmp_path / "again")).exit_code == 0
    same = run("verify", str(row["id"]))
    assert (same.exit_code, "3 files: all as they were" in same.output) == (0, True)
    report = Report.objects.get(pk=row["id"])
    report_requests.path_of(report.files.get(format="csv")).write_text("altered")
    other = run("verify", str(row["id"]))
    assert (other.exit_code, "1 differ" in other.output) == (1, True)


OTHERS = pytest.mark.slow("refused as others are")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("make", "Octember"), "period: 'Octember' is not understood"),
        pytest.param(("make", DAY, "--by", "colour"), "by: 'colour' is not known", marks=OTHERS),
        pytest.param(("make", DAY, "--format", "docx"), "formats: 'docx' is not known", marks=OTHERS),
        pytest.param(("make", DAY, "--sites", "atlantis"), "sites: 'atlantis' is not known", marks=OTHERS),
        pytest.param(("make", DAY, "--zone", "Mars"), "zone: 'Mars' is no time zone", marks=OTHERS),
        (("verify", "99"), "there is no report 99"),
    ],
)
def test_command_says_what_is_wrong_in_one_line_when_it_fails(settled, arguments, words):
    found = run(*arguments)
    assert found.exit_code == 2
    assert words in found.output
    assert len(found.output.strip().splitlines()) == 1


# -- schedules and mail ----------------------------------------------------------------------------


@pytest.fixture
def monthly(settled) -> ReportSchedule:
    schedule = ReportSchedule(
        name="Finance", cadence="monthly", asked={"formats": ["pdf", "csv"]}, recipients=["finance@example.com"]
    )
    schedule.full_clean()
    schedule.save()
    return schedule


def after_the_month():
    return (moment(START).replace(day=1) + timedelta(days=32)).replace(day=1, hour=1, minute=0)


def test_scheduled_report_waits_for_the_ledger_when_the_month_is_over(monthly):
    assert schedules.due(after_the_month()) == []
    (report,) = schedules.due(after_the_month() + schedules.PATIENCE)
    assert report.asked["period"] == MONTH
    assert report.schedule == monthly
    assert schedules.due(after_the_month() + schedules.PATIENCE) == []
    monthly.refresh_from_db()
    assert (monthly.last_period, monthly.last_error) == (MONTH, "")


def test_scheduled_report_is_made_once_there_is_room_again_when_the_disk_was_full(monthly, monkeypatch):
    now = after_the_month() + schedules.PATIENCE
    (report,) = schedules.due(now)
    with monkeypatch.context() as disk:
        disk.setattr(report_jobs, "make_files", full_disk())
        assert not make_report(report.pk)
        monthly.refresh_from_db()
        assert "No space left on device" in monthly.last_error
        for _ in range(2):
            assert schedules.due(now) == [report], "each hour again"
            assert not make_report(report.pk)
    assert schedules.due(now) == [report]
    assert make_report(report.pk)
    assert schedules.due(now) == []
    report.job.refresh_from_db()
    assert (report.job.state, report.job.error) == (JobState.DONE, "")


def test_report_is_mailed_with_its_files_when_mail_is_set_up(monthly, settings):
    settings.MAIL_SERVER = object()
    (report,) = schedules.due(after_the_month() + schedules.PATIENCE)
    assert make_report(report.pk)
    (sent,) = mail.outbox
    assert sent.to == ["finance@example.com"]
    assert sent.subject.startswith("Finance: ")
    assert "provisional" in sent.body
    report.refresh_from_db()
    attached = {attachment[0]: attachment[1] for attachment in sent.attachments}
    for file in report.files.filter(format__in=("pdf", "reconciliation")):
        assert hashlib.sha256(attached[file.name]).hexdigest() == file.sha256
        assert file.sha256 in sent.body
    monthly.refresh_from_db()
    assert monthly.last_error == ""


def test_schedule_says_so_when_mail_is_not_set_up(monthly, settings):
    settings.MAIL_SERVER = None
    (report,) = schedules.due(after_the_month() + schedules.PATIENCE)
    assert make_report(report.pk)
    monthly.refresh_from_db()
    assert "GREENSERVE_EMAIL_URL" in monthly.last_error
    assert not mail.outbox


def test_schedule_says_what_is_wrong_when_its_report_cannot_be_asked_for(monthly):
    ReportSchedule.objects.update(asked={"by": ["colour"]})
    assert schedules.due(after_the_month() + schedules.PATIENCE) == []
    monthly.refresh_from_db()
    assert "'colour' is not known" in monthly.last_error


def test_pivot_on_screen_has_the_cells_of_the_csv_with_the_same_rows(settled, operator):
    report, same = made(by=["site"], formats=["csv"]), made(by=["tenant", "pool"], formats=["csv"])
    by = ("tenant", "pool")
    found = report_pivots.rows(report, by)
    expected = [tuple(row[name] for name in (*by, *NAMES)) for row in table(same)]
    assert [(*(p or "" for p in g.key), *(c.cell(g) or "" for c in COLUMNS)) for g in found] == expected
    page = operator.get(f"/reports/{report.pk}/pivot/?rows=tenant&rows=pool&columns=energy_j").content.decode()
    assert all(f'title="{row["energy_j"]}"' in page for row in table(same))
    (total,) = report_pivots.totals(found)
    assert total.totals.energy_uj == sum(Decimal(row["energy_j"]) for row in table(report)) * 10**6


def test_pivot_reads_the_lines_once_when_rows_are_chosen_again(settled, monkeypatch):
    report = made(by=["site"], formats=["csv"])
    by_tenant = report_pivots.rows(report, ("tenant",))
    monkeypatch.setattr(settled_lines, "blocks", lambda scope, basis: pytest.fail("the lines are read again"))
    assert report_pivots.rows(report, ("tenant",)) == by_tenant
    total = report_pivots.totals(by_tenant)
    assert report_pivots.totals(report_pivots.rows(report, ("site", "day")))[0].totals.lines == total[0].totals.lines


@pytest.mark.slow("another pivot")
def test_pivot_by_day_adds_up_and_leaves_out_what_is_not_by_the_day(settled, operator):
    report = made(by=["site"], formats=["csv"])
    days = report_pivots.rows(report, ("day",))
    assert [group.key for group in days] == [("2026-01-01",)]
    assert sum(group.totals.energy_uj for group in days) == Decimal(table(report)[0]["energy_j"]) * 10**6
    page = operator.get(f"/reports/{report.pk}/pivot/?rows=day&columns=slo_met&columns=energy_kwh").content.decode()
    assert "slo_met" not in page
    assert 'id="pivot"' in operator.get(f"/reports/{report.pk}/").content.decode()


def test_charts_on_screen_are_those_of_the_document(settled, operator):
    report = made(by=["site"], formats=["csv"])
    charts = report_pivots.charts(report)
    assert [chart.dates for chart in charts.values()] == [["2026-01-01"]] * 2
    energy = charts["energy"]
    kwh = sum(value for stack in energy.stacks for value in stack.values if value is not None)
    scale = {one.unit: one.size for one in ENERGY}[energy.unit]
    assert kwh * scale == pytest.approx(sum(float(row["energy_kwh"]) for row in table(report)))
    answer = operator.get(f"/reports/{report.pk}/figures/?theme=dark").json()
    drawn = [value for trace in answer["figures"]["energy"]["data"] if trace["type"] == "bar" for value in trace["y"]]
    assert sum(value for value in drawn if value is not None) == pytest.approx(kwh, rel=1e-3)
    csv = operator.get(f"/reports/{report.pk}/figures/?csv=carbon").content.decode()
    assert csv.splitlines()[0] == ",".join(["day", *(f"{s.name} [{charts['carbon'].unit}]" for s in energy.stacks)])
    assert 'data-chart="carbon"' in operator.get(f"/reports/{report.pk}/").content.decode()
    assert "HX-Refresh" in operator.get(f"/reports/{report.pk}/?part=1").headers
