"""A report's meters: sums by hour and day in the place of entries, and still every microjoule."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools.models import Gpu
from telemetry.ledger.window_sources import WINDOW_S
from telemetry.models import EnergyEntry, GpuEnergy, MeterMark, Settlement
from telemetry.report_values.period import Period
from telemetry.reports import ledger_source
from tests.fakes import energy_sums
from tests.fakes.house import moment

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0  # 2026-01-01
HOUR_S = 3_600.0
WINDOWS = 36  # three hours


@pytest.fixture
def gpus(demo_rows):
    return list(Gpu.objects.filter(node__name="loc1-a100")[:2])


def enter(gpu, start_s, energy_uj):
    return EnergyEntry(
        gpu=gpu,
        site=gpu.node.cluster.site,
        start_at=moment(start_s),
        end_at=moment(start_s + 10),
        kind="idle",
        energy_uj=energy_uj,
        gpu_us=10_000_000,
    )


def settle(site, window, revision=0):
    start = moment(START + window * WINDOW_S)
    end = start + timedelta(seconds=WINDOW_S)
    values = {"energy_uj": 0, "unattributed_uj": 0, "currency": "USD", "sources": {}}
    return Settlement.objects.create(site=site, start_at=start, end_at=end, revision=revision, cause="test", **values)


@given(
    entries=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, WINDOWS * 30 - 1), st.integers(0, 10**15)), min_size=1, max_size=30
    ),
    settled=st.sets(st.integers(0, WINDOWS - 1)),
    whole=st.sets(st.integers(0, 2)),
    again=st.sets(st.integers(0, WINDOWS - 1), max_size=4),
    edges=st.tuples(st.integers(0, 11), st.integers(13, 36)),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sums_are_those_of_the_entries_when_any_windows_are_settled_and_restated(
    gpus, entries, settled, whole, again, edges
):
    for model in (EnergyEntry, MeterMark, Settlement):
        model.objects.all().delete()
    site = gpus[0].node.cluster.site
    EnergyEntry.objects.bulk_create(
        {(gpu, interval): enter(gpus[gpu], START + 10 * interval, uj) for gpu, interval, uj in entries}.values()
    )
    for gpu in gpus:
        at = moment(START + WINDOWS * WINDOW_S)
        MeterMark.objects.create(gpu=gpu, at=at, energy_uj=0, opened_at=moment(START), opened_energy_uj=0)
    windows = settled | {12 * hour + n for hour in whole for n in range(12)}
    for window in sorted(windows):
        settle(site, window)
    for window in sorted(again & windows):
        settle(site, window, revision=1)
    period = Period("three hours", "UTC", *(round(START + edge * WINDOW_S) for edge in edges))
    scope = ledger_source.Scope(period, 2**60, (site.pk,))
    for meter, gpu in zip(ledger_source.meters(scope), sorted(gpus, key=lambda gpu: gpu.uuid), strict=True):
        own = EnergyEntry.objects.filter(gpu=gpu)
        expected = sum(
            entry.energy_uj
            for entry in own
            if (at := int((entry.start_at.timestamp() - START) // WINDOW_S)) in windows and edges[0] <= at < edges[1]
        )
        assert (meter.entered_uj, meter.period_uj) == (own.aggregate(uj=Sum("energy_uj"))["uj"] or 0, expected)


def test_sums_come_out_the_same_when_they_are_made_again_from_the_entries(gpus):
    for n, gpu in itertools.product(range(5), gpus):
        enter(gpu, START + 1_700 * n, 10**12 + n).save()
    before = list(GpuEnergy.objects.order_by("pk").values_list())
    assert len(before) == 2 * (2 + 1)
    energy_sums.roll_up()
    assert list(GpuEnergy.objects.order_by("pk").values_list()) == before
