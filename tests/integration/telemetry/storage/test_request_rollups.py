"""Sums of request records: the same figures as the records themselves give, whatever comes late or twice."""

import random
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools.models import Service, Slo, Tenant
from telemetry import selectors
from telemetry.ingest import request_records
from telemetry.models import LengthRollup, RequestRecord, SloRollup, TenantRollup
from telemetry.selectors import service_level
from telemetry.selectors.frames import TimeRange
from telemetry.storage import time_partitions
from telemetry.storage.sql import length_rollups, request_rollups
from tests.fakes.house import moment, request_row
from tests.oracles.timely_jain import freesh_timely_jain

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0
SPAN_S = 1_500.0


@pytest.fixture
def tenants(demo_rows, db):
    time_partitions.ensure({moment(START).date(), moment(START - 86_400).date()})
    return [*Tenant.objects.values_list("pk", flat=True)[:2], None]


def made(rng, tenants, count):
    """Requests of all kinds: failed ones, ones that nobody judges, ones without tokens or tenant."""
    service, slo = Service.objects.first(), Slo.objects.filter(kind="ttft").first()
    rows = []
    for n in range(count):
        output = rng.choice([None, 0, rng.randint(1, 400)])
        rows.append(
            request_row(
                request_id=f"r{n}",
                started_at_s=START + rng.uniform(-SPAN_S, 0.0),
                service=rng.choice([service.name, "another"]),
                tenant_id=rng.choice(tenants),
                status=rng.choice(["ok", "ok", "ok", "upstream_error", "client_gone"]),
                stream=rng.random() < 0.7,
                request_class=rng.choice(["SS", "LL", None]),
                output_tokens=output,
                timely_tokens=rng.choice([None, rng.randint(0, output or 0)]),
                ttft_s=rng.choice([None, rng.uniform(0.0, 2.0 * slo.objective_s)]),
                tpot_s=rng.choice([None, rng.uniform(0.0, 0.3)]),
                e2e_s=rng.choice([None, rng.uniform(0.0, 200.0)]),
            )
        )
    return rows


@contextmanager
def from_records():
    """The selectors as they read where no sums fit."""
    with patch.object(service_level, "_step_s", return_value=0):
        yield


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), bucket_s=st.sampled_from([10.0, 60.0, 600.0]), parts=st.integers(1, 4))
def test_sums_say_what_the_records_say_when_these_come_late_and_twice(tenants, seed, bucket_s, parts):
    RequestRecord.objects.all().delete()
    SloRollup.objects.all().delete()  # when the last one ended stays as it was
    rng = random.Random(seed)
    rows = made(rng, tenants, 60)
    objectives = request_records.Objectives()
    for n in range(parts):
        request_records.insert(rows[n::parts] + rng.sample(rows[: n * 9], min(3, n * 9)), objectives)
    assert RequestRecord.objects.count() == len(rows)
    window = TimeRange(START - 1_200.0, START, bucket_s)
    assert service_level._step_s(window) == bucket_s
    slo, jain, overall = selectors.slo(window), selectors.fairness(window), selectors.tenant_fairness(window)
    with from_records():
        assert selectors.slo(window) == slo
        assert selectors.fairness(window) == jain
        assert selectors.tenant_fairness(window) == overall
    assert slo.judged, "some were judged"


def test_failures_of_answers_at_once_are_judged_by_what_those_that_came_are(tenants):
    """A hundred whole answers and one failure: nothing is known of first tokens, and all but one came in time."""
    came = {"stream": False, "ttft_s": None, "tpot_s": None, "e2e_s": 10.0}
    rows = [request_row(request_id=f"r{n}", started_at_s=START - 100.0, **came) for n in range(100)]
    rows.append(request_row(request_id="f", started_at_s=START - 100.0, **{**came, "status": "upstream_error"}))
    request_records.insert(rows, request_records.Objectives())
    for source in (nullcontext, from_records):
        with source():
            frame = selectors.slo(TimeRange(START - 600.0, START, 60.0))
        judged = {series.kind: (series.total_judged, series.overall) for series in frame.series if series.total_judged}
        assert judged == {"e2e": (101, pytest.approx(100 / 101))}


