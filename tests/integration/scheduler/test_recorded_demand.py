"""Demand read from sketches: as computed request by request, for every partition that was known when they came."""

import random
from datetime import timedelta

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.observations.demand.class_arrivals import STRETCH_S, counted
from core.observations.demand.class_view import Declared
from core.observations.demand.loop_windows import MAX_WINDOW_S, MIN_WINDOW_S
from core.observations.mode_profile import Lengths
from core.policy.presets import DYNAMO
from pools import wire
from pools.models import Partition, RequestClass, Service
from pools.writes import ensure_partition
from scheduler.control import turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.recorded_demand import arrivals
from telemetry.ingest import request_records
from telemetry.models import DemandSketch, LoadPoint, RequestRecord
from telemetry.storage import time_partitions
from tests.fakes.house import moment, request_row, requests_came
from tests.oracles.demand_by_request import arrivals_by_class

pytestmark = pytest.mark.django_db
NOW_S = 1_767_225_603.5
END_S = 1_767_225_600.0
NOW = moment(NOW_S)


@pytest.fixture
def demo_service(demo_rows, db):
    service = Service.objects.get()
    ensure_partition(DYNAMO)
    time_partitions.ensure({NOW.date(), (NOW - timedelta(days=1)).date()})
    return service


def made(rng, classes, count):
    """Requests of all kinds before and after the end of the last whole stretch, many with lengths at a border."""
    borders = [length for own in classes for length in (own.input_min, own.input_max, own.output_max) if length]
    return [
        request_row(
            NOW_S - rng.choice([0.0, 7.0, 11.0, 290.0, 297.5]) - 5.0 * rng.random(),
            request_id=f"r{n}",
            status=rng.choice(["ok", "ok", "ok", "upstream_error", "client_gone", "client_error"]),
            request_class=rng.choice(["SS", "LL", None]),
            prompt_tokens=rng.choice([None, rng.choice(borders), rng.choice(borders) - 1, rng.randint(1, 20_000)]),
            output_tokens=rng.choice([None, 0, rng.choice(borders), rng.randint(1, 2_000)]),
            predicted_output_tokens=rng.choice([None, rng.choice(borders), rng.choice(borders) - 1]),
        )
        for n in range(count)
    ]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_demand_is_as_request_by_request_for_every_partition(demo_service, seed):
    RequestRecord.objects.all().delete()
    rows = made(random.Random(seed), list(RequestClass.objects.all()), 80)
    request_records.insert(rows, request_records.Objectives())
    seen = arrivals(demo_service, NOW, MIN_WINDOW_S)
    for partition in Partition.objects.all():
        classes = list(partition.classes.all())
        found = {name: counted(came) for name, came in seen.by_class(classes).items()}
        assert found == arrivals_by_class(rows, classes, END_S - MIN_WINDOW_S, END_S), partition.name
        assert not seen.is_older_than(classes)


def test_window_is_whole_stretches_within_its_bounds(demo_service):
    lengths = [arrivals(demo_service, NOW, period_s).came.shape[1] * STRETCH_S for period_s in (1.0, 601.0, 1e6)]
    assert lengths == [MIN_WINDOW_S, 605.0, MAX_WINDOW_S]
    assert arrivals(demo_service, NOW, 600.0).start_s == END_S - 600.0


def test_prompt_tokens_begin_with_the_first_request(demo_service):
    classes = list(Partition.objects.get(name="whole").classes.all())
    assert arrivals(demo_service, NOW, 300.0).prompt_tokens(classes) == (END_S, {"ALL": []})
    rows = [request_row(END_S - ago_s, prompt_tokens=tokens) for ago_s, tokens in ((12.0, 70), (11.0, 30), (1.0, 5))]
    request_records.insert(rows, request_records.Objectives())
    found = arrivals(demo_service, NOW, 300.0).prompt_tokens(classes)
    assert found == (END_S - 15.0, {"ALL": [100.0, 0.0, 5.0]})


