"""A policy that advises beside the one in force, and previews of what a switch would change."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import redis
from django.utils import timezone

from core.types import Loop
from pools.access.audit import Actor
from pools.models import Instance, Service
from scheduler import selectors, tasks
from scheduler.control import advising, epochs, service_policy
from scheduler.control.apply.desired_messages import desired_nodes
from scheduler.control.recordings import replay
from scheduler.models import ControllerState, Decision, Epoch, LoopPause, ServiceMode
from scheduler.operations import overrides, pauses, previews
from tests.fakes.house import refresh_feeds, report_all, requests_came
from tests.representatives import first

from .each_preset import EACH_OTHER

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)


@pytest.fixture
def running(service: Service, now: datetime) -> Service:
    """Its policy has acted under load."""
    requests_came(now, count=300, over_s=100)
    for loop in LOOPS:
        epochs.run(service, loop, now)
    service.refresh_from_db()
    return service


def advise(operator: Actor, service: Service, name: str) -> None:
    pauses.set_control_mode(operator, service, "advise")
    service_policy.change(service, name, {})
    service.refresh_from_db()


def later(redis_client: redis.Redis, at: datetime, by_s: float = 61.0) -> datetime:
    at += timedelta(seconds=by_s)
    report_all(redis_client, at=at)
    refresh_feeds(at)
    return at


@EACH_OTHER
def test_configured_policy_takes_every_turn_and_changes_nothing_when_it_advises(
    running: Service, operator: Actor, redis_client: redis.Redis, now: datetime, name: str
) -> None:
    advise(operator, running, name)
    before = dict(running.pools.values_list("pk", "workers")), desired_nodes(now, 1)
    states = dict(ControllerState.objects.exclude(kind__startswith="advice").values_list("kind", "value"))
    given = advising.run(running, now)
    assert {epoch.kind for epoch in given} == {"carbon", "scale", "shard"}
    assert [epoch.error for epoch in given if epoch.status == "failed"] == []
    running.refresh_from_db()
    assert (dict(running.pools.filter(pk__in=before[0]).values_list("pk", "workers")), desired_nodes(now, 1)) == before
    now_states = dict(ControllerState.objects.filter(kind__in=states).values_list("kind", "value"))
    assert {kind: value for kind, value in now_states.items() if kind != "loads"} == {
        kind: value for kind, value in states.items() if kind != "loads"
    }
    compared = given[0].comparison
    assert (compared["in_force"]["policy"], compared["advised"]["policy"]) == ("greenserve_epochs", name)
    assert compared["in_force"]["gpus"] == sum(instance.tp for instance in Instance.objects.filter(desired="running"))
    for side in compared.values():
        assert side["power_w"] > 0
        assert side["carbon_g_per_h"] > 0
    assert all(step.same for epoch in given for step in replay(epoch))
    assert all("Advice of" in row.summary for row in Decision.objects.filter(epoch__advisory=True))
    assert advising.run(running, now) == []  # once an epoch


def test_fleet_advised_follows_its_own_decisions_not_those_in_force(
    running: Service, operator: Actor, redis_client: redis.Redis, now: datetime
) -> None:
    advise(operator, running, "single_pool")
    advising.run(running, now)
    first = advising.side_by_side(running, now)
    assert {key.rpartition("/")[2] for key in first.advised.workers} == {"ALL"}
    assert first.advised.workers != first.in_force.workers
    at = later(redis_client, now)
    requests_came(at, count=3000, over_s=60)
    for loop in LOOPS:
        epochs.run(running, loop, at)
    advising.run(running, at)
    again = advising.side_by_side(running, at)
    assert again.in_force.workers != first.in_force.workers
    assert again.advised.workers == first.advised.workers  # single_pool keeps its plan


def test_advice_begins_anew_when_another_policy_is_configured_and_ends_when_it_acts(
    running: Service, operator: Actor, redis_client: redis.Redis, now: datetime
) -> None:
    advise(operator, running, "single_pool")
    assert advising.run(running, now)
    service_policy.change(running, "freesh", {})
    running.refresh_from_db()
    given = advising.run(running, now + timedelta(seconds=1))
    assert given[0].comparison["advised"]["policy"] == "freesh"
    assert {run.epoch.advisory for run in selectors.loop_runs() if run.epoch} == {False}
    assert {run.only_advises for run in selectors.loop_runs()} == {False}
    service_policy.change(running, "greenserve_epochs", {})  # in force
    running.refresh_from_db()
    assert advising.run(running, now + timedelta(seconds=61)) == []
    service_policy.change(running, "freesh", {})
    pauses.set_control_mode(operator, running, "act")
    running.refresh_from_db()
    assert advising.run(running, now + timedelta(seconds=62)) == []


def test_policy_that_has_not_acted_advises_and_nothing_starts(service: Service, operator: Actor, now: datetime) -> None:
    pauses.set_control_mode(operator, service, "advise")
    tasks.run_epochs("shard")
    assert Epoch.objects.filter(advisory=True).count() == 3
    assert not Epoch.objects.filter(advisory=False).exists()
    assert {run.only_advises for run in selectors.loop_runs() if run.kind != "clock"} == {True}
    assert not Instance.objects.exists()
    service.refresh_from_db()
    sides = advising.side_by_side(service, timezone.now())
    assert (sides.in_force.instances, sides.advised.instances > 0) == (0, True)


# -- previews --------------------------------------------------------------------------------------


def test_preview_says_what_a_paused_clock_loop_draws_more(running: Service, operator: Actor) -> None:
    found = previews.of(running, lambda: pauses.pause(operator, running, "clock", "measuring"))
    assert found.change_w is not None
    assert found.change_w > 0.05 * (found.now.power_w or 0.0)
    assert "Clocks are at the top then." in found.notes
    assert found.then.workers == found.now.workers
    assert not LoopPause.objects.exists()
    assert previews.of(running, lambda: pauses.pause(operator, running, "scale", "measuring")).change_w == 0.0


@pytest.mark.parametrize("name", first(1, ["greenserve", "single_pool", "dynamollm"], "other presets"))
def test_preview_of_a_policy_is_what_its_loops_then_decide(
    running: Service, operator: Actor, redis_client: redis.Redis, now: datetime, name: str
) -> None:
    found = previews.of(running, lambda: service_policy.change(running, name, {}), now)
    assert found.change_w
    assert found.then.policy == name
    running.refresh_from_db()
    assert running.policy == "greenserve_epochs"
    service_policy.change(running, name, {})
    epochs.run_now(running, now)
    workers = {
        f"{pool.site.name}/{pool.request_class.name}": pool.workers for pool in running.pools.exclude(workers={})
    }
    assert found.then.workers == workers


def test_preview_says_that_nothing_acts_otherwise_when_a_policy_only_advises(running: Service, operator: Actor) -> None:
    found = previews.of(running, lambda: advise(operator, running, "single_pool"))
    assert found.change_w == 0.0
    assert "greenserve_epochs stays in force" in found.notes[0]
    assert not ServiceMode.objects.exists()
    advise(operator, running, "single_pool")
    found = previews.of(running, lambda: pauses.set_control_mode(operator, running, "act"))
    assert (found.then.policy, found.change_w != 0.0) == ("single_pool", True)


def test_preview_counts_the_clock_that_comes_back_when_an_override_ends(running: Service, operator: Actor) -> None:
    pool = next(iter(running.pools.exclude(workers={})))
    until = timezone.now() + timedelta(hours=1)
    made = overrides.fix_clock(operator, pool, 1410.0, until, "measuring")
    found = previews.of(running, lambda: overrides.end(operator, made))
    assert found.change_w is not None
    assert found.change_w < 0.0
