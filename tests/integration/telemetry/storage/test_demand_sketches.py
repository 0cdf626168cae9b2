"""Sketches of demand: they add up to the records, whatever comes late or twice."""

import random
from bisect import bisect_right
from collections import defaultdict

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.observations.demand.class_arrivals import STRETCH_S
from core.policy import dynamo_classes
from pools.models import RequestClass
from telemetry import tasks
from telemetry.ingest import request_records
from telemetry.models import DemandSketch, RequestRecord
from telemetry.models.demand import KEPT_S
from telemetry.storage import time_partitions
from telemetry.storage.sql import demand_sketches
from tests.fakes.house import moment, request_row
from tests.oracles.demand_by_request import lengths_of

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0
KEY = ("service", "start_at", "request_class", "prompt_from", "output_from")
SUMS = ("requests", "prompt_tokens", "output_tokens", "context_tokens", "ended")
COLUMNS = (*KEY, "prompt_to", "output_to", *SUMS)


@pytest.fixture
def classes(demo_rows, db):
    time_partitions.ensure({moment(START).date(), moment(START - 86_400).date()})
    return list(RequestClass.objects.all())


def insert(*rows):
    request_records.insert(rows, request_records.Objectives())


def made(rng, classes, count):
    """Requests of all kinds, many of them with lengths at a border of a class."""
    edges = [0, *{own.input_max or 1 for own in classes}, *{own.output_max or 1 for own in classes}]

    def length():
        return max(0, rng.choice(edges) + rng.choice([-1, 0, 1])) if rng.random() < 0.5 else rng.randint(0, 20_000)

    return [
        request_row(
            request_id=f"r{n}",
            started_at_s=START - rng.choice([0.0, 5.0, 7.5, 11.0]) - rng.random(),
            service=rng.choice(["one", "two"]),
            status=rng.choice(["ok", "ok", "ok", "upstream_error", "client_gone", "client_error"]),
            request_class=rng.choice(["SS", "LL", None]),
            prompt_tokens=rng.choice([None, length(), length()]),
            output_tokens=rng.choice([None, length()]),
            predicted_output_tokens=rng.choice([None, length()]),
            e2e_s=rng.choice([None, 0.0, rng.uniform(0.0, 9.0)]),
        )
        for n in range(count)
    ]


def expected(rows, classes):
    """What sketches there are, by their key: upper bounds, then sums."""
    prompts = borders(classes, "input", demand_sketches.PROMPT_BORDERS)
    outputs = borders(classes, "output", demand_sketches.OUTPUT_BORDERS)
    found = defaultdict(lambda: [0, 0, *(0.0 for _ in SUMS)])
    for row in rows:
        if row.status == "client_error":
            continue
        guess, output = lengths_of(row)
        prompt = row.prompt_tokens or 0
        low, high = (-1, prompts[-1]) if row.prompt_tokens is None else around(prompts, prompt)
        low_output, high_output = around(outputs, guess)
        for at_s, came in ((row.started_at_s, 1), (row.started_at_s + (row.e2e_s or 0.0), 0)):
            start = moment(at_s // STRETCH_S * STRETCH_S)
            sums = found[row.service, start, row.request_class or "", low, low_output]
            sums[:2] = high, high_output
            context = output * (prompt + output / 2) if row.prompt_tokens is not None else 0.0
            for n, amount in enumerate((came, came * prompt, came * output, came * context, 1 - came), 2):
                sums[n] += amount
    return dict(found)


def borders(classes, side, base):
    own = [getattr(one, f"{side}_{end}") for one in classes for end in ("min", "max")]
    return [*sorted({0, *base, *(length for length in own if length is not None)}), demand_sketches.OPEN_END]


def around(borders, length):
    n = bisect_right(borders, length)
    return borders[n - 1], borders[n]


def kept():
    return {row[: len(KEY)]: list(row[len(KEY) :]) for row in DemandSketch.objects.values_list(*COLUMNS)}


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 4))
def test_sketches_add_up_to_the_records_when_these_come_late_and_twice(classes, seed, parts):
    RequestRecord.objects.all().delete()
    DemandSketch.objects.all().delete()
    rng = random.Random(seed)
    rows = made(rng, classes, 60)
    for n in range(parts):
        insert(*rows[n::parts], *rng.sample(rows[: n * 9], min(3, n * 9)))
    assert RequestRecord.objects.count() == len(rows)
    assert kept() == expected(rows, classes)


def test_sketches_follow_when_records_are_taken_away(classes):
    insert(*made(random.Random(1), classes, 40))
    assert DemandSketch.objects.filter(requests__gt=0).exists()
    RequestRecord.objects.all().delete()
    assert not DemandSketch.objects.exclude(**dict.fromkeys(SUMS, 0)).exists()


def test_sketches_made_from_the_records_are_those_that_were_kept_up(classes):
    insert(*made(random.Random(2), classes, 60))
    before = kept()
    insert(request_row(START - KEPT_S - 60.0))
    DemandSketch.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(demand_sketches.FILL)
    assert kept() == before


def test_a_record_is_kept_when_its_lengths_are_beyond_belief(classes):
    most = demand_sketches.OPEN_END
    insert(
        request_row(START, prompt_tokens=most, output_tokens=most, predicted_output_tokens=-7),
        request_row(START, prompt_tokens=most, output_tokens=most),
    )
    found = DemandSketch.objects.order_by("output_from").values_list("output_from", "requests", "prompt_tokens")
    assert [(low > 0, *rest) for low, *rest in found] == [(False, 1, most), (True, 1, most)]


def test_a_border_that_comes_within_a_stretch_leaves_it_as_wide_as_it_was(classes):
    narrow = {"prompt_tokens": 140, "output_tokens": 140, "e2e_s": 0.0}
    insert(request_row(START, **narrow))
    RequestClass.objects.filter(pk=classes[0].pk).update(input_min=150, input_max=151, output_min=150, output_max=151)
    insert(request_row(START, **narrow), request_row(START + STRETCH_S, **narrow))
    first, second = DemandSketch.objects.order_by("start_at")
    assert (first.requests, second.requests) == (2, 1)
    assert (second.prompt_to, second.output_to) == (150, 150)
    assert first.prompt_to > 150
    assert first.output_to > 150


def test_classes_of_presets_are_made_of_whole_sketches_before_they_are_known():
    assert {low for _, low, _, _ in dynamo_classes.INPUTS} == {0, *demand_sketches.PROMPT_BORDERS}
    assert {low for _, low, _ in dynamo_classes.OUTPUTS} == {0, *demand_sketches.OUTPUT_BORDERS}


def test_sketches_are_forgotten_when_no_loop_looks_back_so_far(classes, monkeypatch):
    insert(request_row(START), request_row(START - KEPT_S - STRETCH_S - 5.0))
    monkeypatch.setattr(tasks.timezone, "now", lambda: moment(START))
    tasks.record_load()
    assert list(DemandSketch.objects.values_list("start_at", flat=True)) == [moment(START)]