def test_a_partition_that_came_later_has_requests_in_its_larger_class_and_the_decision_says_so(demo_service):
    knobs = {"partition": "later"}
    requests_came(NOW - timedelta(seconds=10), count=10, over_s=5.0, prompt_tokens=9_000)
    later = Partition.objects.create(name="later")
    for rank, bounds in enumerate(((0, 10_000), (10_000, None))):
        RequestClass.objects.create(
            partition=later, name=f"P{rank}", rank=rank, input_min=bounds[0], input_max=bounds[1]
        )
    seen = arrivals(demo_service, NOW, 300.0)
    split = seen.by_class(list(later.classes.all()))
    assert [counted(came).requests for came in split.values()] == [0, 10]
    Service.objects.update(knobs=knobs)
    service = Service.objects.get()
    _, faults = snapshot.carbon(turn_context.resolve(service, NOW, ()), ())
    assert "later has new bounds: what came before them counts as the longest that it may have been." in faults
    DemandSketch.objects.all().delete()
    requests_came(NOW - timedelta(seconds=10), count=10, over_s=5.0, prompt_tokens=9_000)
    seen = arrivals(demo_service, NOW, 300.0)
    assert [counted(came).requests for came in seen.by_class(list(later.classes.all())).values()] == [10, 0]
    _, faults = snapshot.carbon(turn_context.resolve(service, NOW, ()), ())
    assert not [fault for fault in faults if "new bounds" in fault]


@pytest.mark.parametrize("known", ["sketch", "load point", "neither"])
def test_declared_load_counts_until_requests_before_the_window_are_on_record(demo_service, known):
    Service.objects.update(expected_rps=2.0, expected_prompt_tokens=500, expected_output_tokens=50)
    service = Service.objects.get()
    requests_came(NOW, count=10, over_s=250.0)
    LoadPoint.objects.create(
        service=service.name, request_class="", start_at=moment(END_S - 301.0), step_s=300.0, peak_rps=1.0, requests=1
    )
    if known == "sketch":
        requests_came(NOW - timedelta(seconds=310), count=1, over_s=1.0)
    if known == "load point":
        LoadPoint.objects.update(start_at=moment(END_S - 900.0))
    declared = arrivals(service, NOW, 300.0).declared
    assert declared == Declared(2.0 if known == "neither" else 0.0, Lengths(500, 50))


@pytest.fixture
def open_requests_key(redis_client):
    """Of a gateway that is known for the time of a test."""
    redis_client.zadd(wire.GATEWAYS_KEY, {"gateway": NOW_S})
    yield wire.open_requests_key("gateway")
    redis_client.delete(wire.GATEWAYS_KEY, wire.open_requests_key("gateway"))


def test_requests_count_when_they_come_and_once(demo_service, redis_client, open_requests_key):
    rows = made(random.Random(7), list(RequestClass.objects.all()), 60)
    whole = [
        msgspec.structs.replace(row, status="ok", prompt_tokens=row.prompt_tokens or 1, output_tokens=predicted)
        for row in rows
        if (predicted := row.predicted_output_tokens)
    ]
    ended, under_way = whole[::2], whole[1::2]
    assert ended
    assert under_way
    request_records.insert(ended, request_records.Objectives())
    open_ones = [*under_way, ended[0]]  # whose record is in already
    redis_client.set(
        open_requests_key,
        wire.encode(
            wire.OpenRequests(
                ["another", demo_service.name],
                [1] * len(open_ones) + [0],
                [row.request_id for row in open_ones] + ["other"],
                [row.started_at_s for row in open_ones] + [NOW_S - 20.0],
                [row.prompt_tokens for row in open_ones] + [10],
                [row.predicted_output_tokens for row in open_ones] + [10],
            )
        ),
    )
    classes = list(Partition.objects.get(name=DYNAMO).classes.all())
    found = {name: counted(came) for name, came in arrivals(demo_service, NOW, 300.0).by_class(classes).items()}
    assert found == arrivals_by_class(whole, classes, END_S - 300.0, END_S)
