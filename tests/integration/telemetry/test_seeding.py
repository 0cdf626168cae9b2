"""The demo's synthetic past: it adds up as a metered one does, keeps its objectives, and says what it is."""

import json
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.db.models import Sum
from django.test import override_settings

from pools.demo import load_rates
from pools.models import Gpu, Job
from telemetry import selectors
from telemetry.ledger import settlement
from telemetry.models import (
    CarbonPoint,
    DemandSketch,
    EnergyEntry,
    EnergyRollup,
    LengthRollup,
    MeterMark,
    Settlement,
    SiteEnergy,
    SloRollup,
    StatementLine,
    SyntheticHistory,
    Tariff,
    TenantRollup,
)
from telemetry.reports import report_jobs, report_requests
from telemetry.seeding import history
from telemetry.selectors.frames import TimeRange

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 4, 3, 17, 30, tzinfo=UTC)
START, END = datetime(2026, 3, 3, tzinfo=UTC), datetime(2026, 3, 4, 3, 17, tzinfo=UTC)
SETTLED = END.replace(minute=15)


@pytest.fixture(scope="module")
def past_rows(demo_rows):
    """A day, and the hours of today before the start."""
    with override_settings(DEMO=True, DEMO_DAYS=1):
        load_rates()
        history.seed(NOW)


@pytest.fixture
def past(past_rows, settings):
    settings.DEMO, settings.DEMO_DAYS = True, 1
    return SyntheticHistory.objects.get()


def energy_uj(rows, **chosen):
    return rows.filter(**chosen).aggregate(total=Sum("energy_uj"))["total"]


def test_entries_balance_with_every_meter_and_its_sums_when_seeded(past):
    marks = {mark.gpu_id: mark for mark in MeterMark.objects.all()}
    assert set(marks) == set(Gpu.objects.values_list("pk", flat=True))
    for gpu, mark in marks.items():
        assert mark.energy_uj - mark.opened_energy_uj == energy_uj(EnergyEntry.objects, gpu=gpu)
        assert (mark.opened_at, mark.at) == (START, END)
    whole = energy_uj(EnergyEntry.objects)
    carbon_g = EnergyEntry.objects.aggregate(total=Sum("carbon_gco2e"))["total"]
    for sums in (EnergyRollup, SiteEnergy):
        for step_s in (60, 600, 3_600, 86_400):
            found = sums.objects.filter(step_s=step_s)
            assert energy_uj(found) == whole
            assert found.aggregate(total=Sum("carbon_gco2e"))["total"] == pytest.approx(carbon_g, abs=1e-4)
    gpu_us = EnergyEntry.objects.aggregate(total=Sum("gpu_us"))["total"]
    assert gpu_us == Gpu.objects.count() * round((END - START).total_seconds() * 1e6)


def test_settled_lines_are_somebodys_and_stay_when_a_tariff_is_revised(past):
    entered = EnergyEntry.objects.filter(start_at__lt=SETTLED)
    assert energy_uj(StatementLine.objects) == energy_uj(entered) == energy_uj(Settlement.objects)
    serving = StatementLine.objects.filter(kind="serving")
    assert energy_uj(entered, kind="serving") == energy_uj(serving)
    assert not StatementLine.objects.filter(kind="unattributed").exists()
    assert serving.filter(tenant=None).count() == 0
    carbon_ug = StatementLine.objects.aggregate(total=Sum("carbon_ug"))["total"]
    assert carbon_ug / 1e6 == pytest.approx(entered.aggregate(total=Sum("carbon_gco2e"))["total"], abs=1e-6)
    judged = SloRollup.objects.filter(step_s=60, kind="", start_at__lt=SETTLED).aggregate(total=Sum("judged"))["total"]
    assert serving.aggregate(total=Sum("requests"))["total"] == pytest.approx(judged, rel=1e-3)  # began; ended
    site = Gpu.objects.first().node.cluster.site
    Tariff.objects.create(site=site, currency="USD", price_per_kwh=0.2, valid_from=START, source="a test", version="2")
    assert settlement.restate(NOW, since=START) == 0


def test_a_report_of_the_past_adds_up_to_the_meters_and_has_its_watermark(past, settings, tmp_path):
    settings.GREENSERVE_REPORTS_DIR = tmp_path
    given = {"period": "2026-03-03", "formats": ["csv"]}
    report = report_requests.ask(given)
    assert report_jobs.make(report.pk), Job.objects.get(pk=report.job_id).error
    report.refresh_from_db()
    (file,) = report.files.filter(format="reconciliation")
    assert json.loads(report_requests.path_of(file).read_bytes())["adds_up"] is True
    assert report.summary["energy_j"] * 1e6 == energy_uj(EnergyEntry.objects, start_at__day=3)
    assert report.summary["warnings"] == ["contains synthetic data"]
    report = report_requests.ask({**given, "baseline": True})
    assert not report_jobs.make(report.pk)
    assert "until 2026-03-04 03:17 UTC is synthetic" in Job.objects.get(pk=report.job_id).error


def test_past_says_what_it_is_and_keeps_its_objectives_up_to_the_present(past):
    assert (past.start_at, past.end_at) == (START, END)
    assert "nothing measured" in past.source
    judged = SloRollup.objects.filter(step_s=60, kind="").aggregate(judged=Sum("judged"), within=Sum("within"))
    assert judged["judged"] == LengthRollup.objects.filter(step_s=600).aggregate(total=Sum("requests"))["total"]
    assert judged["judged"] == pytest.approx(3.0 * (END - START).total_seconds(), rel=0.02)
    assert judged["within"] > 0.99 * judged["judged"]
    tokens = [
        TenantRollup.objects.filter(step_s=step_s).aggregate(total=Sum("output_tokens"))["total"]
        for step_s in (60, 86_400)
    ]
    assert tokens[0] == tokens[1] > 0
    call_command("seed_demo", stdout=StringIO())  # once more: there is a past already
    assert SyntheticHistory.objects.count() == 1
    assert not DemandSketch.objects.exists()  # no loop plans by what is made up
    assert not CarbonPoint.objects.filter(end_at__gt=END).exists()
    cache.clear()
    fine = selectors.readable(TimeRange.last(900.0, NOW.timestamp()))
    frame = selectors.slo(fine)
    assert fine.bucket_s == 60
    assert None not in frame.series[0].attained[:-1]
