"""The CSV files of reports: no cell is JSON, but for the columns of FOCUS whose standard asks for it."""

from __future__ import annotations

import pytest

from telemetry.models import Report
from telemetry.report_values.report_request import FORMATS
from telemetry.reports import report_jobs, report_requests
from tests.fakes.csv_cells import json_cells
from tests.fakes.house import moment
from tests.fakes.metering import START

TAGS = ("Tags", "AllocatedTags", "AllocatedMethodDetails")  # JSON objects by FOCUS


@pytest.mark.django_db
def test_no_cell_is_json_in_the_tables_of_a_report(settled_rows, redis_client, settings, tmp_path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"
    tables = [name for name in FORMATS if "csv" in name]
    asked = {"period": f"{moment(START):%Y-%m-%d}", "by": "site,tenant,service,pool,model", "formats": ",".join(tables)}
    report = report_requests.ask(asked)
    assert report_jobs.make(report.pk)
    files = Report.objects.get(pk=report.pk).files.exclude(format="reconciliation")
    assert {file.format for file in files} >= set(tables)
    for file in files:
        text = report_requests.path_of(file).read_text(encoding="utf-8")
        assert len(text.splitlines()) > 1
        assert json_cells(text, TAGS if file.format == "focus-csv" else ()) == [], file.format
    assert json_cells(report_requests.path_of(files.get(format="focus-csv")).read_text(encoding="utf-8")) != []
