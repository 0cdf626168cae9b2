"""The policy in force and the one configured: a control mode changes nothing that acts, until it is act."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import redis
from django.apps import apps

from core.policy.presets import PRESETS
from core.types import Loop
from pools import wire
from pools.access.audit import Actor
from pools.models import Instance, Service
from scheduler import tasks
from scheduler.control import epochs, service_policy
from scheduler.control.apply.desired_messages import desired_nodes
from scheduler.control.apply.fleet_messages import fleet_snapshot
from scheduler.models import ControlMode, ServiceMode
from scheduler.operations import approvals, pauses
from tests.fakes.house import refresh_feeds, report_all, requests_came

from .each_preset import few

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
OTHERS = ("greenserve_epochs", "greenserve", "freesh", "dynamollm", "single_pool", "throttllem", "dynaserve")
OTHER = pytest.mark.slow("other presets")
HELD = (ControlMode.ADVISE, ControlMode.APPROVE)


def set_policy(service: Service, name: str) -> None:
    service_policy.change(service, name, {})
    service.refresh_from_db()


def run_all(service: Service, at: datetime) -> None:
    for loop in LOOPS:
        epochs.run(service, loop, at)
    service.refresh_from_db()


def messages(at: datetime) -> bytes:
    """Returns everything that is published to agents and gateways."""
    return b"".join(wire.encode(message) for message in (fleet_snapshot(at, 1), *desired_nodes(at, 1)))


def later(redis_client: redis.Redis, at: datetime, by_s: float = 61.0) -> datetime:
    at += timedelta(seconds=by_s)
    report_all(redis_client, at=at)
    refresh_feeds(at)
    return at


def clocks(at: datetime) -> Iterator[tuple[str, bool, float | None]]:
    for node in desired_nodes(at, 1):
        for item in node.instances:
            assert item.clock is not None
            yield item.clock.policy, item.clock.advise, item.clock.floor_mhz


@few("greenserve")
def test_messages_are_the_same_byte_for_byte_when_control_mode_and_configured_policy_change(
    service: Service, operator: Actor, now: datetime, name: str
) -> None:
    set_policy(service, name)
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    before = messages(now)
    assert Instance.objects.exists()
    for mode in HELD:
        pauses.set_control_mode(operator, service, mode)
        assert messages(now) == before, mode
        for other in OTHERS:
            Service.objects.update(policy=other)
            assert messages(now) == before, (mode, other)
    set_policy(service, name)
    pauses.set_control_mode(operator, service, ControlMode.ACT)
    assert messages(now) == before
    other = next(found for found in PRESETS if PRESETS[found].knobs.clock != PRESETS[name].knobs.clock)
    set_policy(service, other)  # in act it is in force at once
    assert messages(now) != before


@pytest.mark.parametrize(
    "name",
    [
        "greenserve",
        *(pytest.param(n, marks=OTHER) for n in ("freesh", "dynamollm", "throttllem")),
    ],
)
def test_policy_in_force_goes_on_when_another_one_advises(
    service: Service, operator: Actor, redis_client: redis.Redis, now: datetime, name: str
) -> None:
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    pauses.set_control_mode(operator, service, "advise")
    assert not service_policy.taken_up(service, now)
    set_policy(service, name)
    assert not service_policy.taken_up(service, now)
    at, fleet = later(redis_client, now), dict(service.pools.values_list("pk", "workers"))
    requests_came(at, count=3000, over_s=60)
    (carbon, scale, _) = (epochs.run(service, loop, at) for loop in LOOPS)
    assert carbon is not None
    assert scale is not None
    assert not {carbon.status, scale.status} & {"advised", "waiting", "failed"}
    assert dict(service.pools.values_list("pk", "workers")) != fleet
    assert {rule for rule, _, _ in clocks(at)} == {PRESETS["greenserve_epochs"].knobs.clock}
    pauses.set_control_mode(operator, service, "act")
    assert service_policy.taken_up(service, at)
    epochs.run_now(service, at)
    assert {(rule, advise) for rule, advise, _ in clocks(at)} == {(PRESETS[name].knobs.clock, False)}


@pytest.mark.parametrize(
    "name",
    [
        "greenserve",
        *(pytest.param(n, marks=OTHER) for n in ("freesh", "dynamollm", "single_pool")),
    ],
)
def test_nothing_changes_when_a_plan_of_another_policy_waits_until_it_is_approved(
    service: Service, operator: Actor, redis_client: redis.Redis, now: datetime, name: str
) -> None:
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    pauses.set_control_mode(operator, service, "approve")
    set_policy(service, name)
    assert service_policy.taken_up(service, now)
    before, fleet = messages(now), dict(service.pools.values_list("pk", "workers"))
    at = later(redis_client, now)
    requests_came(at, count=3000, over_s=60)
    tried = messages(at)
    found = epochs.run_now(service, at)
    assert messages(at) == tried
    assert dict(service.pools.values_list("pk", "workers")) == fleet
    plan = next(epoch for epoch in found if epoch.status == "waiting")
    assert approvals.approve(operator, plan.approval).status == "approved"
    service.refresh_from_db()
    assert (service.acting_policy, service_policy.is_in_force(service)) == (name, True)
    assert messages(now) != before
    assert {rule for rule, _, _ in clocks(at)} == {PRESETS[name].knobs.clock}


def test_only_gateways_go_by_a_policy_when_none_of_its_loops_has_acted(
    service: Service, operator: Actor, redis_client: redis.Redis, now: datetime
) -> None:
    set_policy(service, "greenserve")
    before = messages(now)
    pauses.set_control_mode(operator, service, "advise")
    assert messages(now) == before
    assert ServiceMode.objects.get().gateways_only
    assert epochs.run(service, Loop.CARBON, now) is None
    assert messages(now) == before
    pauses.set_control_mode(operator, service, "approve")
    epoch = epochs.run(service, Loop.CARBON, later(redis_client, now))
    assert epoch is not None
    approvals.approve(operator, epoch.approval)
    assert {advise for _, advise, _ in clocks(now)} == {True}  # of clocks nobody has said anything
    pauses.set_control_mode(operator, service, "act")
    assert {advise for _, advise, _ in clocks(now)} == {False}


def test_older_installs_keep_what_is_true_of_them(service: Service, now: datetime) -> None:
    """Where decisions did not act, clocks were at the top and gateways went by the configured policy."""
    run_all(service, now)
    ServiceMode.objects.create(service=service, mode=ControlMode.ADVISE)
    forwards = importlib.import_module("scheduler.migrations.0004_policy_in_force")._forwards
    forwards(apps, None)
    service.refresh_from_db()
    assert (service.acting_policy, service.acting_knobs) == (service.policy, service.knobs)
    assert {advise for _, advise, _ in clocks(now)} == {True}
    at = now + timedelta(seconds=61)
    refresh_feeds(at)
    requests_came(at, count=3000, over_s=60)
    instances = set(Instance.objects.values_list("pk", "desired"))
    tasks.run_epochs("shard")
    assert set(Instance.objects.values_list("pk", "desired")) == instances
