"""A report in the version of FOCUS that its reader knows: asked for on every way in, and made again byte for byte."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner
from django.test import Client

from greenserve.cli import cli
from pools.models import Job
from telemetry.models import Report, ReportSchedule
from telemetry.reports import report_jobs, report_requests, schedules
from telemetry.reports.tasks import make_report
from tests.fakes.house import moment
from tests.fakes.metering import START
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
DAY = f"{moment(START):%Y-%m-%d}"
FORMATS = "focus-csv,focus-parquet"


@pytest.fixture(autouse=True)
def settled(settled_rows, settings, tmp_path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"


@pytest.fixture
def finance() -> Client:
    client = Client()
    client.force_login(person("finance"))
    return client


def made(**given) -> Report:
    report = report_requests.ask({"period": DAY, "formats": FORMATS, **given})
    assert report_jobs.make(report.pk), Job.objects.get(pk=report.job_id).error
    return Report.objects.get(pk=report.pk)


def rows(report: Report) -> list[dict[str, str]]:
    text = report_requests.path_of(report.files.get(format="focus-csv")).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("version", ["1.0", "1.2", "1.4"])
def test_files_come_out_the_same_when_they_are_made_again(version):
    report = made(focus_version=version)
    assert ("ProviderName" in rows(report)[0]) is (version < "1.3")
    assert report_jobs.reproduce(report) == []
    again = made(focus_version=version)
    assert (again.revision, again.revises) == (2, report)


def test_report_of_before_the_choice_verifies_and_has_revisions():
    report = made()
    assert "focus_version" not in report.asked  # as it was stored then
    assert {file.name.partition(".focus")[2] for file in report.files.all()} == {".csv", ".parquet", ""}
    assert report_jobs.reproduce(report) == []
    assert made(focus_version="1.4").revises == report
    assert made(focus_version="1.0").revises is None


def test_command_makes_the_version_that_is_asked_for():
    run = CliRunner().invoke(
        cli,
        ["report", "make", DAY, "--format", "focus-csv", "--focus-version", "1.2", "--json"],
        catch_exceptions=False,
    )
    assert run.exit_code == 0, run.output
    assert any(file["name"].endswith(".focus-1.2.csv") for file in json.loads(run.stdout)["files"])
    wrong = CliRunner().invoke(cli, ["report", "make", DAY, "--focus-version", "1.1"])
    assert wrong.exit_code == 2
    assert "choose from 1.0, 1.2, 1.4" in wrong.output


def test_rest_makes_the_version_that_is_asked_for(finance, django_capture_on_commit_callbacks, monkeypatch):
    monkeypatch.setattr(make_report, "delay", lambda report_id: report_jobs.make(report_id))
    body = {"period": DAY, "formats": ["focus-csv"], "focus_version": "1.0"}
    with django_capture_on_commit_callbacks(execute=True):
        answer = finance.post("/api/v1/reports/", json.dumps(body), content_type="application/json")
    assert answer.status_code == 202, answer.content
    assert answer.json()["asked"]["focus_version"] == "1.0"
    body["focus_version"] = "0.5"
    assert finance.post("/api/v1/reports/", json.dumps(body), content_type="application/json").status_code == 400


def test_page_keeps_the_version_that_was_chosen_when_another_field_is_wrong(finance):
    form = {"period": "October", "formats": ["focus-csv"], "focus_version": "1.2", "basis": "none"}
    answer = finance.post("/reports/", form)
    assert answer.status_code == 400
    assert "<option selected>1.2</option>" in answer.content.decode()
    assert (
        "choose from 1.0, 1.2, 1.4"
        in finance.post("/reports/", {**form, "period": DAY, "focus_version": "9"}).content.decode()
    )


def test_schedule_asks_for_its_version():
    schedule = ReportSchedule(name="Costs", cadence="weekly", asked={"formats": ["focus-csv"], "focus_version": "1.0"})
    schedule.full_clean()
    schedule.save()
    (report,) = schedules.due(moment(START) + schedules.PATIENCE * 5)
    assert report.asked["focus_version"] == "1.0"
