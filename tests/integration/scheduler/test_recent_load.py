"""The recent load: what came in whole stretches, whether it has ended or not, in all of which nothing is on its way."""

from datetime import timedelta

import pytest

from core.observations.demand.class_arrivals import STRETCH_S
from core.policy.presets import WHOLE
from pools import wire
from pools.models import Node, Partition, Pool
from scheduler.control import turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.recorded_demand import arrivals
from scheduler.control.steps import recent_load
from scheduler.control.steps.policy_steps import LoopTurn
from tests.fakes.house import moment, report, requests_came, start_instance

pytestmark = pytest.mark.django_db


@pytest.fixture
def start(now):
    return moment(now.timestamp() // STRETCH_S * STRETCH_S)


@pytest.fixture
def gateway(redis_client):
    """A gateway that says which requests are open."""

    def says(service, *started_at):
        message = wire.OpenRequests(
            services=[service.name],
            service=[0] * len(started_at),
            request_id=[f"open-{n}" for n in range(len(started_at))],
            started_at_s=[at.timestamp() for at in started_at],
            prompt_tokens=[1000] * len(started_at),
            predicted_output_tokens=[130] * len(started_at),
        )
        redis_client.zadd(wire.GATEWAYS_KEY, {"gateway": 1})
        redis_client.set(wire.open_requests_key("gateway"), wire.encode(message))

    yield says
    redis_client.delete(wire.GATEWAYS_KEY, wire.open_requests_key("gateway"))


def turn_at(service, now, reporting=()):
    return LoopTurn(turn_context.resolve(service, now, reporting), {}, False)


def stretches(service, now, span_s):
    turn = turn_at(service, now)
    seen = arrivals(service, now, 300.0)
    classes = snapshot.classes_now(turn.context, Partition.objects.get(name=WHOLE), seen, 1)
    return recent_load.stretches(turn, seen, {own.request_class.name: own for own in classes}, span_s)["ALL"]


def test_stretch_counts_once_nothing_of_it_is_on_its_way(service, redis_client, start):
    requests_came(start - timedelta(seconds=STRETCH_S), count=30, over_s=STRETCH_S)
    requests_came(start, count=10, over_s=STRETCH_S)
    assert stretches(service, start + timedelta(seconds=1.9), 10.0) == [0, 30]
    assert stretches(service, start + timedelta(seconds=2.0), 10.0) == [30, 10]
    assert stretches(service, start + timedelta(seconds=6.9), 5.0) == [10]
    assert stretches(service, start + timedelta(seconds=7.0), 5.0) == [0]


def test_requests_that_have_not_ended_count_when_they_came(service, redis_client, start, gateway):
    requests_came(start, count=10, over_s=STRETCH_S)
    gateway(service, *[start - timedelta(seconds=8)] * 3, start - timedelta(seconds=1), start + timedelta(seconds=1))
    assert stretches(service, start + timedelta(seconds=3), 10.0) == [3, 11]


def test_look_back_that_is_longer_than_the_window_has_all_of_it(service, redis_client, start):
    requests_came(start, count=300, over_s=300.0)
    found = stretches(service, start + timedelta(seconds=3), 900.0)
    assert (len(found), sum(found)) == (60, 300)
    assert len(stretches(service, start + timedelta(seconds=1), 900.0)) == 59


def test_requests_that_wait_are_those_of_the_agents_reports(service, redis_client, now):
    pool = Pool.objects.filter(service=service, request_class__name="ALL").first()
    node = Node.objects.filter(cluster__site=pool.site).first()
    report(redis_client, node.name, [start_instance(pool, node, 4)], running=20, waiting=4)
    assert recent_load.waiting(turn_at(service, now, [node.name])) == {"ALL": 4}
    assert recent_load.waiting(turn_at(service, now)) == {}