@pytest.mark.parametrize(("e2e_s", "met"), [(1.9, True), (2.1, None)])
def test_answer_at_once_is_in_time_where_the_whole_of_it_came_as_soon_as_its_first_token_was_to(e2e_s, met):
    row = request_row(stream=False, ttft_s=None, tpot_s=None, e2e_s=e2e_s)
    assert request_records.judge(row, {"ttft": 2.0}) == (met, "")


def test_sums_follow_when_records_are_taken_away(tenants):
    request_records.insert(made(random.Random(1), tenants, 40), request_records.Objectives())
    assert SloRollup.objects.filter(judged__gt=0).exists()
    RequestRecord.objects.all().delete()
    assert not SloRollup.objects.exclude(judged=0, within=0).exists()
    assert not TenantRollup.objects.exclude(output_tokens=0, timely_tokens=0).exists()
    assert not LengthRollup.objects.exclude(requests=0, timely_tokens=0).exists()
    frame = selectors.slo(TimeRange(START - 1_200.0, START, 60.0))
    assert (frame.judged, frame.met, frame.last_end_s) == (0, 0, None)


def test_sums_made_from_the_records_are_those_that_were_kept_up(tenants):
    request_records.insert(made(random.Random(2), tenants, 60), request_records.Objectives())
    kept = [sorted(map(str, model.objects.values_list(*columns))) for model, columns in COLUMNS.items()]
    for model in COLUMNS:
        model.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(request_rollups.FILL)
        cursor.execute(length_rollups.FILL)
    assert [sorted(map(str, model.objects.values_list(*columns))) for model, columns in COLUMNS.items()] == kept


COLUMNS = {
    SloRollup: ("step_s", "start_at", "service", "kind", "judged", "within", "until"),
    TenantRollup: ("step_s", "start_at", "tenant_id", "timely_tokens", "output_tokens"),
    LengthRollup: ("step_s", "start_at", "service", "request_class", "length", "requests", "timely_tokens"),
}


def test_quartiles_of_a_rolling_window_are_those_of_its_requests(tenants):
    rng = random.Random(3)
    rows = [
        request_row(
            request_id=f"r{n}",
            started_at_s=START - 100.0 + n,
            request_class="LL",
            output_tokens=length,
            timely_tokens=rng.randint(0, length),
            e2e_s=0.0,
        )
        for n, length in enumerate(rng.sample(range(1, 500), 90))
    ]
    request_records.insert(rows, request_records.Objectives())
    frame = selectors.fairness(TimeRange(START - 200.0, START, 10.0))
    expected = freesh_timely_jain([r.output_tokens for r in rows], [r.timely_tokens for r in rows])
    assert frame.classes["llama3-70b", "LL"][-1] == pytest.approx(expected, abs=0.005), (
        "but for lengths that count as one"
    )


@pytest.mark.parametrize("read", [nullcontext, from_records])
def test_classes_of_one_name_are_each_services_own(tenants, read):
    """One service brings all lengths in time, the other none of the long ones: only the latter is uneven."""
    rows = [
        request_row(
            request_id=f"{service}-{length}",
            started_at_s=START - 60.0,
            service=service,
            request_class="LL",
            output_tokens=length,
            timely_tokens=100 if service == "even" or length <= 200 else 0,
            e2e_s=0.0,
        )
        for service in ("even", "uneven")
        for length in (100, 200, 300, 400)
    ]
    request_records.insert(rows, request_records.Objectives())
    with read():
        classes = selectors.fairness(TimeRange(START - 600.0, START, 600.0)).classes
    assert set(classes) == {("even", "LL"), ("uneven", "LL")}
    assert classes["even", "LL"] == (1.0,)
    assert classes["uneven", "LL"][0] == pytest.approx(0.5)
