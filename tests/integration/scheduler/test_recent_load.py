"""The load since a loop's last turn: whole stretches, each counted in one turn."""

from dataclasses import replace
from datetime import timedelta

import pytest

from core.observations.demand.class_arrivals import STRETCH_S
from core.policy.presets import WHOLE
from pools.models import Partition
from scheduler.control import turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.recorded_demand import arrivals
from scheduler.control.steps import recent_load
from scheduler.control.steps.policy_steps import LoopTurn
from telemetry.models import DemandSketch
from tests.fakes.house import moment, requests_came

pytestmark = pytest.mark.django_db


@pytest.fixture
def start(now):
    return moment(now.timestamp() // STRETCH_S * STRETCH_S)


def rates(service, start, gaps_s):
    """What each turn measures; a turn is so long after the one before."""
    context = turn_context.resolve(service, start, ())
    classes = snapshot.classes_now(context, Partition.objects.get(name=WHOLE), arrivals(service, start, 300.0), 1)
    state, found = {}, []
    for gap_s in gaps_s:
        context = replace(context, now=context.now + timedelta(seconds=gap_s))
        turn = LoopTurn(context, state, False)
        load = recent_load.measure(turn, {own.request_class.name: own for own in classes}, None)
        state = {recent_load.MEMORY: load.memory}
        found.append(load.rates_rps["ALL"])
    return found


def set_period(service, scale_period_s):
    service.policy, service.knobs = "throttllem", {"scale_period_s": scale_period_s}
    service.save()


def test_what_ended_is_counted_in_one_turn_when_turns_come_early_and_late(service, redis_client, start):
    set_period(service, 10.0)
    gaps_s = (10.0, 14.9, 6.1, 13.0, 6.9, 9.1, 10.0)
    for stretch in range(1, 11):
        requests_came(start + timedelta(seconds=stretch * STRETCH_S), count=30, over_s=STRETCH_S)
        found = [rate for rate in rates(service, start, gaps_s) if rate]
        assert len(found) == 1
        assert found[0] in (30 / 5.0, 30 / 10.0, 30 / 15.0)
        DemandSketch.objects.all().delete()
    requests_came(start + timedelta(seconds=120), count=120, over_s=120.0)
    assert rates(service, start + timedelta(seconds=20), gaps_s) == [1.0] * 7


def test_the_last_stretch_is_the_load_when_turns_are_closer_than_one(service, redis_client, start):
    set_period(service, 2.0)
    requests_came(start + timedelta(seconds=40), count=80, over_s=40.0)
    assert rates(service, start + timedelta(seconds=20), (2.0, 1.9, 2.1, 2.0)) == [2.0] * 4
