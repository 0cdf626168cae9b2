"""Reports where no rate, no request or no settled interval is there: unknown, or refused with the reason."""

from __future__ import annotations

import pytest

from pools.models import Instance, Job, Node, Service
from telemetry.ledger import settlement
from telemetry.report_values.errors import BadReport
from telemetry.reports import report_jobs, report_requests
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import LATER, START

from .test_reports import DAY, made, table

pytestmark = pytest.mark.django_db


@pytest.fixture
def instance(demo_rows, settings, tmp_path) -> Instance:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"
    return start_instance(Service.objects.get().pools.first(), Node.objects.get(name="loc1-a100"), tp=4)


def test_carbon_and_cost_are_unknown_and_not_nothing_when_no_feed_or_tariff_has_them(instance):
    metering.meters(instance, START + 302)
    settlement.settle(moment(LATER))
    (row,) = table(made(by="site"))
    assert (row["scope2_location_kgco2e"], row["cost"], row["sci_g_per_output_token"]) == ("", "", "")
    assert float(row["without_intensity_kwh"]) == pytest.approx(float(row["energy_kwh"]))
    refused = report_requests.ask({"period": DAY, "formats": "focus-csv"})
    assert not report_jobs.make(refused.pk)
    job = Job.objects.get(pk=refused.job_id)
    assert job.state == "failed"
    assert "formats: FOCUS has no place for an unknown cost" in job.error
    assert "electricity tariff" in job.error
    assert not refused.files.exists()


def test_baseline_is_refused_when_there_is_nothing_to_replay(instance):
    metering.meters(instance, START + 302)
    settlement.settle(moment(LATER))
    report = report_requests.ask({"period": DAY, "baseline": True, "formats": "csv"})
    assert not report_jobs.make(report.pk)
    assert "baseline: no request of the period" in Job.objects.get(pk=report.job_id).error


def test_report_is_refused_when_nothing_was_ever_settled(instance):
    with pytest.raises(BadReport, match="settled nothing yet"):
        report_requests.ask({"period": DAY})
